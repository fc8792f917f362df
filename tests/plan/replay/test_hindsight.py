"""What a computed step tells of approximate ones before it."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.plan.replay.hindsight import Hindsight, Inertia

SIZE = 3
FAR = 1000.0
AWAY = np.array([1.0, 2.0, -1.0], np.float32)


def drive(inertia: Inertia, forces: list[float], rate: float) -> tuple[float, float]:
    """Place and velocity after these forces, as SGD moves."""
    place = speed = 0.0
    for force in forces:
        speed = inertia.momentum * speed + force
        stride = force + inertia.momentum * speed if inertia.nesterov else speed
        place -= rate * stride
    return place, speed


@pytest.mark.parametrize("inertia", [Inertia(), Inertia(0.9), Inertia(0.9, nesterov=True)])
def test_an_error_that_grows_evenly_is_taken_back(inertia: Inertia) -> None:
    hindsight = Hindsight(inertia, SIZE)
    hindsight.computed(AWAY, FAR)
    for _ in range(4):
        hindsight.approximated(0.5)
    found = hindsight.computed(5 * AWAY, FAR)
    # Forces were short by 1, 2, 3 and 4 of `AWAY`.
    place, speed = drive(inertia, [1.0, 2.0, 3.0, 4.0], rate=0.5)
    np.testing.assert_allclose(found.place * found.difference, place * AWAY, rtol=1e-5)
    np.testing.assert_allclose(found.speed * found.difference, speed * AWAY, rtol=1e-5)


def test_what_points_elsewhere_each_time_is_left_alone_and_counted() -> None:
    hindsight = Hindsight(Inertia(), SIZE)
    hindsight.computed(AWAY, FAR)
    hindsight.approximated(0.5)
    hindsight.approximated(0.5)
    found = hindsight.computed(-AWAY, FAR)
    assert found.place == found.speed == 0
    assert hindsight.error == pytest.approx(0.5 * (1 + 2) / 3 * np.linalg.norm(AWAY))


def test_errors_to_both_sides_do_not_count_twice() -> None:
    hindsight = Hindsight(Inertia(), SIZE, corrects=False)
    for sign in (1, -1) * 10:
        hindsight.approximated(1.0)
        hindsight.computed(np.float32(sign) * AWAY, FAR)
    assert hindsight.error < 1e-5
    hindsight.approximated(1.0)
    hindsight.computed(AWAY, FAR)
    assert hindsight.error > 0.1


def test_momentum_carries_an_error_on() -> None:
    errors = []
    for momentum in (0.0, 0.9):
        hindsight = Hindsight(Inertia(momentum), SIZE, corrects=False)
        hindsight.approximated(1.0)
        hindsight.computed(AWAY, FAR)
        errors.append(hindsight.error)
    assert errors[1] == pytest.approx(10 * errors[0])


def test_steps_that_are_all_computed_have_no_error() -> None:
    hindsight = Hindsight(Inertia(0.9), SIZE)
    for _ in range(5):
        found = hindsight.computed(AWAY, FAR)
        assert found.place == found.speed == 0
    assert hindsight.error == 0


def test_a_prediction_that_is_far_off_is_not_put_right() -> None:
    hindsight = Hindsight(Inertia(), SIZE)
    hindsight.computed(AWAY, FAR)
    hindsight.approximated(1.0)
    found = hindsight.computed(AWAY, float(np.linalg.norm(AWAY)))
    assert found.place == 0
    assert hindsight.error > 0
