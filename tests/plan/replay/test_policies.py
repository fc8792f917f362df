"""When a step is computed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.plan.replay import Adaptive, Curvature, Fitted, Published, lbfgs, secants
from headwater.plan.replay.curvature import Form
from headwater.plan.replay.spacing import Outlook


def outlook(error: float, fresh: float = 0.0) -> Outlook:
    """So much will be left in the end, and every prediction adds so much to its square."""
    return Outlook(error, np.array([fresh]), np.zeros(1), steps=100)


def run(policy: Adaptive | Published, errors: list[float], steps: int = 200) -> list[int]:
    """Steps that are computed, if the errors come one after the other and the last stays."""
    decider, exact = policy.begin(), []
    for step in range(1, steps):
        if decider.exact(step):
            decider.observe(outlook(errors[min(len(exact), len(errors) - 1)]))
            exact.append(step)
    return exact


def form_of(curvature: Curvature) -> Form:
    assert isinstance(curvature, Fitted)
    return curvature.form


def test_the_published_rule() -> None:
    assert run(Published(period=5, burn_in=10), [9.0], steps=32) == [*range(1, 11), 15, 20, 25, 30]


def test_a_period_of_one_computes_everything() -> None:
    assert run(Published(period=1, burn_in=0), [0.0], steps=20) == list(range(1, 20))


def test_the_published_rule_predicts_as_published() -> None:
    for noisy in (False, True):
        assert form_of(Published().curvature(noisy=noisy, convex=True)) is lbfgs
    assert not Published().informed


def test_small_errors_lengthen_the_period() -> None:
    exact = run(Adaptive(tolerance=0.01, burn_in=4, longest=20), [0.0])
    gaps = [after - before for before, after in pairwise(exact)]
    assert exact[:5] == [1, 2, 3, 4, 6]
    assert gaps == sorted(gaps)
    assert max(gaps) == 20


def test_large_errors_shorten_it_and_end_in_computing_everything() -> None:
    policy = Adaptive(tolerance=0.01)
    exact = run(policy, [0.0] * 12 + [0.5], steps=400)
    gaps = [after - before for before, after in pairwise(exact)]
    assert max(gaps) > 5
    assert gaps[-1] == 1


def test_the_longest_period_that_keeps_the_tolerance_stands() -> None:
    decider, asked = Adaptive(tolerance=0.01, burn_in=0).begin(), []
    for step in range(1, 100):
        asked.append(decider.exact(step))
        if asked[-1]:
            decider.observe(outlook(0.0, fresh=1e-7))
    gaps = np.diff(np.flatnonzero(asked))
    # (T - 1)^2 / T * 100 * 1e-7 is to be the square of 0.85 * 0.01
    assert set(gaps[-5:].tolist()) <= {8, 9}


def test_one_batch_that_is_far_off_is_not_believed_at_once() -> None:
    periods = []
    for heard in (0, 1, 20):
        decider, step = Adaptive(tolerance=0.01, burn_in=0).begin(), 0
        for fresh in [1e-7] * 30 + [1e-6] * heard:
            step = next(each for each in range(step + 1, step + 20) if decider.exact(each))
            decider.observe(outlook(0.0, fresh=fresh))
        periods.append(next(each for each in range(1, 20) if decider.exact(step + each)))
    assert periods[0] > periods[1] > periods[2]


def test_it_is_futile_where_everything_is_computed_for_long() -> None:
    policy = Adaptive(tolerance=0.01, burn_in=2)
    decider = policy.begin()
    for step in range(1, 10):
        assert decider.exact(step) or step > 2
        decider.observe(outlook(1.0))
    assert not decider.futile
    for step in range(10, 40):
        if decider.exact(step):
            decider.observe(outlook(1.0))
    assert decider.futile
    assert not Published(1, 0).begin().futile


def test_a_tolerance_is_kept_with_all_that_is_known() -> None:
    for noisy in (False, True):
        assert form_of(Adaptive().curvature(noisy=noisy, convex=True)) is secants
        assert form_of(Adaptive().curvature(noisy=noisy, convex=False)) is lbfgs
    assert Adaptive().informed


def test_a_step_of_which_nothing_is_known_is_computed() -> None:
    decider = Adaptive(burn_in=2, longest=10).begin()
    assert [decider.exact(step, 0.0) for step in range(1, 5)] == [True, True, False, True]
    for _ in range(8):
        decider.observe(outlook(0.0))
    assert [decider.exact(step, 0.5 if step == 7 else 0.1) for step in range(5, 9)] == [
        False,
        False,
        True,
        False,
    ]
    assert not Published(5, 0).begin().exact(1, 1.0)


def test_it_is_futile_where_nothing_is_ever_known() -> None:
    decider = Adaptive(burn_in=2).begin()
    for step in range(1, 40):
        assert decider.exact(step, 1.0)
        decider.observe(outlook(0.0))
    assert decider.futile


@pytest.mark.parametrize("tolerance", [0.0, 1.0, float("nan")])
def test_tolerances_that_cannot_be(tolerance: float) -> None:
    with pytest.raises(WrongUse, match="between 0 and 1"):
        Adaptive(tolerance)


def test_periods_that_cannot_be() -> None:
    with pytest.raises(WrongUse, match="at least 1"):
        Published(period=0)
