"""A sample that one replica cannot give: each other is asked for it, once, before the error stands."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from headwater import transforms as T
from headwater.data import codecs
from headwater.data.fieldrows import encode_fields
from headwater.data.index import Index
from headwater.data.pipeline import library_versions
from headwater.engine.chain import Chain
from headwater.engine.fetching import Wanted
from headwater.errors import DatasetStale, HeadwaterError, Refused, SampleCorrupt, SampleError
from headwater.store.client.link import Link
from headwater.store.client.remote import Remote, RemoteStore
from headwater.store.client.replicas import Replicas
from headwater.store.wire import messages, payloads
from headwater.store.wire.catalogue import digests
from headwater.store.wire.messages import Complaint, DatasetFacts, ReadRequest, Request, Welcome
from headwater.store.wire.payloads import FACTS, Parcel
from stores import running_daemon
from understudy import Answer, Understudy, be_gone, complain, playing, stall

FILES = [f"file {number}".encode() for number in range(6)]
INDEX = Index.build([f"{number}.jpg" for number in range(6)], np.array([len(file) for file in FILES]))
FACTS_OF = DatasetFacts(6, int(INDEX.sizes.sum()), INDEX.version, "", fields=["number"])
WELCOME = Welcome(
    1,
    "0",
    digests(),
    library_versions(),
    list(codecs.CODECS),
    {"photos": FACTS_OF},
    1 << 20,
    100,
    limits=True,
)
LINK = Link(deadline_seconds=1.0, give_up_seconds=30.0)
CHAIN = Chain(T.Compose([T.RandomResizedCrop(8)]).samplewise)
ALL = Wanted(np.arange(6), INDEX.ids, 3)
CORRUPT = Complaint("SampleCorrupt", "cut short")
FAILED = Complaint("HeadwaterError", "the store failed; its log says why", retry=True)


def places_of(request: Request) -> list[int]:
    assert isinstance(request, ReadRequest)
    return [int(place) for place in INDEX.position_of(np.frombuffer(request.ids, "<i8"))]


def serve(failing: Mapping[int, Complaint] | None = None, *, done: int = 0) -> Answer:
    """Files with their fields, also where steps were asked for (`done`: as it says); some samples fail."""
    trouble = {} if failing is None else failing

    def answer(server: Understudy, request: Request) -> list[Any]:
        assert isinstance(request, ReadRequest)
        places = places_of(request)
        errors = {at: messages.encode(trouble[p]) for at, p in enumerate(places) if p in trouble}
        files = [None if at in errors else FILES[p] for at, p in enumerate(places)]
        fields = [b"" if at in errors else encode_fields({"number": [p]}, 0) for at, p in enumerate(places)]
        cut = (np.full(len(places), done, FACTS), [b""] * len(places)) if request.cuts else ()
        parcel = Parcel(INDEX.ids[places], files, errors, fields if request.fields else None, *cut)
        return [payloads.pack(parcel, payloads.seal_of(messages.encode(request)))]

    return answer


Pair = tuple[Understudy, Understudy, RemoteStore]


@contextmanager
def opened(*servers: Understudy) -> Iterator[RemoteStore]:
    store = RemoteStore(
        Replicas([server.connect(LINK) for server in servers]),
        Remote("photos", FACTS_OF, {"store": WELCOME}, INDEX),
    )
    yield store
    store.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two replicas; of the first, samples 2 and 5 cannot be had, and it is asked first."""
    with (
        playing(serve({2: CORRUPT, 5: FAILED})) as first,
        playing(serve()) as second,
        opened(first, second) as store,
    ):
        yield first, second, store


def asked_of(server: Understudy) -> list[list[int]]:
    return [places_of(request) for request in server.asked]


@pytest.mark.parametrize("ways", [[], [hw.Offload(2)]], ids=["files", "steps"])
def test_another_is_asked_for_those_alone(pair: Pair, ways: Sequence[hw.Offload]) -> None:
    first, second, store = pair
    wanted = ALL if not ways else Wanted(ALL.positions, ALL.ids, 3, np.zeros(6, np.uint8))
    found = store.reader(CHAIN, ways).fetch(wanted)
    assert [bytes(value) for value in found.values] == FILES
    assert dict(found.fields) == {"number": list(range(6))}
    assert not found.failed
    assert found.bytes_moved == sum(map(len, FILES))
    assert found.done is None or not found.done.any()
    assert (asked_of(first), asked_of(second)) == ([[0, 1, 2, 3, 4, 5]], [[2, 5]])
    if ways:
        assert found.costs is not None
        assert found.costs.bytes.tolist() == list(map(len, FILES))


