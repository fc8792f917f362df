"""What a run believes of link, store and trainer, from stretches made up by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headwater.loader.gauge import Gauge, Spell
from headwater.measure.logbook import SiteRates

ALL = pytest.approx(2.0, abs=0.06)
"""Of two cores, those that steps may take."""


def spell(**changes: Any) -> Spell:
    """100 samples of 100 kB in a second, as files, over a link that was always busy."""
    usual: dict[str, Any] = {
        "samples": 100,
        "seconds": 1.0,
        "waited": 0.9,
        "held": 0.1,
        "bytes": 10_000_000,
        "busy": 1.0,
        "store_seconds": 0.0,
    }
    return Spell(**(usual | changes))


def offloaded(**changes: Any) -> Spell:
    return spell(**({"bytes": 0, "busy": 0.0, "asked": 80, "store_seconds": 0.4} | changes))


def test_the_link_is_what_came_while_it_was_awaited() -> None:
    gauge = Gauge(2.0, 4.0)
    assert not gauge.known
    gauge.learn(spell(busy=0.5))
    assert gauge.known
    assert gauge.rates().link == 20_000_000


def test_too_little_tells_nothing_of_the_link() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.learn(spell(bytes=1000))
    assert not gauge.known


def test_a_link_that_changes_is_followed() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.learn(spell())
    gauge.learn(offloaded())
    assert gauge.link == 10_000_000
    for rate in (5_000_000, 20_000_000):
        for _ in range(20):
            gauge.learn(spell(bytes=rate))
        assert gauge.link == pytest.approx(rate, rel=0.05)


def test_the_trainer_is_as_quick_as_it_gives_batches_back() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.learn(spell(held=0.0))
    assert gauge.rates().trainer == math.inf
    gauge.learn(spell(held=0.5))
    assert gauge.rates().trainer == pytest.approx(200)
    assert gauge.rates(0.25).trainer == pytest.approx(50)
    assert gauge.rates(0.25).trainer_cores == 1.0


def test_a_store_that_pushes_back_has_the_cores_that_it_used() -> None:
    gauge = Gauge(0.6, 4.0)
    gauge.learn(offloaded(pushed_back=20))
    assert gauge.store_cores == pytest.approx(0.4)


def test_one_that_does_nothing_at_all_loses_half() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.learn(offloaded(pushed_back=80, store_seconds=0.0))
    assert gauge.store_cores == 1.0


def test_a_few_pushed_back_say_nothing() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.learn(offloaded(pushed_back=2))
    assert gauge.store_cores == ALL


def test_lateness_is_put_down_to_the_store_only_where_the_trainer_waited() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.learn(offloaded(waited=0.0, held=1.0), late=True, slow=True)
    assert gauge.store_cores == ALL
    gauge.learn(offloaded(), late=True, slow=True)
    assert gauge.store_cores == 1.0


def test_a_store_gets_its_cores_back_and_no_more() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.learn(offloaded(), late=True, slow=True)
    for _ in range(10):
        gauge.learn(offloaded())
    assert gauge.store_cores == ALL


def test_after_each_retreat_it_takes_longer_to_get_cores_back() -> None:
    gauge, waited = Gauge(2.0, 4.0), []
    for _ in range(3):
        gauge.retreat(0.5)
        waited.append(0)
        while gauge.store_cores < 1.9:
            gauge.learn(offloaded())
            waited[-1] += 1
    assert waited == sorted(set(waited))
    gauge.learn(offloaded())  # in time with all of them
    gauge.retreat(0.5)
    for _ in range(waited[0]):
        gauge.learn(offloaded())
    assert gauge.store_cores == ALL


def test_what_is_late_for_another_reason_is_no_sign_of_cores() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.retreat(0.5)
    for _ in range(10):
        gauge.learn(offloaded(), late=True)
    assert gauge.store_cores == 1.0


def test_files_say_nothing_of_a_store() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.learn(offloaded(), late=True, slow=True)
    gauge.learn(spell(), late=True, slow=True)
    assert gauge.store_cores == 1.0


def test_a_store_that_does_not_say_its_cores_is_taken_to_have_one() -> None:
    assert Gauge(0.0, 4.0).store_cores == 1.0


def test_it_begins_with_what_was_found_earlier() -> None:
    gauge = Gauge(2.0, 4.0)
    gauge.remember(SiteRates(link=5e6, store_cores=1.0, trainer=300.0))
    assert gauge.known
    assert gauge.rates().link == 5e6
    assert gauge.rates().trainer == 300.0
    assert gauge.rates().store_cores == ALL


def test_a_small_store_needs_some_of_its_cores_to_send() -> None:
    small, large = Gauge(0.1, 4.0), Gauge(8.0, 4.0)
    for gauge in (small, large):
        gauge.learn(spell())
    assert small.store_cores == pytest.approx(0.05)
    assert large.store_cores == pytest.approx(7.95)
