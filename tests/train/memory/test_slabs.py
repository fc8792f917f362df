"""Host memory in slabs."""

from __future__ import annotations

import logging

import pytest
import torch

from headwater.train.memory.places import FreeList
from headwater.train.memory.slabs import Slabs

PAGE = 4096


def test_the_first_place_that_fits_is_taken_and_neighbours_become_one() -> None:
    places = FreeList()
    places.give(0, 10)
    assert [places.take(3), places.take(3), places.take(4), places.take(1)] == [0, 3, 6, None]
    places.give(6, 4)
    places.give(0, 3)
    assert places.take(5) is None
    places.give(3, 3)
    assert places.free == 10
    assert places.take(10) == 0


def test_places_are_used_again_before_another_slab_is_made() -> None:
    slabs = Slabs(16 * PAGE, pinned=False, slab=4 * PAGE)
    one, two = slabs.reserve(3 * PAGE), slabs.reserve(PAGE)
    assert one is not None
    assert two is not None
    assert (one.slab, two.slab, slabs.taken) == (0, 0, 4 * PAGE)
    other = slabs.reserve(10)
    assert other is not None
    assert (other.slab, other.size, other.room, slabs.taken) == (1, 10, PAGE, 8 * PAGE)
    slabs.release(one)
    assert slabs.used == 2 * PAGE
    again = slabs.reserve(2 * PAGE + 1)
    assert again is not None
    assert (again.slab, again.offset, slabs.taken) == (0, 0, 8 * PAGE)


def test_no_more_than_the_limit_is_taken() -> None:
    slabs = Slabs(7 * PAGE, pinned=False, slab=4 * PAGE)
    assert slabs.reserve(4 * PAGE) is not None
    assert slabs.reserve(3 * PAGE) is None, "a slab is a power of two"
    assert slabs.reserve(2 * PAGE) is not None
    assert slabs.reserve(PAGE) is not None
    assert slabs.reserve(1) is None
    assert slabs.taken == 7 * PAGE
    assert Slabs(0, pinned=False).reserve(1) is None


def test_a_slab_is_as_large_as_what_is_asked_for() -> None:
    slabs = Slabs(64 * PAGE, pinned=False, slab=PAGE)
    large = slabs.reserve(9 * PAGE)
    assert large is not None
    assert slabs.taken == 16 * PAGE


def test_places_are_apart() -> None:
    slabs = Slabs(16 * PAGE, pinned=False, slab=4 * PAGE)
    extents = [slabs.reserve(size) for size in (100, 5000, PAGE, 9000, 1)]
    for value, extent in enumerate(extents):
        assert extent is not None
        slabs.view(extent).fill_(value)
    for value, extent in enumerate(extents):
        assert extent is not None
        view = slabs.view(extent)
        assert len(view) == extent.size
        assert bool((view == value).all())
    slabs.close()
    assert slabs.taken == 0


@pytest.mark.skipif(torch.accelerator.is_available(), reason="memory can be pinned here")
def test_memory_that_cannot_be_pinned_is_said_once_and_not_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slabs = Slabs(2**20, pinned=True)
    with caplog.at_level(logging.WARNING):
        assert slabs.reserve(10) is None
        assert slabs.reserve(10) is None
    assert len(caplog.records) == 1
    slabs.close()
