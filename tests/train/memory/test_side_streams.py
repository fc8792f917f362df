"""What waits for what, on a device that is behind its host. A copy takes a second there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headwater.train.memory.hosttier import HostTier
from headwater.train.memory.sidestream import SideStream
from headwater.train.memory.slabs import Slabs
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.stagedtier import StagedTier
from headwater.train.memory.streams import Clock, Streams
from lagging import Lagging, Stream

CPU = torch.device("cpu")
SIZE = 2**17


@pytest.fixture
def device() -> Lagging:
    return Lagging()


@pytest.fixture
def tier(device: Lagging, tmp_path: Path) -> Iterator[HostTier]:
    streams = Streams(CPU, device)
    staged = StagedTier(SpillFile(tmp_path), streams, pinned=False, piece=SIZE // 2)
    made = HostTier(Slabs(SIZE, pinned=False, slab=SIZE), staged, streams)
    yield made
    made.close()


def content(seed: int = 0) -> torch.Tensor:
    return torch.randint(256, [SIZE], dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_a_copy_begins_after_what_was_computed_and_computing_goes_on(device: Lagging, tier: HostTier) -> None:
    device.compute(5)
    copy = tier.write(tier.reserve(SIZE), content())
    device.compute(3)
    here = device.current_stream(CPU)
    assert here.time == 8, "nobody waits"
    for now, done in ((5, False), (5.5, False), (6, True)):
        device.now = now
        assert copy.done == done
    assert device.waits == 0


def test_who_waits_is_the_stream_and_never_the_host(device: Lagging, tier: HostTier) -> None:
    device.compute(5)
    copy = tier.write(tier.reserve(SIZE), content())
    copy.wait()
    assert device.current_stream(CPU).time == 6
    assert copy.done, "what is computed next comes after it"
    assert (device.waits, device.now) == (0, 0)


def test_how_late_a_fetch_was_is_known_when_the_device_got_there(device: Lagging, tier: HostTier) -> None:
    extent = tier.reserve(SIZE)
    tier.write(extent, content()).wait()
    for ahead, expected in ((0.25, 0.75), (4.0, 0.0)):
        found, fetch = tier.read(extent, CPU)
        device.compute(ahead)
        fetch.wait()
        assert fetch.waited is None
        device.now = 100
        assert fetch.waited == expected
        device.now = 0
        assert torch.equal(found, content())


def test_a_fetch_comes_after_the_copy_that_it_brings_back(device: Lagging, tier: HostTier) -> None:
    """Also where the program went on in another stream, that has nothing to do with the first."""
    extent = tier.reserve(SIZE)
    device.compute(5)
    tier.write(extent, content()).wait()
    with device.computing_on(Stream(CPU)):
        assert device.current_stream(CPU).time == 0
        _, fetch = tier.read(extent, CPU)
        fetch.wait()
        assert device.current_stream(CPU).time == 7


def test_a_place_is_written_again_after_it_was_read(device: Lagging, tier: HostTier) -> None:
    extent = tier.reserve(SIZE)
    tier.write(extent, content()).wait()
    device.compute(5)
    tier.read(extent, CPU)[1].wait()  # until 7
    tier.release(extent)
    with device.computing_on(Stream(CPU)):
        again = tier.reserve(SIZE)
        assert (again.slab, again.offset) == (extent.slab, extent.offset)
        copy = tier.write(again, content())
        for now, done in ((7.5, False), (8, True)):
            device.now = now
            assert copy.done == done


def test_a_tensor_that_is_fetched_in_one_stream_may_be_used_in_another(
    device: Lagging, tier: HostTier
) -> None:
    """Both wait: one uses it, the other owns the memory."""
    extent = tier.reserve(SIZE)
    tier.write(extent, content()).wait()
    here, other = device.current_stream(CPU), Stream(CPU)
    _, fetch = tier.read(extent, CPU)
    with device.computing_on(other):
        fetch.wait()
    assert here.time == other.time == 2


def test_a_tensor_is_held_until_it_is_out(device: Lagging, tier: HostTier) -> None:
    tensor = content()
    storage = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    copy = tier.write(tier.reserve(SIZE), tensor)
    del tensor
    tier.rates  # noqa: B018
    assert not storage.expired()  # type: ignore[no-untyped-call]
    copy.wait()
    assert storage.expired()  # type: ignore[no-untyped-call]


def test_rates_are_of_the_devices_time(device: Lagging) -> None:
    side = SideStream(Streams(CPU, device))
    first = side.rate
    for _ in range(50):
        side.carry(torch.empty(SIZE, dtype=torch.uint8), content(), hold=content())
        assert side.rate == first, "nothing is done yet"
    device.now = 100
    assert side.rate == pytest.approx(SIZE, rel=1e-2, abs=first * 0.8**50)


def test_a_file_takes_what_host_memory_does_not(device: Lagging, tier: HostTier) -> None:
    near, far = tier.reserve(SIZE), tier.reserve(SIZE)
    assert (near.in_file, far.in_file) == (False, True)
    device.compute(5)
    tier.write(far, content(1)).wait()
    assert device.now == 7, "its thread waited for two pieces, after what was computed"
    tier.write(near, content(2)).wait()
    found, fetch = tier.read(far, CPU)
    version = found._version
    fetch.wait()
    assert torch.equal(found, content(1))
    assert found._version == version
    assert fetch.waited is not None, "the host waited, and knows"
    found, fetch = tier.read(near, CPU)
    fetch.wait()
    assert torch.equal(found, content(2))


def test_a_clock_waits_for_the_device_only_while_it_is_to_be_exact(device: Lagging) -> None:
    clock = Clock(Streams(CPU, device))
    device.compute(5)
    begin = clock()
    assert (device.now, clock.sure) == (5, True)
    assert clock.since(begin) < 60
    clock.exact = False
    device.compute(5)
    assert clock.since(clock()) == float("inf")
    assert (device.now, clock.sure) == (5, False)
    plain = Clock(Streams(CPU))
    plain.exact = False
    assert plain.sure
    assert plain.since(plain()) < 60
