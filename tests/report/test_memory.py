"""The chapter on a memory budget."""

from __future__ import annotations

from typing import Any

import pytest

import headwater as hw
from budgets import train
from headwater.errors import WrongUse
from headwater.report import render_page
from headwater.report.memory import memory_chapter, memory_figure


def test_memory_before_and_after_is_drawn_with_the_budget() -> None:
    budget = hw.memory_budget(500_000, device="cpu")
    train("residual", around=budget, steps=4)
    report = budget.report()
    before, after, line = memory_figure(report).traces
    values: Any = before["y"]
    lower: Any = after["y"]
    limit: Any = line["y"]
    assert len(values) == len(lower) == len(report.seconds)
    assert max(lower) <= limit[0] < max(values)
    page = render_page([memory_chapter(report, text="A net of four blocks.")], title="Memory")
    assert "Memory over one iteration" in page
    assert "peak after" in page


def test_nothing_is_drawn_of_nothing() -> None:
    with hw.memory_budget("1MiB") as budget, pytest.raises(WrongUse, match="no iteration"):
        memory_chapter(budget.report())
