"""Which samples try which way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.loader.explorer import _ASKED, _FIRST, ENOUGH, Explorer
from headwater.measure.profile import Seen
from headwater.plan.offload import Offload

WAYS = (Offload(0), Offload(1), Offload(2, "jpeg"), Offload(3, "jxl1"))
EVERYTHING = np.ones(len(WAYS), np.bool_)


def seen(ways: NDArray[np.uint8]) -> Seen:
    count = len(ways)
    seconds = np.zeros(count, np.float32)
    return Seen(
        positions=np.arange(count),
        ids=np.arange(count),
        epoch=0,
        ways=ways,
        done=np.ones(count, np.bool_),
        bytes=np.ones(count, np.int64),
        store_seconds=seconds,
        trainer_seconds=seconds,
        sizes=np.zeros((count, 2), np.int32),
        able=np.ones(count, np.bool_),
        file_bytes=np.ones(count, np.int64),
    )


def at(site: int, count: int) -> NDArray[np.intp]:
    return np.full(count, site, np.intp)


def nothing() -> NDArray[np.int64]:
    return np.zeros(4, np.int64)


def begun(possible: list[NDArray[np.bool_]], cores: list[float]) -> Explorer:
    """One whose next call tries ways."""
    explorer = Explorer(WAYS, possible, cores)
    for _ in range(_FIRST - 1):
        assert not explorer.take(at(0, 80), nothing()).any()
    return explorer


def test_codecs_come_first_and_every_second_call_is_for_files() -> None:
    explorer = begun([EVERYTHING], [1.0])
    ways = explorer.take(at(0, 80), nothing())
    assert ways[::2].tolist() == [2] * _ASKED + [3] * _ASKED + [1] * _ASKED + [0] * (40 - 3 * _ASKED)
    assert not ways[1::2].any()
    explorer.came(seen(ways))
    assert not explorer.take(at(0, 80), nothing()).any()
    assert explorer.take(at(0, 80), nothing()).any()


def test_a_store_with_little_cpu_is_asked_less() -> None:
    explorer = begun([EVERYTHING], [0.1])
    ways = explorer.take(at(0, 30), nothing())
    assert np.flatnonzero(ways).tolist() == [0, 10, 20]


def test_each_way_is_asked_for_often_enough_and_not_more() -> None:
    explorer = begun([EVERYTHING], [1.0])
    ways = explorer.take(at(0, 1000), nothing())
    assert np.bincount(ways).tolist()[1:] == [_ASKED] * 3
    assert not explorer.done(nothing())  # they are under way
    explorer.came(seen(ways))
    assert explorer.done(np.array([0, ENOUGH, ENOUGH, ENOUGH]))


def test_what_was_pushed_back_is_asked_for_again_but_not_for_ever() -> None:
    explorer, asked = Explorer(WAYS, [EVERYTHING], [1.0]), 0
    for _ in range(40):
        ways = explorer.take(at(0, 100), nothing())
        asked += int((ways > 0).sum())
        explorer.came(seen(ways))
    assert asked == 3 * 4 * _ASKED
    assert explorer.done(nothing())


def test_a_store_is_not_asked_for_what_it_lacks() -> None:
    lacking = np.array([True, False, True, False])
    explorer = begun([lacking, EVERYTHING], [1.0, 1.0])
    both = np.concatenate([at(0, 50), at(1, 50)])
    ways = explorer.take(both, nothing())
    assert set(ways[:50].tolist()) == {0, 2}
    assert set(ways[50:].tolist()) == {0, 1, 3}  # enough of 2 are under way


def test_a_way_that_no_store_has_is_not_waited_for() -> None:
    explorer = Explorer(WAYS, [np.array([True, False, False, False])], [1.0])
    assert explorer.done(nothing())
    assert not explorer.take(at(0, 10), nothing()).any()


def test_what_an_earlier_run_knows_is_not_tried() -> None:
    explorer = begun([EVERYTHING], [1.0])
    known = np.array([0, _ASKED, 0, _ASKED])
    assert set(explorer.take(at(0, 20), known).tolist()) == {0, 2}
