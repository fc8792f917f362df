from __future__ import annotations

import math

import pytest

from headwater.measure.logbook import SiteRates
from headwater.report.advice import advise, format_link, format_trainer

RATES = SiteRates(link=12.5e6, store_cores=2, trainer_cores=4, trainer=100)
NAMES = ("trainer", "link", "trainer CPU", "store CPU")


def times(*seconds: float) -> dict[str, float]:
    return dict(zip(NAMES, seconds, strict=True))


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        (
            times(1, 3, 2, 1),
            "a link 1.50 times as fast (150 Mbit/s) would move the bottleneck to the trainer CPU",
        ),
        (times(3, 2, 1, 1), "a trainer 1.50 times as fast would move the bottleneck to the link"),
        (times(1, 2, 4, 1), "4 more cores at the trainer would move the bottleneck to the link"),
        (times(0, 2, 1, 3), "1 more core at the store would move the bottleneck to the link"),
    ],
)
def test_so_much_more_until_the_next_is_the_slowest(needs: dict[str, float], text: str) -> None:
    assert advise(needs, RATES) == text


def test_what_binds_together_is_named_together() -> None:
    found = advise(times(1, 3, 2, 2.95), RATES)
    assert found.startswith("the link and the store CPU are equally slow: more of either helps")
    assert found.endswith("until the trainer CPU is the slowest")


def test_the_trainer_cannot_be_relieved_by_another() -> None:
    assert "nor does anything else alone" in advise(times(3, 3, 1, 1), RATES)


def test_a_lone_resource_and_none_at_all() -> None:
    assert advise(times(0, 3, 0, 0), RATES) == "the link is the only resource that takes time"
    assert advise(times(0, 0, 0, 0), RATES) == "nothing takes time"


def test_a_store_without_cores() -> None:
    assert "any more of the store CPU" in advise(times(1, 2, 1, math.inf), RATES)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(12.5e6, "100 Mbit/s"), (1.25e9, "10.00 Gbit/s"), (1e5, "0.8 Mbit/s"), (math.inf, "not measured")],
)
def test_links_are_written_as_they_are_sold(rate: float, text: str) -> None:
    assert format_link(rate) == text


def test_a_loop_without_training_has_no_rate() -> None:
    assert format_trainer(1234.4) == "1,234 samples/s"
    assert format_trainer(3e6) == format_trainer(math.inf) == "no limit seen"
