"""The chapter on an early ticket."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.plan.prune import Channels, Look, SettledMask, Watch
from headwater.report import render_page
from headwater.report.tickets import MOST_LOOKS, matrix_figure, ticket_chapter

CHANNELS = Channels(("first", "second"), (40, 60))


def run(count: int = 8) -> Watch:
    watch = Watch(CHANNELS, ratio=0.5, steps=1_000, rule=SettledMask(window=4))
    rng = np.random.default_rng(0)
    final = rng.random(100)
    for number in range(count):
        noise = rng.normal(0, 0.5**number, 100)
        if watch.observe(10 * number, final + noise, rate=0.1):
            break
    return watch


def test_the_matrix_has_all_pairs_in_shares_of_chance() -> None:
    looks = run().looks
    figure = matrix_figure(looks, ratio=0.5)
    (trace,) = figure.traces
    z: Any = trace["z"]
    assert trace["x"] == [look.step for look in looks]
    assert [row[place] for place, row in enumerate(z)] == [0.0] * len(looks)
    assert z[0][1] == z[1][0] == pytest.approx(np.mean(looks[0].keep != looks[1].keep) / 0.5)
    assert z[0][-1] > z[-2][-1]


def test_a_long_run_is_thinned_out() -> None:
    looks = [Look(step, 0.1, np.arange(100) >= 50, 0.0) for step in range(1_000)]
    x: Any = matrix_figure(looks, ratio=0.5).traces[0]["x"]
    assert (len(x), x[0], x[-1]) == (MOST_LOOKS, 0, 999)


def test_the_chapter_says_when_why_and_what_is_left() -> None:
    watch = run(40)
    assert watch.plan is not None
    chapter = ticket_chapter(watch.looks, CHANNELS, ratio=0.5, plan=watch.plan, text="A small network.")
    assert chapter.text.startswith("A small network.\n\nDrawn after ")
    assert watch.plan.reason in chapter.text
    assert chapter.table is not None
    assert chapter.table.rows[-1] == ("all", "100", "50", "50%")
    assert [row[0] for row in chapter.table.rows] == ["first", "second", "all"]
    assert len(chapter.figures) == 3
    assert "heatmap" in render_page([chapter], title="Ticket")


def test_a_search_that_goes_on_has_no_layers_yet() -> None:
    watch = run(3)
    chapter = ticket_chapter(watch.looks, CHANNELS, ratio=0.5, plan=None)
    assert (chapter.text, chapter.table, len(chapter.figures)) == ("No ticket was drawn.", None, 2)
    with pytest.raises(WrongUse, match="no look yet"):
        ticket_chapter([], CHANNELS, ratio=0.5, plan=None)
