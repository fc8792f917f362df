from __future__ import annotations

from dataclasses import replace

from headwater.report.models import Crossing, Period, add_up, drift_chapter, models_chapter, sum_up
from headwater.report.page import render_page

WHOLE = Crossing("the network", 400_000, 0, 0.5)
LABELS = Crossing("labels", 4_000, 8_000_000, 2.0)
HTTP = Crossing("<http>", 0, 0, 0.04)
FIRST = Period(100, 0.0, 0.9, 0.9)
LAST = Period(1_200, 0.75, 0.2, 0.85)


def test_what_is_done_several_times_is_one_row() -> None:
    found = add_up([WHOLE, LABELS, replace(LABELS, link_bytes=1_000), HTTP])
    assert found == [WHOLE, Crossing("labels", 5_000, 16_000_000, 4.0), HTTP]


def test_a_row_says_how_many_times_fewer_bytes_crossed() -> None:
    chapter = models_chapter([WHOLE, LABELS, HTTP], {"labels": "5 changed"}, text="words")
    assert chapter.table is not None
    assert chapter.table.rows == (
        ("the network", "400.0", "", "", "0.5", ""),
        ("labels", "4.0", "8,000.0", "2,000x", "2.0", "5 changed"),
        ("<http>", "", "", "", "0.0", ""),
    )
    assert "<td>&lt;http&gt;</td>" in render_page([chapter], title="x")


def test_bars_are_of_what_can_be_compared() -> None:
    """A logarithm has no place for 0."""
    (bytes_,) = models_chapter([WHOLE, LABELS, HTTP], {}, text="").figures
    assert [(trace["x"], trace["y"]) for trace in bytes_.traces] == [(["labels"], [4.0]), (["labels"], [8e3])]
    assert bytes_.layout["yaxis"]["type"] == "log"  # type: ignore[index]


def test_both_models_over_the_periods() -> None:
    chapter = drift_chapter([FIRST, LAST], text="words")
    assert chapter.table is not None
    assert chapter.table.rows == (
        ("1", "100", "0%", "90%", "90%"),
        ("2", "1,200", "75%", "20%", "85%"),
    )
    (plot,) = chapter.figures
    assert {trace["name"]: trace["y"] for trace in plot.traces} == {
        "stale model": [0.9, 0.2],
        "fresh model": [0.9, 0.85],
        "photos of new kinds": [0.0, 0.75],
    }
    assert all(trace["x"] == [1, 2] for trace in plot.traces)
    assert chapter.text.startswith("words\n\nThe stale model labelled 90%")


def test_the_sum_says_which_model_is_better() -> None:
    assert sum_up([FIRST, LAST]) == (
        "The stale model labelled 90% of the first period's photos rightly, and 20% of the last one's; the "
        "fresh one 85% of these, 65 points more."
    )
    assert sum_up([FIRST, replace(LAST, fresh=0.15)]).endswith("the fresh one 15% of these, 5 points less.")
