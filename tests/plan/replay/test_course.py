"""A replay under way, on a quadratic that is known."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.plan.replay import Adaptive, Course, Inertia, Published, ReplayPlan

SIZE, RATE = 8, 0.2
SCALES = np.linspace(0.05, 1.0, SIZE)


def descend(course: Course | None, steps: int = 120) -> tuple[np.ndarray, int]:
    """An offset that a constant force drives, and how often the curvature was asked for."""
    offset, computed = np.zeros(SIZE, np.float32), 0
    for step in range(steps):
        if step == 0:
            change = np.zeros(SIZE, np.float32)
        elif course is None or course.next_is_exact(offset):
            computed += 1
            change = (SCALES * offset).astype(np.float32)
            if course is not None:
                course.learn(offset, change, RATE, ahead=RATE * (steps - 1 - step))
        else:
            change = course.predict(offset, RATE)
        offset = offset - np.float32(RATE) * (change + 1)
    return offset, computed


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("tolerance", [0.1, 0.01])
def test_the_tolerance_is_kept_with_fewer_computed_steps(noisy: bool, tolerance: float) -> None:
    course = Course(Adaptive(tolerance), Inertia(), size=SIZE, noisy=noisy)
    found, computed = descend(course)
    exact, _ = descend(None)
    assert np.linalg.norm(found - exact) < tolerance * np.linalg.norm(exact)
    assert computed < 80


def test_what_is_not_asked_for_is_not_informed() -> None:
    assert not Course(Published(), Inertia(), size=SIZE, noisy=True).informed
    assert Course(Adaptive(), Inertia(), size=SIZE, noisy=True).informed


def test_the_estimate_is_of_the_size_of_the_error() -> None:
    course = Course(Published(12, 2), Inertia(), size=SIZE, noisy=True)
    found, _ = descend(course)
    exact, _ = descend(None)
    error = float(np.linalg.norm(found - exact))
    assert error / 3 < course.error < 30 * error


@pytest.mark.parametrize(("ahead", "computed"), [(0.0, True), (1000.0, False)])
def test_what_steps_to_come_pull_back_may_be_off_now(ahead: float, computed: bool) -> None:
    """Predictions that are always off: every step is computed in the end, and few of them long before it."""
    course = Course(Adaptive(0.01, burn_in=2, longest=4), Inertia(decay=0.1), size=SIZE, noisy=False)
    rng, offset, found = np.random.default_rng(0), np.ones(SIZE, np.float32), []
    for _ in range(16):
        found.append(course.next_is_exact(offset))
        if found[-1]:
            course.learn(offset, rng.uniform(0.1, 2, SIZE).astype(np.float32), 0.2, ahead=ahead)
        else:
            course.predict(offset, 0.2)
    assert all(found[-4:]) == computed


def test_a_new_direction_is_computed_unless_the_policy_is_blind() -> None:
    one, other = np.eye(SIZE, dtype=np.float32)[:2]
    for policy, expected in ((Adaptive(burn_in=1), True), (Published(10, 1), False)):
        course = Course(policy, Inertia(), size=SIZE, noisy=True)
        assert course.next_is_exact(one)
        course.learn(one, one, 0.1)
        assert course.next_is_exact(other) == expected


def test_nothing_is_asked_of_a_policy_before_the_first_change() -> None:
    course = Course(Published(5, 3), Inertia(), size=SIZE, noisy=False)
    assert [course.next_is_exact(np.ones(SIZE, np.float32)) for _ in range(9)] == [True] * 3 + [False] * 4 + [
        True,
        False,
    ]


def test_a_plan_says_what_was_done() -> None:
    plan = ReplayPlan(steps=100, first=10, exact=tuple(range(10, 40)), error=0.004)
    assert plan.approximate == 60
    assert str(plan) == (
        "the first 10 steps saw none of them, 30 computed, 60 approximated; "
        "estimated error 0.004 of the change"
    )
    assert "none of 100 steps" in str(ReplayPlan(100, 100, (), 0.0))
