"""Steps at the store: exact, as far as its cores and memory allow, and the file itself where they do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from headwater import transforms as T
from headwater.data import codecs
from headwater.data.image import Limits, read_header
from headwater.data.pipeline import Pipeline
from headwater.engine.budget import Cores, Gone, Turn, Turnstile
from headwater.engine.chain import Chain
from headwater.errors import SampleTooLarge, WrongUse
from headwater.store.client.connection import _MOST_REPLY as CLIENT_TAKES
from headwater.store.server.crops import Crops
from headwater.store.server.ledger import Ledger
from headwater.store.server.prefix import _MOST_REPLY, Made, Prefix, _avoided
from headwater.store.server.workers import Done, Work, Workers, _digest
from headwater.store.wire.catalogue import combined, digests
from headwater.store.wire.messages import ReadRequest
from headwater.store.wire.payloads import FACTS
from pictures import jpeg, photo

PIPELINE = T.Compose([T.RandomCrop(24), T.RandomHorizontalFlip()]).samplewise  # needs no torch
FILES = [jpeg(photo(40 + 3 * number, 90 - 2 * number, seed=number)) for number in range(20)]
IDS = np.arange(20, dtype=np.int64) * 1009 + 7


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(1, limits=Limits(), arena_bytes=16 << 20)
    made.start()
    yield made
    made.close()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def prefix(workers: Workers, ledger: Ledger) -> Prefix:
    return Prefix(workers, Cores(64), ledger)


@pytest.fixture
def turn() -> Iterator[Turn]:
    with Turnstile(1, 1 << 30).enter("c", memory=1, patience=0, gone=lambda: False) as entered:
        yield entered


def request(cut: int | Sequence[int], pipeline: Pipeline = PIPELINE, **changes: Any) -> ReadRequest:
    cuts = bytes([cut] * 20 if isinstance(cut, int) else cut)
    said = {
        "ids": IDS.tobytes(),
        "epoch": 3,
        "seed": 5,
        "cuts": cuts,
        "codecs": bytes(20),
        "names": ["none"],
        "steps": pipeline.spec(),
        "digest": combined(pipeline, digests()),
    }
    return ReadRequest("photos", "v", "c", **(said | changes))


def run(prefix: Prefix, asked: ReadRequest, turn: Turn, files: Sequence[Any] = FILES) -> Made:
    return prefix.run(asked, IDS, files, turn)


def test_what_is_held_is_sent_and_what_cannot_be_packed_is_made_again(
    workers: Workers, ledger: Ledger, turn: Turn
) -> None:
    crops = Crops(1 << 20)
    prefix = Prefix(workers, Cores(64), ledger, crops=crops)
    plain = run(prefix, request(2), turn)
    assert crops.nbytes == 0
    tray = crops.open("v", PIPELINE, seed=5, epoch=3, limits=Limits())
    assert tray is not None
    assert tray.cut == 2
    shapes = np.array([(24, 24, 3)] * 4 + [(0, 24, 3)])
    payloads = [memoryview(bytes([number]) * (24 * 24 * 3)) for number in range(4)] + [memoryview(b"")]
    facts = (shapes, np.full((5, 2), 50), np.ones(5, np.uint8), np.full(5, 0.5, np.float32), plain.drawn[:5])
    tray.put(IDS[:5], Done(payloads, *facts))  # type: ignore[arg-type]
    made = run(prefix, request(2), turn)
    # other bytes than steps would make show where they are from
    assert [bytes(payload) for payload in made.payloads[:4]] == [bytes(payload) for payload in payloads[:4]]
    assert [bytes(one) for one in made.payloads[4:]] == [bytes(one) for one in plain.payloads[4:]]
    assert (made.facts["done"] == 2).all()
    assert (made.facts["seconds"][:4] >= 0.5).all()
    assert ledger.snapshot()["headwater_crops_total"] == {"held": 0, "sent": 4}
    again = run(prefix, request(2), turn)
    assert [bytes(one) for one in again.payloads] == [bytes(one) for one in plain.payloads]


@dataclass
class Lot:
    ids: Any
    epoch: int
    images: dict[int, Any] = field(default_factory=dict)
    rows: dict[int, Any] = field(default_factory=dict)

    def emit(self, place: int, image: Any) -> None:
        self.images[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        raise error

    def note(self, place: int, header: Any, size: tuple[int, int], rows: Sequence[Any]) -> None:
        self.rows[place] = (size, rows)


def referee(cut: int, pipeline: Pipeline = PIPELINE) -> Lot:
    lot = Lot(IDS, 3)
    Chain(pipeline.cut(cut)[0], 5).run(FILES, lot)
    return lot


def assert_cut(made: Made, place: int, cut: int, codec: str = "none") -> None:
    wanted = referee(cut)
    image, (size, rows) = wanted.images[place], wanted.rows[place]
    facts = made.facts[place].tolist()
    assert facts[:7] == (cut, facts[1], *image.shape, *size)
    assert 0 < facts[8] < 1
    assert np.array_equal(codecs.decode(codec, made.payloads[place], image.shape), image)
    assert made.drawn[place] == np.array([v for row in rows for v in row], "<f8").tobytes()


def assert_raw(made: Made, place: int) -> None:
    assert made.payloads[place] is FILES[place]
    assert made.facts[place].tolist() == (0,) * 9
    assert made.drawn[place] == b""


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("cut", range(1, len(PIPELINE) + 1))
def test_every_cut_and_codec(cut: int, codec: str, prefix: Prefix, turn: Turn) -> None:
    made = run(prefix, request(cut, names=[codec]), turn)
    for place in range(20):
        assert_cut(made, place, cut, codec)


def test_each_sample_has_its_own(prefix: Prefix, turn: Turn) -> None:
    cuts = [place % (len(PIPELINE) + 1) for place in range(20)]
    chosen = bytes(place % 2 for place in range(20))
    made = run(prefix, request(cuts, names=["zstd", "none"], codecs=chosen), turn)
    for place, cut in enumerate(cuts):
        if cut:
            assert_cut(made, place, cut, ("zstd", "none")[place % 2])
            assert made.facts["codec"][place] == place % 2
        else:
            assert_raw(made, place)


class TestPushBack:
    def exhausted(self, workers: Workers, ledger: Ledger) -> Prefix:
        cores = Cores(1.0)
        cores.spent(100.0)
        return Prefix(workers, cores, ledger)

    def test_without_cores_the_files_go_out(self, workers: Workers, ledger: Ledger, turn: Turn) -> None:
        made = run(self.exhausted(workers, ledger), request(2), turn)
        for place in range(20):
            assert_raw(made, place)

    def test_and_it_is_said_and_counted(self, workers: Workers, ledger: Ledger, turn: Turn) -> None:
        prefix, asked = self.exhausted(workers, ledger), request([2] * 12 + [0] * 8)
        prefix.count(run(prefix, asked, turn), asked, FILES)
        counted = ledger.snapshot()["headwater_samples_total"]
        assert isinstance(counted, dict)
        assert (counted["pushed_back"], counted["raw"], counted["cut"]) == (12, 8, 0)

    def test_without_memory_what_grows_goes_out_as_a_file(self, prefix: Prefix) -> None:
        most = 1000
        with Turnstile(1, most).enter("c", memory=most, patience=0, gone=lambda: False) as full:
            made = run(prefix, request(1), full)  # decoded, each is larger than its file
        for place in range(20):
            assert_raw(made, place)

    def test_a_reply_grows_no_further_than_a_client_takes(
        self, prefix: Prefix, turn: Turn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Decoded, each is larger than its file; cropped, some are smaller and always fit."""
        assert _MOST_REPLY < CLIENT_TAKES
        files = sum(map(len, FILES))
        monkeypatch.setattr("headwater.store.server.prefix._MOST_REPLY", files + 50_000)
        made = run(prefix, request(1), turn)
        assert files < sum(map(len, made.payloads)) <= files + 50_000
        for place, done in enumerate(made.facts["done"].tolist()):
            if done:
                assert_cut(made, place, 1)
            else:
                assert_raw(made, place)
        monkeypatch.setattr("headwater.store.server.prefix._MOST_REPLY", 0)
        smaller = [len(file) >= 24 * 24 * 3 for file in FILES]
        assert sum(smaller) > 0
        assert (run(prefix, request(2), turn).facts["done"] > 0).tolist() == smaller

    def test_without_workers(self, ledger: Ledger, turn: Turn, caplog: pytest.LogCaptureFixture) -> None:
        closed = Workers(1, limits=Limits())
        closed.catalogue = digests()
        closed.close()
        prefix = Prefix(closed, Cores(64), ledger)
        for _ in range(3):
            made = run(prefix, request(2), turn)
            for place in range(20):
                assert_raw(made, place)
        assert caplog.text.count("samples go out as they are") == 1

    def test_behind_a_hung_worker_all_that_is_left_goes_out(self, ledger: Ledger, turn: Turn) -> None:
        hung = Workers(1, limits=Limits())
        hung.catalogue = digests()
        child = hung._idle.get()  # somebody has it
        begin = time.monotonic()
        made = run(Prefix(hung, Cores(64), ledger), request(2), turn)
        assert time.monotonic() - begin < 1.9  # one wait, and not one for each of two chunks
        hung._idle.put(child)
        hung.close()
        for place in range(20):
            assert_raw(made, place)


