from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.report.page import render_page
from headwater.report.trade import Turn, sum_up, trade_chapter

FILES = Turn("files", 100, 0, 12_000_000, 10.0, 0.2, 1.0, 0)
PLANNED = Turn("auto 1", 100, 75, 5_000_000, 5.0, 2.2, 1.5, 0)


def test_a_row_and_bars_per_epoch() -> None:
    chapter = trade_chapter([FILES, PLANNED], text="words")
    assert chapter.table is not None
    assert chapter.table.rows == (
        ("files", "0%", "12.0", "1.00x", "10.0", "0.2 s", "1.0 s", "0/100"),
        ("auto 1", "75%", "5.0", "2.40x", "5.0", "2.2 s", "1.5 s", "0/100"),
    )
    moved, spent = chapter.figures
    assert moved.traces[0]["y"] == [12.0, 5.0]
    assert {trace["name"]: trace["y"] for trace in spent.traces} == {
        "time": [10.0, 5.0],
        "store CPU": [0.2, 2.2],
        "trainer CPU": [1.0, 1.5],
    }
    assert "<td>2.40x</td>" in render_page([chapter], title="x")


def test_the_sum_names_bytes_time_and_both_cpus() -> None:
    assert sum_up([FILES, PLANNED]) == (
        "Last epoch: 2.40 times fewer bytes than files (5.0 instead of 12.0 MB), in less time, 5.0 s instead "
        "of 10.0 s. Seconds of CPU: 2.2 instead of 0.2 at the store, 1.5 instead of 1.0 at the trainer."
    )


@pytest.mark.parametrize(
    ("link_bytes", "seconds", "words"),
    [
        (11_000_000, 9.8, "the saving is small: 1.09 times fewer bytes"),
        (11_000_000, 9.8, "in about the same time"),
        (11_900_000, 9.8, "nothing was saved (11.9 MB, as files 12.0 MB)"),
        (12_600_000, 9.8, "nothing was saved"),
        (5_000_000, 12.0, "in more time, 12.0 s instead of 10.0 s"),
    ],
)
def test_the_sum_says_where_little_was_gained(link_bytes: int, seconds: float, words: str) -> None:
    assert words in sum_up([FILES, replace(PLANNED, link_bytes=link_bytes, seconds=seconds)])
