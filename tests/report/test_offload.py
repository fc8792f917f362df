from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.measure.logbook import SiteRates
from headwater.report import Figure, render_page
from headwater.report.balance import RESOURCES, balances
from headwater.report.offload import explain, offload_chapter
from logbooks import SITE, SLOW_LINK, WAYS, empty_logbook, make_logbook, make_stretch, make_trial


def figures() -> dict[str, Figure]:
    return {figure.title: figure for figure in offload_chapter(make_logbook()).figures}


def heights(figure: Figure, trace: int = 0) -> list[Any]:
    found = figure.traces[trace]["y"]
    assert isinstance(found, list)
    return found


def test_every_sample_is_in_the_histogram_of_ways() -> None:
    asked, came = (heights(figures()["Samples by way"], trace) for trace in (0, 1))
    assert len(asked) == len(WAYS)
    assert sum(asked) == sum(came) == 60 + 128


def test_bytes_by_way_stand_beside_those_of_the_files() -> None:
    logbook, figure = make_logbook(), figures()["Bytes by way"]
    files, crossed = heights(figure), heights(figure, 1)
    assert files[0] == crossed[0]
    assert files[1] < crossed[1]
    assert files[4] > crossed[4]
    assert sum(crossed) == pytest.approx(sum(total.bytes for total in logbook.totals) / 1e6, rel=1e-4)


def test_efficiency_has_a_bar_for_every_count() -> None:
    figure = figures()["Efficiency of offloading"]
    places, counts = figure.traces[0]["x"], heights(figure)
    assert isinstance(places, list)
    assert len(places) == len(counts) == 52
    assert places == sorted(places)
    assert sum(counts) == sum(make_logbook().efficiency.counts) > 0
    assert figure.layout["xaxis"]["type"] == "log"  # type: ignore[index]


def test_the_four_resources_before_and_after() -> None:
    (balance,) = balances(make_logbook())
    figure = figures()["The four resources"]
    assert figure.traces[0]["x"] == list(RESOURCES)
    assert heights(figure) == pytest.approx([balance.times_before[name] for name in RESOURCES], rel=1e-4)
    assert heights(figure, 1) == pytest.approx([balance.times_after[name] for name in RESOURCES], rel=1e-4)


def test_the_share_of_time_that_the_trainer_was_busy() -> None:
    figure = figures()["Share of time in which the trainer was busy"]
    assert heights(figure) == [75, 75]
    assert figure.traces[0]["name"] == SITE
    assert figure.traces[0]["x"] == [1, 2]  # in the first no time passed


def test_predicted_against_measured() -> None:
    table = explain(make_logbook())[0].table
    assert table is not None
    rows = {row[1]: row[2:] for row in table.rows}
    assert set(rows) == {"bytes over the link", "store CPU", "trainer CPU", "time"}
    assert rows["time"][-1] == "1.25"
    assert rows["bytes over the link"][-1] == "1.00"
    assert rows["bytes over the link"][0].endswith(" MB")


def test_words_tell_reason_and_bottleneck() -> None:
    words = explain(make_logbook())[0].text
    assert "of visits are offloaded" in words
    assert "Without offloading the link is the slowest" in words
    advice = explain(make_logbook())[1].text
    assert advice.startswith(f"{SITE}: ")
    assert "would move the bottleneck to the store CPU" in advice


def test_a_row_for_every_resource_and_way() -> None:
    _, resources, ways = explain(make_logbook())
    assert resources.table is not None
    assert ways.table is not None
    assert [row[1] for row in resources.table.rows] == list(RESOURCES)
    rates = {row[1]: row[2] for row in resources.table.rows}
    assert rates == {
        "link": "8 Mbit/s",
        "trainer": "no limit seen",
        "trainer CPU": "4 cores",
        "store CPU": "2 cores",
    }
    assert [row[0] for row in ways.table.rows][:2] == ["file", "after decode"]
    assert len(ways.table.rows) == len(WAYS)


def test_savings_from_estimated_lengths_are_told_apart() -> None:
    logbook = make_logbook()
    *_, ways = explain(logbook)
    assert "estimated" not in ways.text
    logbook.totals[3].estimated = 1
    *_, ways = explain(logbook)
    assert "that is estimated from what came" in ways.text
    assert ways.table is not None
    assert [row[3].startswith("about ") for row in ways.table.rows] == [number == 3 for number in range(6)]


def test_planning_that_failed_is_told_first() -> None:
    logbook = make_logbook()
    logbook.failure = "KeyError: 'plan'"
    assert "Planning failed (KeyError: 'plan'), and files were sent" in explain(logbook)[0].text


def test_a_run_that_never_came_to_a_plan() -> None:
    logbook = empty_logbook()
    logbook.add(make_trial([30, 2, 2, 2, 2, 2]))
    assert "Nothing was planned yet: 40 samples were measured" in explain(logbook)[0].text
    assert "NaN" not in drawn(logbook)


def test_a_run_whose_trainer_is_the_slowest() -> None:
    """It is never planned, and the verdict stands all the same."""
    logbook, rates = empty_logbook(), SiteRates(link=1e9, store_cores=1, trainer=5)
    trial = make_trial([50, 0, 0, 0, 0, 0], phase="link")
    logbook.add(msgspec.structs.replace(trial, rates=rates, reason="the trainer is busy"))
    predicted, resources, _ = explain(logbook)
    assert "the trainer is busy. Without offloading the trainer is the slowest." in predicted.text
    assert predicted.table is not None
    assert predicted.table.rows == ()
    assert "a trainer" in resources.text


def test_what_came_after_the_last_plan_is_told() -> None:
    logbook = make_logbook()
    trial = make_trial([50, 0, 0, 0, 0, 0], phase="guard")
    logbook.add(msgspec.structs.replace(trial, reason="files are quicker"))
    assert "Since then: files are quicker." in explain(logbook)[0].text


def test_rates_that_changed_since_the_plan_are_told() -> None:
    logbook = empty_logbook()
    found = SiteRates(link=2e6, store_cores=0.5, trainer_cores=4, trainer=2e6, store_speed=1.5)
    logbook.add(msgspec.structs.replace(make_stretch(), rates=found, assumed=SLOW_LINK))
    table = explain(logbook)[1].table
    assert table is not None
    assert {row[1]: row[2] for row in table.rows} == {
        "link": "16 Mbit/s, planned with 8 Mbit/s",
        "trainer": "no limit seen",
        "trainer CPU": "4 cores",
        "store CPU": "0.5 cores of speed 1.50, planned with 2 cores",
    }


def test_several_stores_have_rows_of_their_own() -> None:
    logbook = empty_logbook()
    logbook.stretches = [make_stretch(site="a"), make_stretch(site="b", slower=2.0)]
    table = offload_chapter(logbook).table
    assert table is not None
    assert {row[0]: row[-1] for row in table.rows if row[1] == "time"} == {"a": "1.00", "b": "2.00"}
    assert "a: " in explain(logbook)[1].text
    assert "b: " in explain(logbook)[1].text


def test_it_goes_into_a_page() -> None:
    assert "NaN" not in drawn(make_logbook())
    assert "Infinity" not in drawn(make_logbook())


def test_an_empty_logbook_can_be_drawn() -> None:
    drawn(empty_logbook())


def drawn(logbook: Any) -> str:
    page = render_page([offload_chapter(logbook, text="words"), *explain(logbook)], title="t")
    assert "<p>words</p>" in page
    return page.split("const figures = ")[1].split("\n")[0]
