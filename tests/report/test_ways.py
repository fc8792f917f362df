from __future__ import annotations

import pytest

from headwater.measure.logbook import Logbook, SiteRates, WayTotals
from headwater.report.ways import Ways, way_names
from logbooks import SLOW_LINK, WAYS, empty_logbook, make_logbook, make_stretch, make_trial


def test_ways_are_named_after_their_last_step() -> None:
    assert way_names(empty_logbook()) == [
        "file",
        "after decode",
        "after random_area",
        "after resize",
        "after resize, zstd",
        "cut inside the JPEG, jpeg",
    ]


def test_the_shares_of_what_was_planned() -> None:
    ways = Ways(make_logbook())
    assert sum(ways.planned) == 128
    used = [way for way, count in enumerate(ways.planned) if count]
    assert used
    for way in used:
        assert ways.why(way) == f"{ways.planned[way] / 128:.1%} of what was planned"


def with_totals(rates: SiteRates = SLOW_LINK, **totals: WayTotals) -> Logbook:
    """A run whose plans took nothing but files, with totals for the ways by number."""
    logbook = empty_logbook()
    stretch = make_stretch(rates)
    stretch.ways[:] = [sum(stretch.ways), *[0] * (len(WAYS) - 1)]
    logbook.stretches = [stretch]
    logbook.totals[0] = WayTotals(64, 64, 6400, 6400, 0.0, 0.64)
    for name, total in totals.items():
        logbook.totals[int(name.removeprefix("way"))] = total
    return logbook


def came(share: float, store_seconds: float, trainer_seconds: float = 0.1) -> WayTotals:
    return WayTotals(10, 10, int(1000 * share), 1000, 10 * store_seconds, 10 * trainer_seconds)


@pytest.mark.parametrize(
    ("totals", "reason"),
    [
        ({}, "never asked for: not in this run, or the store cannot do it"),
        ({"way3": WayTotals(asked=7)}, "the store never did it; 7 pushed back"),
        ({"way3": came(1.2, 1e-3)}, "on average no better for the link than the file"),
        (
            {"way3": came(0.5, 2e-3), "way4": came(0.4, 1e-3)},
            "not on the hull: after resize, zstd saves more for less",
        ),
        (
            {"way3": came(0.9, 1e-3), "way4": came(0.1, 2e-3)},
            "not on the hull: a mixture of other ways saves more for less",
        ),
        (
            {"way3": came(0.3, 1e-3), "way4": came(0.1, 2e-3)},
            "on the hull, but other ways saved more per store second",
        ),
    ],
    ids=["unasked", "pushed back", "larger", "dominated", "above the hull", "on the hull"],
)
def test_why_a_way_was_not_used(totals: dict[str, WayTotals], reason: str) -> None:
    assert Ways(with_totals(**totals)).why(3) == reason


def test_where_the_link_is_not_the_slowest() -> None:
    slow_trainer = SiteRates(link=1e9, store_cores=2, trainer=1)
    assert Ways(with_totals(slow_trainer, way3=came(0.3, 1e-3))).why(3) == (
        "the trainer was the slowest, which no way relieves"
    )


def test_a_starved_trainer_cpu_is_what_counts_then() -> None:
    starved = SiteRates(link=1e9, store_cores=2, trainer_cores=0.01)
    ways = Ways(with_totals(starved, way3=came(0.3, 1e-3, trainer_seconds=1.0)))
    assert ways.why(3) == "on average no better for the trainer CPU than the file"


def test_pushed_back_samples_are_told() -> None:
    logbook = make_logbook()
    way = next(number for number, count in enumerate(Ways(logbook).planned) if number and count)
    logbook.totals[way].asked += 3
    assert Ways(logbook).why(way).endswith("of what was planned; 3 pushed back")


def test_before_any_plan() -> None:
    logbook = empty_logbook()
    logbook.add(make_trial([4, 1, 1, 1, 1, 1]))
    assert {Ways(logbook).why(way) for way in range(len(WAYS))} == {"nothing was planned yet"}
