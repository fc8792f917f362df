"""A store does what it was asked to do, or it is noticed, said once, and asked for files from then on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from headwater import transforms as T
from headwater.data import codecs
from headwater.data.image import Limits
from headwater.data.index import Index
from headwater.data.pipeline import Pipeline, library_versions
from headwater.engine.chain import Chain
from headwater.engine.fetching import Wanted
from headwater.errors import WrongUse
from headwater.plan.offload import Offload
from headwater.store.client.cutting import Cutting, Opened
from headwater.store.client.link import Link
from headwater.store.client.remote import Remote, RemoteReader, RemoteStore
from headwater.store.client.replicas import Replicas
from headwater.store.wire import messages, payloads
from headwater.store.wire.catalogue import digests
from headwater.store.wire.messages import Complaint, DatasetFacts, ReadRequest, Request, Welcome
from headwater.store.wire.payloads import FACTS, Parcel
from pictures import jpeg, photo
from understudy import Understudy, playing

PIPELINE = T.Compose([T.RandomResizedCrop(20), T.RandomHorizontalFlip()]).samplewise
CHAIN = Chain(PIPELINE, seed=5)
FILES = [jpeg(photo(50 + 3 * number, 70 - 2 * number, seed=number)) for number in range(6)]
INDEX = Index.build([f"{number}.jpg" for number in range(6)], np.array([len(file) for file in FILES]))
WANTED = Wanted(np.arange(6), INDEX.ids, 3)
WELCOME = Welcome(
    protocol=1,
    version="0",
    catalogue=digests(),
    libraries=library_versions(),
    codecs=list(codecs.CODECS),
    datasets={},
    request_bytes=1 << 26,
    request_samples=16_384,
    limits=True,
)


@dataclass
class Lot:
    """Keeps what a store would send."""

    ids: Any
    epoch: int
    images: dict[int, Any] = field(default_factory=dict)
    noted: dict[int, Any] = field(default_factory=dict)

    def emit(self, place: int, image: Any) -> None:
        self.images[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        raise error

    def note(self, place: int, header: Any, size: tuple[int, int], rows: Sequence[Any]) -> None:
        self.noted[place] = (size, rows)


def honest(cut: int, codec: str = "none", *, wanted: Wanted = WANTED, seed: int = 5) -> Parcel:
    """What a store that does as it is told sends for all samples."""
    lot = Lot(wanted.ids, wanted.epoch)
    Chain(PIPELINE.cut(cut)[0], seed).run([FILES[place] for place in wanted.positions.tolist()], lot)
    facts = np.zeros(len(wanted.ids), FACTS)
    sent, drawn = [], []
    for place in range(len(wanted.ids)):
        image, (size, rows) = lot.images[place], lot.noted[place]
        facts[place] = (cut, 0, *image.shape, *size, 1, 0.0)
        sent.append(codecs.encode(codec, image))
        drawn.append(np.array([value for row in rows for value in row], "<f8").tobytes())
    return Parcel(wanted.ids, sent, {}, None, facts, drawn)


def cutting(cut: int, codec: str = "none", limits: Limits | None = None) -> Cutting:
    return Cutting(
        PIPELINE.cut(cut)[0],
        5,
        limits or Limits(),
        (Offload(cut, codec),),
    )


def ask(asker: Cutting, wanted: Wanted = WANTED) -> ReadRequest:
    return asker.apply(ReadRequest("photos", "v", "c", wanted.ids.tobytes()), wanted)


def open_parcel(asker: Cutting, parcel: Parcel, wanted: Wanted = WANTED) -> Opened:
    return asker.open(parcel, wanted, ask(asker, wanted))


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("cut", range(1, len(PIPELINE) + 1))
def test_an_honest_answer_is_taken(cut: int, codec: str) -> None:
    opened = open_parcel(cutting(cut, codec), honest(cut, codec))
    assert (opened.wrong, opened.again) == ("", [])
    assert opened.done.tolist() == [cut] * 6
    lot = Lot(WANTED.ids, WANTED.epoch)
    CHAIN.run(opened.values, lot, done=opened.done)
    whole = Lot(WANTED.ids, WANTED.epoch)
    CHAIN.run(FILES, whole)
    assert all(np.array_equal(lot.images[place], whole.images[place]) for place in range(6))


def test_samples_that_came_as_files_stay_files() -> None:
    parcel = honest(2)
    for place in (0, 4):
        parcel.payloads[place] = FILES[place]
        parcel.facts[place] = 0
        parcel.drawn[place] = b""
    opened = open_parcel(cutting(2), parcel)
    assert opened.wrong == ""
    assert opened.done.tolist() == [0, 2, 2, 2, 0, 2]
    assert opened.values[4] is FILES[4]
    raw = Parcel(WANTED.ids, FILES, {}, None, np.zeros(6, FACTS), [b""] * 6)
    assert open_parcel(cutting(2), raw).done.tolist() == [0] * 6


def other_draws(parcel: Parcel) -> None:
    parcel.drawn[3] = parcel.drawn[2]


def one_bit_of_a_draw(parcel: Parcel) -> None:
    parcel.drawn[5] = bytes([parcel.drawn[5][0] ^ 1]) + parcel.drawn[5][1:]


def no_draws(parcel: Parcel) -> None:
    parcel.drawn[0] = b""


def further(parcel: Parcel) -> None:
    parcel.facts["done"][1] += 1


def less_far(parcel: Parcel) -> None:
    parcel.facts["done"][1] -= 1


def round_the_clock(parcel: Parcel) -> None:
    parcel.facts["done"][1] += 256


def another_codec(parcel: Parcel) -> None:
    parcel.facts["codec"][1] = 1


def another_source(parcel: Parcel) -> None:
    parcel.facts["source_height"][2] += 1


def bigger(parcel: Parcel) -> None:
    parcel.facts["height"][2] += 1
    parcel.payloads[2] = bytes(int(np.prod(parcel.facts[2].tolist()[2:5])))


def huge(parcel: Parcel) -> None:
    parcel.facts["height"][2] = parcel.facts["width"][2] = 1 << 30


def negative(parcel: Parcel) -> None:
    parcel.facts["width"][2] = -1


def no_source(parcel: Parcel) -> None:
    parcel.facts["source_width"][2] = 0


def too_deep(parcel: Parcel) -> None:
    parcel.facts["channels"][2] = 5


def without_depth(parcel: Parcel) -> None:
    parcel.facts["channels"][2] = 0


def too_short(parcel: Parcel) -> None:
    parcel.payloads[4] = bytes(parcel.payloads[4])[:-1]


def no_excerpts(parcel: Parcel) -> None:
    parcel.payloads[:] = [b"no excerpt"] * len(parcel.payloads)


Lie = Callable[[Parcel], None]
LIES: dict[Lie, str] = {
    other_draws: "other random numbers",
    one_bit_of_a_draw: "other random numbers",
    no_draws: "other random numbers",
    further: "further than it was asked",
    less_far: "further than it was asked",
    round_the_clock: "further than it was asked",
    another_codec: "further than it was asked",
    another_source: "other random numbers",
    bigger: "another size",
    huge: "impossible size",
    negative: "impossible size",
    no_source: "impossible size",
    too_deep: "impossible depth",
    without_depth: "impossible depth",
    too_short: "bytes of pixels",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_is_noticed(lie: Lie) -> None:
    parcel = honest(3)
    lie(parcel)
    assert LIES[lie] in open_parcel(cutting(3), parcel).wrong


def test_the_caps_of_the_trainer_hold() -> None:
    assert "impossible size" in open_parcel(cutting(3, limits=Limits(pixels=399)), honest(3)).wrong
    most = max((50 + 3 * number) * (70 - 2 * number) for number in range(6))
    assert "past limits.pixels" in open_parcel(cutting(3, limits=Limits(pixels=most - 1)), honest(3)).wrong
    assert open_parcel(cutting(3, limits=Limits(pixels=most)), honest(3)).wrong == ""


def test_the_store_is_told_the_caps() -> None:
    limits = Limits(pixels=4000, scans=3)
    asked = ask(cutting(3, limits=limits))
    assert messages.decode_request(messages.encode(asked)).limits == limits


def test_another_seed_or_epoch_is_noticed() -> None:
    assert "random" in open_parcel(cutting(3), honest(3, seed=6)).wrong
    assert "random" in open_parcel(cutting(3), honest(3), Wanted(WANTED.positions, WANTED.ids, 4)).wrong


class TestAgreement:
    def of(self, offload: Offload, **changes: Any) -> Cutting:
        welcome = msgspec.structs.replace(WELCOME, **changes)
        return Cutting.of(CHAIN, [offload], {f"store-{id(changes)}": welcome})

    def test_as_far_as_the_chain_goes(self) -> None:
        assert self.of(Offload(2, "zstd")).ways == (Offload(2, "zstd"),)
        assert self.of(Offload(200)).reach == len(PIPELINE)

    def test_a_codec_that_the_store_lacks_is_done_without(self) -> None:
        with pytest.warns(UserWarning, match="has no codec zstd"):
            assert self.of(Offload(2, "zstd"), codecs=["none"]).ways == (Offload(2),)

    def test_a_store_that_does_not_mind_limits_gives_files(self) -> None:
        old = msgspec.structs.replace(WELCOME, limits=False)
        with pytest.warns(UserWarning, match="^store stor-w is too old to mind a loader's limits"):
            found = Cutting.of(CHAIN, [Offload(2)], {"stor-u": WELCOME, "stor-w": old})
        assert found.reach == 0

    def test_a_codec_that_nobody_has(self) -> None:
        with pytest.raises(WrongUse, match="codec 'gif' is not known"):
            self.of(Offload(2, "gif"))

    def test_an_excerpt_needs_a_crop_after_the_decoder(self) -> None:
        with pytest.raises(WrongUse, match="codec 'jpeg' cuts a crop out of the file: it needs cut=2"):
            self.of(Offload(3, "jpeg"))
        with pytest.raises(WrongUse, match="first step after the decoder is a crop"):
            Cutting.of(Chain(Pipeline(PIPELINE.steps[:1])), [Offload(2, "jpeg")], {"stor-v": WELCOME})

    def test_a_store_without_excerpts_gives_files(self) -> None:
        with pytest.warns(UserWarning, match="has no codec jpeg"):
            assert self.of(Offload(2, "jpeg"), codecs=["none"]).reach == 0

    def test_a_step_that_differs_stays_and_is_said_once(self) -> None:
        others = {**digests(), "resize": "other"}
        with pytest.warns(
            UserWarning, match=r"stor-x and this trainer differ in resize .*stay at the trainer"
        ):
            first = Cutting.of(CHAIN, [Offload(4)], {"stor-x": _with(others)})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = Cutting.of(CHAIN, [Offload(4)], {"stor-x": _with(others)})
        assert (first.reach, again.reach) == (2, 2)

    def test_a_store_that_has_none_gives_files(self) -> None:
        with pytest.warns(UserWarning, match="has no decode"):
            assert Cutting.of(CHAIN, [Offload(4)], {"stor-z": _with({})}).reach == 0

    def test_of_replicas_the_one_that_differs_is_named(self) -> None:
        lesser = {name: digest for name, digest in digests().items() if name != "resize"}
        stores = {"stor-r": WELCOME, "stor-s": _with(lesser)}
        with pytest.warns(UserWarning, match="differ in") as said:
            assert Cutting.of(CHAIN, [Offload(4)], stores).reach == 2
        assert [str(one.message) for one in said] == [
            "store stor-s and this trainer differ in resize (the store has no resize);"
            " that step and those after it stay at the trainer"
        ]

    def test_of_replicas_the_one_without_a_codec_is_named(self) -> None:
        stores = {"stor-p": msgspec.structs.replace(WELCOME, codecs=["none"]), "stor-q": WELCOME}
        with pytest.warns(UserWarning, match="^store stor-p has no codec zstd; it is done without$"):
            assert Cutting.of(CHAIN, [Offload(2, "zstd")], stores).ways == (Offload(2),)


def seal(request: Request) -> int:
    return payloads.seal_of(messages.encode(request))


def _with(catalogue: dict[str, str]) -> Welcome:
    return msgspec.structs.replace(WELCOME, catalogue=catalogue)


class TestDistrust:
    """The same lies from a server: raw files instead, one warning, and no second chance in this run."""

    @pytest.fixture
    def server(self) -> Iterator[Understudy]:
        with playing(lambda server, request: [payloads.pack(self.files(request), seal(request))]) as made:
            yield made

    @pytest.fixture
    def store(self, server: Understudy) -> Iterator[RemoteStore]:
        facts = DatasetFacts(6, int(INDEX.sizes.sum()), INDEX.version, "")
        known = Remote("photos", facts, {"store": WELCOME}, INDEX)
        made = RemoteStore(Replicas([server.connect(Link(deadline_seconds=5, give_up_seconds=5))]), known)
        yield made
        made.close()

    def wanted(self, request: Request) -> Wanted:
        assert isinstance(request, ReadRequest)
        ids = np.frombuffer(request.ids, "<i8")
        return Wanted(INDEX.position_of(ids), ids, request.epoch)

    def files(self, request: Request) -> Parcel:
        wanted = self.wanted(request)
        return Parcel(wanted.ids, [FILES[place] for place in wanted.positions.tolist()])

    def lying(self, lie: Lie) -> Callable[[Understudy, Request], list[Any]]:
        def answer(server: Understudy, request: Request) -> list[Any]:
            assert isinstance(request, ReadRequest)
            assert request.cuts
            parcel = honest(request.cuts[0], wanted=self.wanted(request))
            lie(parcel)
            return [payloads.pack(parcel, seal(request))]

        return answer

    @pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
    def test_files_instead_and_one_warning(self, lie: Lie, server: Understudy, store: RemoteStore) -> None:
        server.script.append(self.lying(lie))
        reader = store.reader(CHAIN, [Offload(3)])
        with pytest.warns(UserWarning, match="stay at the trainer from now on") as said:
            both = [reader.fetch(WANTED) for _ in range(2)]
        assert len(said) == 1
        for found in both:
            assert found.done is None or not found.done.any()
            assert [bytes(value) for value in found.values] == FILES
        cuts = [request.cuts for request in server.asked if isinstance(request, ReadRequest)]
        assert cuts == [bytes([3] * 6), b"", b""]

    def test_another_thread_that_lost_its_trust_changes_no_answer_under_way(
        self, server: Understudy, store: RemoteStore
    ) -> None:
        reader = store.reader(CHAIN, [Offload(3)])
        assert isinstance(reader, RemoteReader)

        def answer(server: Understudy, request: Request) -> list[Any]:
            reader.cutting = None  # while the request, sent with cuts, is at the store
            return self.lying(lambda parcel: None)(server, request)

        server.script.append(answer)
        found = reader.fetch(WANTED)
        assert found.done is not None
        assert found.done.all()

    def test_what_cannot_be_opened_is_asked_once_of_each_as_a_file(
        self, server: Understudy, store: RemoteStore
    ) -> None:
        """Excerpts that are none; and of one sample neither store has the file."""

        def answer(server: Understudy, request: Request) -> list[Any]:
            assert isinstance(request, ReadRequest)
            if request.cuts:
                return self.lying(no_excerpts)(server, request)
            parcel = self.files(request)
            for place in np.flatnonzero(parcel.ids == INDEX.ids[4]).tolist():
                parcel.payloads[place] = None
                parcel.errors[place] = messages.encode(Complaint("SampleCorrupt", "cut short"))
            return [payloads.pack(parcel, seal(request))]

        server.usual = answer
        with playing(answer) as second:
            link = Link(deadline_seconds=5, give_up_seconds=5)
            welcome = msgspec.structs.replace(WELCOME, codecs=["none", "jpeg"])
            known = Remote("photos", store.known.facts, {"store": welcome}, INDEX)
            both = RemoteStore(Replicas([server.connect(link), second.connect(link)]), known)
            both.replicas.all[1].under_way = 1000  # so the first is asked first
            found = both.reader(CHAIN, [Offload(2, "jpeg")]).fetch(WANTED)
            both.close()
        assert list(found.failed) == [4]
        assert [bytes(value) for place, value in enumerate(found.values) if place != 4] == FILES[:4] + FILES[
            5:
        ]
        assert found.done is not None
        assert not found.done.any()
        asked = [len(request.ids) // 8 for request in (*server.asked, *second.asked)]  # type: ignore[union-attr]
        assert asked == [6, 6, 1]

    def test_an_honest_store_keeps_its_work(self, server: Understudy, store: RemoteStore) -> None:
        server.usual = self.lying(lambda parcel: None)
        found = store.reader(CHAIN, [Offload(3)]).fetch(WANTED)
        assert found.done is not None
        assert found.done.tolist() == [3] * 6
        assert found.bytes_moved == 6 * 20 * 20 * 3

    def test_no_cut_asks_for_files(self, server: Understudy, store: RemoteStore) -> None:
        for ways in ([], [Offload(0)]):
            assert [bytes(v) for v in store.reader(CHAIN, ways).fetch(WANTED).values] == FILES
        assert all(isinstance(request, ReadRequest) and not request.cuts for request in server.asked)

    def test_a_pipeline_without_exact_steps_asks_for_files(
        self, server: Understudy, store: RemoteStore
    ) -> None:
        odd = Chain(Pipeline(T.Compose([T.GaussianBlur(3)]).steps[1:], 1), 5)
        store.reader(odd, [Offload(1)]).fetch(WANTED)
        (request,) = server.asked
        assert isinstance(request, ReadRequest)
        assert not request.cuts
