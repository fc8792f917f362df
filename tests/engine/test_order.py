"""Every sample once, on all ranks in equally many steps, from any start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.order import Order
from headwater.engine.permutation import Identity, Shuffled
from headwater.errors import WrongUse


def ranks(
    count: int, batch_size: int, world_size: int, start: int = 0, drop_last: bool = False
) -> list[Order]:
    return [
        Order(
            Shuffled(count, 3), batch_size, start=start, drop_last=drop_last, rank=rank, world_size=world_size
        )
        for rank in range(world_size)
    ]


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 9), st.data())
def test_every_sample_once_in_equal_steps(count: int, batch: int, world: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, count - 1))
    if count - start < world:
        with pytest.raises(WrongUse, match="are left for"):
            ranks(count, batch, world, start)
        return
    orders = ranks(count, batch, world, start)
    taken = [order.take(step) for step in range(orders[0].steps) for order in orders]
    assert all(1 <= len(part) <= batch + 1 for part in taken)
    assert np.array_equal(np.sort(np.concatenate(taken)), np.sort(Shuffled(count, 3).take(start, count)))
    assert all(len(part) == batch for part in taken[: -2 * world])


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 9))
def test_drop_last_gives_full_batches_only(count: int, batch: int, world: int) -> None:
    orders = ranks(count, batch, world, drop_last=True)
    assert orders[0].steps == count // (batch * world)
    taken = [order.take(step) for step in range(orders[0].steps) for order in orders]
    assert all(len(part) == batch for part in taken)
    assert len(np.unique(np.concatenate([*taken, []]))) == orders[0].steps * batch * world


@settings(max_examples=200, deadline=None)
@given(
    st.integers(20, 300), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 8)), min_size=2, max_size=5)
)
def test_going_on_with_other_ranks_leaves_nothing_out(count: int, phases: list[tuple[int, int]]) -> None:
    start, taken = 0, []
    for number, (world, batch) in enumerate(phases):
        if count - start < world:
            break
        orders = ranks(count, batch, world, start)
        steps = orders[0].steps if number == len(phases) - 1 else min(2, orders[0].steps)
        taken += [order.take(step) for step in range(steps) for order in orders]
        start = orders[0].start_after(steps)
        if start == count:
            break
    seen = np.concatenate(taken)
    assert np.array_equal(np.sort(seen), np.sort(Shuffled(count, 3).take(0, start)))


def test_one_global_batch_gives_one_global_order() -> None:
    one = np.concatenate([order.take(step) for order in ranks(64, 8, 1) for step in range(8)])
    four = ranks(64, 2, 4)
    assert np.array_equal(one, np.concatenate([order.take(step) for step in range(8) for order in four]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"batch_size": 0}, "batch_size"), ({"rank": 2, "world_size": 2}, "rank"), ({"start": 11}, "start")],
)
def test_wrong_arguments_are_named(arguments: dict[str, int], words: str) -> None:
    with pytest.raises(WrongUse, match=words):
        Order(Identity(10), **{"batch_size": 2, **arguments})  # type: ignore[arg-type]
