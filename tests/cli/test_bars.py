"""What bars show on a terminal, and that they show nothing elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.progress import MofNCompleteColumn

from headwater.cli.bars import show_bars
from headwater.cli.tuning import TuningBars


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def make_console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=terminal, width=120), written


def lines_of(written: io.StringIO) -> list[str]:
    """All that was ever shown, without colours and movements of the cursor."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", written.getvalue())
    return [" ".join(line.split()) for line in re.split(r"[\r\n]+", plain)]


def tell(bars: TuningBars) -> None:
    bars.features(64, 180)
    bars.store("north:7077", 40, 100)
    bars.store("[b]south", 24, 80)
    bars.epoch(0, 2, 0.5)
    bars.run(0, 0.875)


def test_features_each_store_and_epochs_have_a_bar_each() -> None:
    console, written = make_console(terminal=True)
    with TuningBars(2, 3, console=console) as bars:
        tell(bars)
        bars.epoch(1, 0, 0.25)
    text = " ".join(lines_of(written))
    assert re.search(r"features .* 64/180 ", text)
    assert re.search(r"from north:7077 .* 40/100 ", text)
    assert re.search(r"from \[b\]south .* 24/80 ", text)
    assert re.search(r"training .* 4/6 .* run 2, loss 0.2500", text)


def test_the_accuracy_of_a_run_is_shown_when_it_ends() -> None:
    console, written = make_console(terminal=True)
    with TuningBars(2, 3, console=console) as bars:
        tell(bars)
    assert re.search(r"training .* 3/6 .* run 1, accuracy 87.5%", " ".join(lines_of(written)))


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    console, written = make_console(terminal=False)
    with TuningBars(2, 3, console=console) as bars:
        tell(bars)
    with show_bars({"a": "store a"}, console=console) as move:
        move("a", 1, 2)
    assert written.getvalue() == ""


def test_each_store_has_its_bar() -> None:
    console, written = make_console(terminal=True)
    with show_bars({"a": "[b]north", "b": "south"}, MofNCompleteColumn(), console=console) as move:
        move("a", 30, 40)
        move("b", 0, 0)
        console.print("between")  # which draws the bars anew
    text = " ".join(lines_of(written))
    assert re.search(r"\[b\]north .*30/40", text)
    assert re.search(r"south .*0/1", text)
