from __future__ import annotations

from headwater.report.link import Flow, Passage, link_chapter
from headwater.report.page import render_page

FILES = Passage("files", 100, 12_500_000, 2.0, 0, 4_000_000, 0)
FAULTY = Passage("<faults>", 100, 13_000_000, 4.0, 3, 4_000_000, 7)
FLOW = Flow([0.0, 1.0, 3.0], [0, 12_500_000, 12_500_000], {"store killed": 1.0})


def test_a_row_and_a_bar_per_epoch() -> None:
    chapter = link_chapter([FILES, FAULTY], FLOW, text="words")
    assert chapter.table is not None
    assert chapter.table.rows == (
        ("files", "12.5", "2.0", "50", "0", "0 of 4 MB"),
        ("<faults>", "13.0", "4.0", "25", "3", "7 of 4 MB"),
    )
    bars = chapter.figures[0].traces[0]
    assert (bars["x"], bars["y"]) == (["files", "<faults>"], [12.5, 13.0])


def test_the_rate_over_time_and_its_faults() -> None:
    rate = link_chapter([FILES], FLOW, text="").figures[1]
    assert rate.traces[0]["x"] == [1.0, 3.0]
    assert rate.traces[0]["y"] == [100.0, 0.0]
    (line,) = rate.layout["shapes"]  # type: ignore[misc]
    (label,) = rate.layout["annotations"]  # type: ignore[misc]
    assert line["x0"] == line["x1"] == label["x"] == 1.0
    assert label["text"] == "store killed"


def test_it_goes_into_the_page() -> None:
    page = render_page([link_chapter([FILES, FAULTY], FLOW, text="words")], title="x")
    assert "<td>&lt;faults&gt;</td>" in page
    assert '"text":"store killed"' in page


def test_a_flow_without_readings_is_an_empty_plot() -> None:
    rate = link_chapter([FILES], Flow([0.0], [0], {}), text="").figures[1]
    assert rate.traces[0]["x"] == rate.traces[0]["y"] == []
