"""The four times of an epoch."""

from __future__ import annotations

import math

import pytest

from headwater.plan.offload import Load, Rates

RATES = Rates(link=100, store_cores=2, trainer_cores=4, trainer=50, store_speed=0.5)


def test_the_four_times_by_hand() -> None:
    load = Load(visits=10, bytes=1000, trainer_seconds=8, store_seconds=3, rates=RATES)
    assert load.times == {"trainer": 0.2, "link": 10, "trainer CPU": 2, "store CPU": 3}
    assert (load.seconds, load.bottleneck) == (10, "link")
    assert load.margin == pytest.approx(10 / 3)


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (Load(1e6, 1, 1, 1, RATES), "trainer"),
        (Load(1, 1, 1e6, 1, RATES), "trainer CPU"),
        (Load(1, 1, 1, 1e6, RATES), "store CPU"),
    ],
)
def test_each_of_the_four_can_be_the_slowest(load: Load, name: str) -> None:
    assert load.bottleneck == name


def test_of_equals_the_one_that_offloading_cannot_help() -> None:
    assert Load(50, 100, 4, 1, RATES).times == dict.fromkeys(
        ("trainer", "store CPU", "trainer CPU", "link"), 1
    )
    assert Load(50, 100, 4, 1, RATES).bottleneck == "trainer"
    assert Load(50, 100, 4, 1, RATES).margin == 1


def test_no_cores_take_for_ever_and_no_work_takes_no_time() -> None:
    none = Rates(link=1, store_cores=0)
    assert Load(1, 0, 0, 1e-9, none).seconds == math.inf
    assert Load(1, 0, 0, 0, none).seconds == 0
    assert Load(1, 0, 0, 0, none).margin == 1


def test_the_cap_counts_the_stores_own_seconds() -> None:
    rates = Rates(link=1, store_cores=1, store_speed=0.5, store_seconds_per_visit=0.1)
    assert Load(10, 0, 0, 0.5, rates).keeps_cap
    assert not Load(10, 0, 0, 0.51, rates).keeps_cap
    assert Load(0, 0, 0, 0, Rates(link=1, store_cores=1)).keeps_cap