def test_all_of_a_request_may_fail_at_one(pair: Pair) -> None:
    first, _, store = pair
    first.usual = serve(dict.fromkeys(range(6), CORRUPT))
    assert store.read_fields(np.arange(6)) == {"number": list(range(6))}
    assert [bytes(value) for value in store.read(np.arange(6))] == FILES


def test_what_fails_at_both_costs_one_more_question_and_names_both(pair: Pair) -> None:
    first, second, store = pair
    second.usual = serve({2: Complaint("DatasetStale", "2.jpg is gone")})
    found = store.reader(CHAIN, []).fetch(ALL)
    assert list(found.failed) == [2]
    error = found.failed[2]
    assert isinstance(error, DatasetStale)
    assert error.__notes__ == [
        f"said by store 127.0.0.1:{second.port}",
        f"before that: cut short (said by store 127.0.0.1:{first.port})",
    ]
    assert [bytes(value) for place, value in enumerate(found.values) if place != 2] == FILES[:2] + FILES[3:]
    assert (len(first.asked), len(second.asked)) == (1, 1)


@pytest.mark.parametrize(
    "trouble", [be_gone, stall, complain("Refused", "not you")], ids=["gone", "stalled", "refused"]
)
def test_the_first_error_stands_where_nobody_else_answers(pair: Pair, trouble: Answer) -> None:
    """And it is not waited for as long as for a lost store: here for a second, not for thirty."""
    first, second, store = pair
    second.usual = trouble
    begun = time.monotonic()
    with pytest.raises(SampleCorrupt, match="cut short") as caught:
        store.read(np.array([1, 2]))
    assert time.monotonic() - begun < 1.0 + 0.5  # the deadline, and noticing it
    said, asked = caught.value.__notes__
    assert said == f"said by store 127.0.0.1:{first.port}"
    assert asked.startswith(f"store 127.0.0.1:{second.port} was asked too: ")


@pytest.mark.parametrize("trouble", [be_gone, stall], ids=["gone", "stalled"])
def test_one_that_is_known_to_be_failing_is_not_waited_for_again(pair: Pair, trouble: Answer) -> None:
    first, second, store = pair
    second.usual = trouble
    with pytest.raises(SampleCorrupt, match="cut short"):
        store.read(np.array([2]))
    second.asked.clear()
    begun = time.monotonic()
    prefer(store, 0)  # or it may be asked first, as its rest may be over
    with pytest.raises(SampleCorrupt, match="cut short") as caught:
        store.read(np.array([2]))
    assert time.monotonic() - begun < 0.5
    assert caught.value.__notes__ == [f"said by store 127.0.0.1:{first.port}"]
    assert not second.asked


def prefer(store: RemoteStore, chosen: int) -> None:
    """The next requests go to this replica, as if the others had much to do."""
    for number, replica in enumerate(store.replicas.all):
        replica.under_way += 0 if number == chosen else 1000


def test_one_that_is_set_aside_is_not_asked(pair: Pair) -> None:
    _, second, store = pair
    assert store.replicas.set_aside(store.replicas.all[1], Refused("not you"), time.monotonic())
    begun = time.monotonic()
    with pytest.raises(SampleCorrupt, match="cut short"):
        store.read(np.array([2]))
    assert time.monotonic() - begun < 0.5
    assert not second.asked


STALE = Complaint("DatasetStale", "2.jpg is gone")


@pytest.mark.parametrize("second", [serve({2: STALE}), stall, complain("Refused", "not you")])
def test_of_three_the_third_is_asked_too(second: Answer) -> None:
    with (
        playing(serve({2: CORRUPT})) as a,
        playing(second) as b,
        playing(serve()) as c,
        opened(a, b, c) as store,
    ):
        assert bytes(store.read(np.array([2]))[0]) == FILES[2]
        assert (asked_of(a), asked_of(b)[0], asked_of(c)) == ([[2]], [2], [[2]])


