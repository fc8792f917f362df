"""How far apart computed steps may be."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.plan.replay.spacing import Outlook, best_period

PULL, STEPS = 0.02, 200


def look(left: float = 0.0, fresh: float = 1e-5, steps: float = STEPS, pull: float = PULL) -> Outlook:
    return Outlook(left, np.array([0.6, 0.4]) * fresh, np.full(2, pull), steps)


def walk(outlook: Outlook, allowed: float, longest: int) -> tuple[list[int], float]:
    """All periods to the end if nothing unexpected comes, and the error in the end."""
    periods, square, steps, fresh = [], outlook.left**2, outlook.steps, float(outlook.fresh.sum())
    while steps >= 1:
        left = float(np.sqrt(square))
        periods.append(best_period(look(left, fresh, steps), allowed, longest))
        square += (periods[-1] - 1) ** 2 * fresh * np.exp(-2 * PULL * steps)
        steps -= periods[-1]
    return periods, float(np.sqrt(square))


@pytest.mark.parametrize("allowed", [0.01, 0.02, 0.03])
def test_what_is_allowed_is_used_and_not_passed(allowed: float) -> None:
    periods, error = walk(look(), allowed, longest=1000)
    assert 0.6 * allowed < error < 1.1 * allowed
    assert periods[0] == max(periods) > periods[-1]


def test_no_even_period_costs_as_little_for_the_same_error() -> None:
    periods, error = walk(look(), 0.03, longest=1000)
    places = np.arange(STEPS)
    for period in range(2, 100):
        square = (period - 1) ** 2 / period * 1e-5 * np.exp(-2 * PULL * places).sum()
        if np.sqrt(square) <= error:
            assert STEPS / period > 1.2 * len(periods)


def test_more_room_less_noise_and_more_pull_lengthen_it() -> None:
    base = best_period(look(), 0.03, 1000)
    assert best_period(look(left=0.02), 0.03, 1000) < base
    assert best_period(look(fresh=1e-4), 0.03, 1000) < base
    assert best_period(look(pull=0.04), 0.03, 1000) > base
    assert best_period(look(), 0.06, 1000) > base > 1


def test_there_is_a_longest_and_a_shortest() -> None:
    assert best_period(look(fresh=0.0), 0.03, 7) == 7
    assert best_period(look(left=0.03), 0.03, 7) == 1
    assert best_period(look(fresh=100.0), 0.03, 7) == 1
    assert best_period(look(steps=0.0), 0.03, 7) == 1


def test_shares_of_a_length() -> None:
    over = look(left=0.4).over(2.0)
    assert over.left == 0.2
    np.testing.assert_allclose(over.fresh, look().fresh / 4)
