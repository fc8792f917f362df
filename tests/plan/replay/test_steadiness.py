"""Errors that die away, and errors that steps blow up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater.plan.replay import Inertia, carry, swelling

STEPS = 300
STEADY = {
    "the same": lambda step: 1.0,
    "falling": lambda step: 2.0 * (1 - step / STEPS),
    "in two parts": lambda step: 2.0 if step < STEPS / 2 else 0.05,
    "rising at first": lambda step: min(2.0, 0.1 * (step + 1)),
    "up and down": lambda step: 0.1 + 1.9 * abs(step % 60 - 30) / 30,
    "begun again": lambda step: 1 + math.cos(math.pi * (step % 50) / 50),
}


def rates_of(rule: object) -> NDArray[np.float64]:
    return np.array([rule(step) for step in range(STEPS)])  # type: ignore[operator]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rule", STEADY)
def test_usual_rates_let_errors_die_away(rule: str, momentum: float) -> None:
    assert swelling(rates_of(STEADY[rule]), Inertia(momentum, 1e-3), 0.5) < 1.5


@pytest.mark.parametrize(("low", "every", "high"), [(0.01, 50, 5), (0.05, 20, 3)])
def test_velocity_that_is_let_go_at_once_blows_errors_up(low: float, every: int, high: int) -> None:
    rates = rates_of(lambda step: 2.0 if step % every < high else low)
    assert swelling(rates, Inertia(0.9, 1e-3), 0.3) > 10
    assert swelling(rates, Inertia(0.0, 1e-3), 0.3) < 1.5, "without momentum there is no velocity"


def test_a_rate_that_is_too_high_for_the_loss_blows_errors_up() -> None:
    assert swelling(np.full(STEPS, 1.0), Inertia(0.9), 3.7) < 3
    assert swelling(np.full(STEPS, 1.0), Inertia(0.9), 4.0) > 100


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_a_force_comes_to_is_what_descent_makes_of_it(momentum: float) -> None:
    """On a line that does not bend a force moves weights by its reach; on a parabola as steps say."""
    rates = rates_of(STEADY["up and down"])

    def push(at: int, bend: float) -> float:
        place, speed = 0.0, 0.0
        for step, rate in enumerate(rates):
            speed = momentum * speed + bend * place + (step == at)
            place -= rate * speed
        return abs(place)

    reaches = carry(rates, momentum) / (1 - momentum)
    for at in (0, 10, 200):
        assert push(at, 0.0) == pytest.approx(reaches[at], rel=1e-2)
    bend = 1.5
    expected = max(
        push(at, each) / reaches[at]
        for at in range(STEPS)
        for each in (0.0, *np.geomspace(bend / 1e3, bend, 48))
    )
    assert swelling(rates, Inertia(momentum), bend) == pytest.approx(expected, rel=1e-6)


def test_rates_that_stay_the_same_are_carried_as_they_are() -> None:
    np.testing.assert_allclose(carry(np.full(20, 0.3), 0.9), 0.3)
    np.testing.assert_allclose(carry(np.array([0.0, 0.0, 1.0]), 0.5), [0.25, 0.5, 1.0])
