"""Crops that were made to score samples: held while somebody asks for such, within bytes, and given once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headwater import transforms as T
from headwater.data.image import Limits
from headwater.store.server.chunk import Done
from headwater.store.server.crops import Crops, Tray, Way

PIPELINE = T.Compose([T.RandomCrop(4), T.RandomHorizontalFlip()]).samplewise
SEED, EDGE = 3, 4
SIZE = EDGE * EDGE * 3 + 8
IDS = np.arange(10, dtype=np.int64)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def crops(clock: Clock) -> Crops:
    return Crops(5 * SIZE, clock=clock)


def way(cut: int = 2, version: str = "one") -> Way:
    return Way.of(version, PIPELINE, cut, SEED)


def opened(crops: Crops, epoch: int, version: str = "one") -> Tray | None:
    return crops.open(version, PIPELINE, seed=SEED, epoch=epoch, limits=Limits())


def made(ids: np.ndarray) -> Done:
    count = len(ids)
    return Done(
        payloads=[memoryview(np.full(EDGE * EDGE * 3, id, np.uint8)) for id in ids.tolist()],
        shapes=np.full((count, 3), (EDGE, EDGE, 3), np.int32),
        source_sizes=np.full((count, 2), (20, 30), np.int32),
        orientations=np.full(count, 6, np.uint8),
        seconds=np.full(count, 0.25, np.float32),
        drawn=[b"%8d" % id for id in ids.tolist()],
    )


def filled(crops: Crops, epoch: int, ids: np.ndarray = IDS[:3], version: str = "one") -> Tray:
    crops.wish(way(version=version), epoch - 1, 5)
    tray = opened(crops, epoch, version)
    assert tray is not None
    tray.put(ids, made(ids))
    return tray


def test_what_was_held_is_given_once_with_all_that_is_sent_of_it(crops: Crops) -> None:
    filled(crops, 4)
    assert crops.nbytes == 3 * SIZE
    assert crops.take(way(), 5, [1]) == crops.take(way(1), 4, [1]) == crops.take(way(), 4, [7]) == {}
    found = crops.take(way(), 4, [1, 7])
    assert list(found) == [1]
    pixels, *facts = found[1]
    assert np.array_equal(pixels, np.full((EDGE, EDGE, 3), 1, np.uint8))
    assert facts == [(20, 30), 6, b"       1", 0.25]
    assert crops.take(way(), 4, [1]) == {}
    assert crops.nbytes == 2 * SIZE


def test_only_the_chosen_ones_stay(crops: Crops) -> None:
    tray = filled(crops, 4)
    assert tray.keep(np.array([2, 9])) == 1
    assert list(crops.take(way(), 4, IDS.tolist())) == [2]


def test_those_of_a_selection_that_came_to_nothing_go(crops: Crops) -> None:
    tray = filled(crops, 4)
    filled(crops, 5, IDS[:1])
    tray.drop()
    tray.drop()
    assert crops.take(way(), 4, [0]) == {}
    assert crops.nbytes == SIZE


def test_nothing_is_held_that_nobody_asks_for(crops: Crops) -> None:
    """Neither where files are asked for, nor long after, nor by other steps, another seed or version."""
    assert opened(crops, 4) is None
    crops.wish(way(), 4, 1)
    assert opened(crops, 4) is not None
    assert opened(crops, 6) is not None
    assert opened(crops, 7) is None
    assert opened(crops, 3) is None
    assert opened(crops, 5, "two") is None
    assert crops.open("one", PIPELINE, seed=SEED + 1, epoch=5, limits=Limits()) is None
    other = T.Compose([T.RandomCrop(5)]).samplewise
    assert crops.open("one", other, seed=SEED, epoch=5, limits=Limits()) is None


def test_the_cut_is_the_one_that_most_are_asked_for_at(crops: Crops) -> None:
    crops.wish(way(3), 1, 90)  # an epoch before
    crops.wish(way(2), 1, 10)
    for count in (20, 20):
        crops.wish(way(2), 2, count)
    crops.wish(way(3), 2, 30)
    tray = opened(crops, 3)
    assert tray is not None
    assert tray.cut == 2


def test_bytes_are_bounded_and_those_that_nobody_came_for_go_first(crops: Crops, clock: Clock) -> None:
    filled(crops, 4)
    filled(crops, 4, version="two")
    assert crops.nbytes == 5 * SIZE
    clock.now = 100.0
    crops.take(way(version="two"), 4, [])  # which somebody comes for
    filled(crops, 4, version="three")
    assert crops.take(way(), 4, [0]) == {}
    assert len(crops.take(way(version="three"), 4, IDS.tolist())) == 3
    assert len(crops.take(way(version="two"), 4, IDS.tolist())) == 2
    assert crops.nbytes == 0


def test_those_of_epochs_that_are_over_go(crops: Crops) -> None:
    for epoch in (4, 5, 6):
        filled(crops, epoch, IDS[:1])
    assert [len(crops.take(way(), epoch, [0])) for epoch in (4, 5, 6)] == [0, 1, 1]


def test_tighter_limits_are_kept(crops: Crops) -> None:
    filled(crops, 4)
    tight = replace(Limits(), pixels=10)
    assert crops.take(way(), 4, [0], limits=tight) == {}
    assert len(crops.take(way(), 4, [0], limits=replace(Limits(), pixels=1 << 40))) == 1


def test_what_is_made_again_is_held_once(crops: Crops) -> None:
    tray = filled(crops, 4)
    tray.put(IDS[:3], made(IDS[:3]))
    assert crops.nbytes == 3 * SIZE


def test_what_is_forgotten_is_not_held(crops: Crops) -> None:
    filled(crops, 4)
    filled(crops, 5, IDS[:2])
    assert crops.forget(np.array([1, 8])) == 2
    assert list(crops.take(way(), 4, IDS.tolist())) == [0, 2]


def test_a_client_cannot_fill_the_memory_with_wishes(crops: Crops) -> None:
    crops.wish(way(), 0, 1)
    for number in range(1000):
        crops.wish(way(version=str(number)), 0, 1)
    assert opened(crops, 1) is None
    assert opened(crops, 1, "999") is not None
