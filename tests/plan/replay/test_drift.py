"""How far a replay may be off."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.plan.replay import Fitted, lbfgs
from headwater.plan.replay.drift import Drift, Inertia

SIZE = 3
AWAY = np.array([1.0, 2.0, -1.0], np.float32)
LENGTH = float(np.linalg.norm(AWAY))


class Flat(Fitted):
    """Nothing bends, so nothing pulls errors back."""

    def __init__(self) -> None:
        super().__init__(lbfgs, 2)

    @property
    def scale(self) -> float:
        return 0.0


def drift(momentum: float = 0.0, *, noisy: bool = False) -> Drift:
    return Drift(Inertia(momentum), SIZE, noisy=noisy)


def test_errors_grow_evenly_from_one_computed_step_to_the_next() -> None:
    found = drift()
    for rate in (0.5, 0.5, 0.2):
        found.approximated(rate)
    found.computed(0.5, 4 * AWAY, Flat())
    assert found.length == pytest.approx((0.5 * 1 + 0.5 * 2 + 0.2 * 3) * LENGTH, rel=1e-5)


def test_steps_that_are_all_computed_have_no_error() -> None:
    found = drift()
    for _ in range(5):
        found.computed(1.0, AWAY, Flat())
    assert found.length == 0


def test_errors_to_both_sides_do_not_count_twice() -> None:
    found = drift()
    for sign in (1, -1) * 10:
        found.approximated(1.0)
        found.computed(1.0, np.float32(sign) * AWAY, Flat())
    assert found.length < 1e-5
    found.approximated(1.0)
    found.computed(1.0, AWAY, Flat())
    assert found.length == pytest.approx(0.5 * LENGTH, rel=1e-5)


def test_momentum_carries_an_error_on_and_noise_adds_to_it() -> None:
    lengths = []
    for each in (drift(), drift(0.9), drift(noisy=True)):
        each.approximated(1.0)
        each.computed(1.0, AWAY, Flat())
        lengths.append(each.length)
    assert lengths[1] == pytest.approx(10 * lengths[0], rel=1e-5)
    assert lengths[2] == pytest.approx(2.5 * lengths[0], rel=1e-5)


def test_what_bends_pulls_errors_back() -> None:
    bent = Fitted(lbfgs, 2)
    bent.observe(AWAY, 2 * AWAY)
    found = drift()
    found.approximated(1.0)
    found.computed(1.0, AWAY, bent)
    before = found.length
    found.computed(1.0, 0 * AWAY, bent)
    assert found.length == pytest.approx(before * np.exp(-0.3 * 2), rel=1e-4)


@pytest.mark.parametrize(
    ("bend", "left"), [(0.1, np.exp(-0.3 * 0.1 * 6)), (2.0, 0.5 ** (0.5 * 3))], ids=["creeps", "swings"]
)
def test_training_pulls_back_and_adds_nothing(bend: float, left: float) -> None:
    """With momentum m, what bends much swings, and a swing gets smaller by the root of m a step."""
    bent = Fitted(lbfgs, 2)
    bent.observe(AWAY, bend * AWAY)
    found = drift(0.5)
    found.approximated(1.0)
    found.computed(1.0, AWAY, bent)
    before = found.length
    found.trained(np.ones(3), bent)
    assert found.length == pytest.approx(before * left, rel=1e-3)


def test_a_swing_is_pulled_back_as_a_real_one() -> None:
    """Gradient descent with momentum on a parabola, whose energy falls by m a step."""
    rate, momentum, bend = 0.1, 0.9, 1.0
    place, speed, energy = 1.0, 0.0, []
    for _ in range(200):
        speed = momentum * speed + bend * place
        place -= rate * speed
        energy.append(rate * speed**2 + bend * place**2)
    found = np.log(energy[10] / energy[190]) / 180 / 2
    inertia = Inertia(momentum)
    assert inertia.most_pull == pytest.approx(found, rel=0.05)
    assert Inertia(0.0).most_pull == np.inf


def test_a_swing_gets_no_smaller_by_rates_that_change() -> None:
    """Steps at a high rate swing by the root of m each, though the step that is computed has a low one."""
    bent = Fitted(lbfgs, 2)
    bent.observe(AWAY, 2.0 * AWAY)
    found = drift(0.5)
    found.approximated(1.0)
    found.computed(1.0, AWAY, bent)
    before = found.length
    for _ in range(3):
        found.approximated(1.0)
    found.computed(1e-6, 0 * AWAY, bent)
    assert found.length == pytest.approx(before * 0.5 ** (0.5 * 3), rel=1e-3)


def test_l2_pulls_back_in_full_and_asking_changes_nothing() -> None:
    found = Drift(Inertia(0.5, decay=0.1), SIZE, noisy=False)
    found.approximated(1.0)
    found.computed(1.0, AWAY, Flat())
    before = found.length
    outlook = found.look_ahead(0.5, 3.0, Flat())
    assert outlook.left == pytest.approx(before * np.exp(-0.1 * 6), rel=1e-4)
    assert found.length == before


def test_what_one_more_prediction_adds_and_how_it_is_pulled_back() -> None:
    bent = Fitted(lbfgs, 2)
    bent.observe(AWAY, 0.2 * AWAY)
    found = Drift(Inertia(0.5, decay=0.1), SIZE, noisy=False)
    found.computed(0.5, AWAY, bent)
    outlook = found.look_ahead(0.5, 3.0, bent)
    assert (outlook.left, outlook.steps) == (0.0, 6.0)
    found.approximated(0.5)
    found.computed(0.5, AWAY, Flat())
    assert np.sqrt(outlook.fresh.sum()) == pytest.approx(found.length, rel=1e-5)
    assert outlook.pulls == pytest.approx([0.5 * 2 * (0.3 * 0.2 + 0.1)])