def test_workers_are_shared_between_callers_and_not_between_requests(
    prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests of one caller wait before one of another, each for two chunks; that one is not last."""
    monkeypatch.setattr("headwater.store.server.prefix.BORROW_SECONDS", 30.0)
    over: list[str] = []
    line, run_chunk = prefix._line, prefix._try

    def run_when_all_wait(work: Work, files: Sequence[Any]) -> Done | None:
        """However threads are scheduled, nobody leaves before all who have more to do are in the line."""
        done = run_chunk(work, files)
        _until(lambda: line.waiting + line.active == 4 - len(over))
        return done

    monkeypatch.setattr(prefix, "_try", run_when_all_wait)

    def work(caller: str) -> None:
        with Turnstile(1, 1 << 30).enter(caller, memory=1, patience=0, gone=lambda: False) as turn:
            assert run(prefix, request(2), turn).facts["done"].tolist() == [2] * 20
        over.append(caller)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("greedy",) * 3 + ("modest",)]
    with ExitStack() as gate:
        for name in ("one", "two"):  # the places in the line: for one worker, and one more
            gate.enter_context(line.enter(name, memory=1, patience=0, gone=lambda: False))
        for number, thread in enumerate(threads):
            thread.start()
            _until(lambda number=number: line.waiting == number + 1)  # type: ignore[misc]
    for thread in threads:
        thread.join(30)
    assert len(over) == 4
    assert over.index("modest") <= 1  # in the order of coming it would be the last


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.0005)


def test_what_cannot_be_is_told_from_what_was_not_tried(prefix: Prefix, turn: Turn) -> None:
    made = run(prefix, request([2] * 19 + [0]), turn, [b"no image", *FILES[1:]])
    assert made.facts["done"].tolist() == [0] + [2] * 18 + [0]
    assert made.facts["seconds"][0] > 0  # it was looked at
    assert made.facts["seconds"][19] == 0
    assert bytes(made.payloads[0]) == b"no image"


def test_nothing_is_made_for_who_hung_up(prefix: Prefix, turn: Turn) -> None:
    answers = iter([False, True])
    with pytest.raises(Gone):
        prefix.run(request(2), IDS, FILES, turn, gone=lambda: next(answers))
    assert next(answers, None) is None


def test_what_is_counted(prefix: Prefix, ledger: Ledger, turn: Turn) -> None:
    asked = request([3] * 10 + [0] * 10, names=["zstd"])
    made = run(prefix, asked, turn)
    lengths = np.array([len(payload) for payload in made.payloads])
    sizes = np.array([len(file) for file in FILES])
    prefix.count(made, asked, FILES)
    counted: Any = ledger.snapshot()
    assert counted["headwater_samples_total"]["cut"] == 10
    assert counted["headwater_samples_total"]["raw"] == 10
    assert counted["headwater_bytes_sent_total"]["zstd"] == lengths[:10].sum()
    assert counted["headwater_bytes_sent_total"]["raw"] == sizes[10:].sum()
    avoided = counted["headwater_bytes_avoided_total"]
    assert avoided["cut"] > 0
    assert avoided["codec"] > 0
    assert sizes[:10].sum() == lengths[:10].sum() + sum(avoided.values())


def facts_of(*pixels: int) -> Any:
    facts = np.zeros(len(pixels), FACTS)
    facts["done"] = facts["width"] = facts["channels"] = 1
    facts["height"] = pixels
    return facts


@pytest.mark.parametrize(
    ("file", "pixels", "sent", "by_cut", "by_codec"),
    [
        (100, 60, 60, 40, 0),
        (100, 60, 50, 40, 10),
        (100, 300, 80, 0, 20),  # the codec made up for the cut
        (100, 60, 70, 30, 0),  # and here it took some of it back
        (100, 300, 150, 0, 0),
        (100, 300, 300, 0, 0),
    ],
)
def test_what_was_avoided_is_what_did_not_cross_of_the_file(
    file: int, pixels: int, sent: int, by_cut: int, by_codec: int
) -> None:
    found = _avoided(facts_of(pixels), np.array([sent]), np.array([file]))
    assert found == {"cut": by_cut, "codec": by_codec}
    grown = np.array([900, sent]), np.array([100, file])  # a sample that grows hides no other's
    assert _avoided(facts_of(800, pixels), *grown) == found


def test_nothing_was_avoided_where_more_than_the_file_crossed(
    prefix: Prefix, ledger: Ledger, turn: Turn
) -> None:
    asked = request(1, names=["zstd"])
    made = run(prefix, asked, turn)
    assert all(len(payload) > len(file) for payload, file in zip(made.payloads, FILES, strict=True))
    prefix.count(made, asked, FILES)
    assert ledger.snapshot()["headwater_bytes_avoided_total"] == {"cut": 0, "codec": 0}


def test_a_step_that_is_not_exact_stays_with_all_after_it(prefix: Prefix, turn: Turn) -> None:
    blurred = T.Compose([T.RandomCrop(24), T.GaussianBlur(3), T.RandomHorizontalFlip()]).samplewise
    made = run(prefix, request(4, blurred), turn)
    assert made.facts["done"].tolist() == [2] * 20
    assert_cut(made, 7, 2)


class TestAnotherStore:
    """One that was replaced since the greeting, and runs a step otherwise or not at all."""

    def test_steps_that_it_runs_otherwise_stay(self, prefix: Prefix, turn: Turn) -> None:
        for digest in ("", combined(PIPELINE, {**digests(), "random_box": "other"})):
            made = run(prefix, request(3, digest=digest), turn)
            for place in range(20):
                assert_raw(made, place)

    def test_each_difference_is_in_the_log_once(
        self, prefix: Prefix, turn: Turn, caplog: pytest.LogCaptureFixture
    ) -> None:
        for digest in ("one", "two", "one", "two", *map(str, range(1000))):
            run(prefix, request(3, digest=digest), turn)
        run(prefix, request(3), turn)
        said = [line for line in caplog.messages if "makes other bytes of decode, random_box" in line]
        assert [line.count("'one'") for line in said[:3]] == [1, 0, 0]
        assert "'two'" in said[1]
        assert len(said) == 256, "a client cannot fill the log with digests that it invents"

    def test_steps_before_one_that_it_lacks_are_run(self, ledger: Ledger, turn: Turn) -> None:
        fewer = Workers(1, limits=Limits(), arena_bytes=16 << 20)
        fewer.catalogue = {"decode": digests()["decode"]}
        prefix = Prefix(fewer, Cores(64), ledger)
        try:
            assert run(prefix, request(3), turn).facts["done"].tolist() == [0] * 20
            made = run(prefix, request(1, PIPELINE.cut(1)[0]), turn)
        finally:
            fewer.close()
        assert_cut(made, 0, 1)

    def test_a_codec_that_it_lacks_means_files(self, prefix: Prefix, turn: Turn) -> None:
        made = run(prefix, request(3, names=["none", "gif"]), turn)
        for place in range(20):
            assert_raw(made, place)


@pytest.mark.parametrize(
    "step",
    [
        {"name": "no such step"},
        {"name": "random_box", "size": "large"},
        {},
        {"name": ["decode"]},
    ],
    ids=str,
)
def test_steps_that_cannot_be(step: dict[str, Any], prefix: Prefix, turn: Turn) -> None:
    with pytest.raises(WrongUse):
        run(prefix, request(2, steps=[{"name": "decode"}, step]), turn)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"codecs": bytes([1] * 20)}, "codec 1 of 1"),
        ({"names": []}, "codec 0 of 0"),
    ],
)
def test_codecs_that_cannot_be(change: dict[str, Any], text: str, prefix: Prefix, turn: Turn) -> None:
    with pytest.raises(WrongUse, match=text):
        run(prefix, request(2, **change), turn)


@pytest.mark.parametrize("limits", [Limits(pixels=40 * 90 - 1), Limits(bytes=len(FILES[0]) - 1)], ids=str)
def test_what_is_past_the_limits_of_a_request_goes_out_as_it_is(
    limits: Limits, prefix: Prefix, turn: Turn
) -> None:
    made = run(prefix, request(3, limits=limits), turn)
    past = [_is_past(file, limits) for file in FILES]
    assert sum(past) > 0
    assert made.facts["done"].tolist() == [0 if each else 3 for each in past]


def _is_past(file: bytes, limits: Limits) -> bool:
    try:
        read_header(file, limits)
    except SampleTooLarge:
        return True
    return False


def test_a_damaged_file_goes_out_as_it_is(prefix: Prefix, turn: Turn) -> None:
    """The trainer finds what is wrong with it, and names the sample as it would with local data."""
    files: list[Any] = list(FILES)
    files[3], files[8] = FILES[3][:100], None  # the second could not be read at all
    made = run(prefix, request(3), turn, files)
    assert (made.payloads[3], made.payloads[8]) == (files[3], None)
    assert made.facts["done"].tolist() == [0 if place in (3, 8) else 3 for place in range(20)]


def test_a_quarantined_sample_goes_out_as_it_is(
    prefix: Prefix, workers: Workers, ledger: Ledger, turn: Turn
) -> None:
    """At the trainer it does what it would do with local data."""
    workers._quarantine[int(IDS[4])] = _digest(np.frombuffer(FILES[4], np.uint8))
    try:
        made = run(prefix, request(3), turn)
    finally:
        workers.release()
    assert_raw(made, 4)
    assert_cut(made, 5, 3)
    prefix.count(made, request(3), FILES)
    counted = ledger.snapshot()["headwater_samples_total"]
    assert isinstance(counted, dict)
    assert (counted["quarantined"], counted["pushed_back"], counted["cut"]) == (1, 0, 19)
    assert_cut(run(prefix, request(3), turn), 4, 3)