def test_what_fails_at_three_names_all_three_and_asks_each_once() -> None:
    with (
        playing(serve({2: CORRUPT})) as a,
        playing(serve({2: STALE})) as b,
        playing(serve({2: FAILED})) as c,
        opened(a, b, c) as store,
    ):
        with pytest.raises(HeadwaterError, match="the store failed") as caught:
            store.read(np.array([1, 2]))
        assert [asked_of(server) for server in (a, b, c)] == [[[1, 2]], [[2]], [[2]]]
    one, two, three = (f"said by store 127.0.0.1:{server.port}" for server in (a, b, c))
    before = f"before that: 2.jpg is gone ({two}; before that: cut short ({one}))"
    assert caught.value.__notes__ == [three, before]


def test_after_a_lie_each_is_asked_once_for_a_file_that_fails(pair: Pair) -> None:
    first, second, store = pair
    first.usual, second.usual = serve({2: CORRUPT}, done=9), serve({2: STALE})
    reader = store.reader(CHAIN, [hw.Offload(2)])
    liar = rf"^store 127\.0\.0\.1:{first.port}: it went further"
    prefer(store, 0)
    with pytest.warns(UserWarning, match=liar):
        found = reader.fetch(ALL)
    assert list(found.failed) == [2]
    assert (asked_of(first), asked_of(second)) == ([list(range(6))] * 2, [[2]])


def unreadable(server: Understudy, request: Request) -> list[Any]:
    """As a store that writes fields otherwise: what it sends is what it meant to send."""
    assert isinstance(request, ReadRequest)
    places = places_of(request)
    parcel = Parcel(INDEX.ids[places], [FILES[p] for p in places], {}, [b"\xc1"] * len(places))
    return [payloads.pack(parcel, payloads.seal_of(messages.encode(request)))]


def test_fields_that_cannot_be_read_are_an_error_of_the_sample(pair: Pair) -> None:
    first, second, store = pair
    first.usual = unreadable
    assert store.read_fields(np.array([3])) == {"number": [3]}
    second.usual = unreadable
    with pytest.raises(SampleError, match="fields that cannot be read"):
        store.read_fields(np.array([3]))


def test_a_failure_of_the_link_does_not_make_a_failure_of_the_sample(pair: Pair) -> None:
    _, second, store = pair
    second.script.extend([be_gone] * 3)
    assert bytes(store.read(np.array([2]))[0]) == FILES[2]
    assert len(second.asked) == 4


def test_a_single_store_is_asked_once(pair: Pair) -> None:
    first, _, store = pair
    alone = RemoteStore(Replicas([first.connect(LINK)]), store.known)
    with pytest.raises(HeadwaterError, match="the store failed") as caught:
        alone.read(np.array([5]))
    alone.close()
    assert caught.value.__notes__ == [f"said by store 127.0.0.1:{first.port}"]
    assert len(first.asked) == 1


@pytest.fixture(scope="module")
def torn(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two real stores of the same photos; at each the files of one class are gone since it began."""
    root = tmp_path_factory.mktemp("torn")
    copies = [Path(shutil.copytree(photo_folder, root / f"{number}")) for number in range(2)]
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        made = [running_daemon({"photos": copy}) for copy in copies]
        daemons = list(pool.map(stack.enter_context, made))
        for copy, part in zip(copies, ("ant", "bee"), strict=True):
            shutil.rmtree(copy / part)
        yield [daemon.serving.address for daemon in daemons]


@pytest.mark.slow
@pytest.mark.parametrize("offload", [None, hw.Offload(3), hw.Offload(2, "jpeg")], ids=str)
def test_files_that_are_gone_at_one_real_store_each(
    photo_folder: Path, torn: list[str], offload: hw.Offload | None
) -> None:
    with closing(hw.open(torn, progress=False)) as data:
        for ours, true in zip(load(data, offload), load(hw.open(photo_folder), None), strict=True):
            assert torch.equal(ours.ids, true.ids)
            assert torch.equal(ours.inputs, true.inputs)


def load(data: hw.Dataset, offload: hw.Offload | None) -> hw.DataLoader:
    steps = T.Compose([T.RandomResizedCrop(16)])
    return hw.DataLoader(data, steps, batch_size=8, shuffle=True, seed=1, num_workers=2, offload=offload)
