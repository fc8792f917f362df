from __future__ import annotations

import numpy as np
import pytest

from headwater.measure.stats import Stats
from headwater.report import render_page
from headwater.report.loader import Step, TrainingRun, loader_chapter


def run(steps: int) -> TrainingRun:
    stats = Stats(samples=steps * 32, bytes_moved=2_500_000, wait_seconds={"read": 1.5, "steps": 0.5})
    return TrainingRun(
        steps=[Step(0.1 * (i + 1), 32, 2.0 / (i + 1), 0.5) for i in range(steps)],
        epoch_ends=[steps],
        validation=[0.875],
        stats=stats,
        sizes=np.arange(1_000, 100_000, 7),
        seconds=0.1 * steps,
    )


def test_the_rate_is_samples_over_seconds() -> None:
    chapter = loader_chapter(run(600), text="", facts={}, sheets=())
    rates = np.array(chapter.figures[0].traces[0]["y"])
    assert len(rates) == 120
    np.testing.assert_allclose(rates, 320, rtol=1e-4)


def test_every_file_is_in_the_histogram() -> None:
    sizes = run(1).sizes
    counts = loader_chapter(run(1), text="", facts={}, sheets=()).figures[-1].traces[0]["y"]
    assert sum(counts) == len(sizes)  # type: ignore[call-overload]


def test_the_table_holds_facts_and_totals() -> None:
    table = loader_chapter(run(10), text="", facts={"model": "small"}, sheets=()).table
    assert table is not None
    rows = dict(table.rows)
    assert rows["model"] == "small"
    assert rows["images per second, training included"] == "320"
    assert rows["bytes read"] == "2.5 MB"
    assert rows["waited for the loader"] == "2.0 s of 1.0 s"
    assert rows["validation accuracy"] == "87.5%"


@pytest.mark.parametrize("steps", [1, 2, 119, 121])
def test_short_and_long_runs_can_be_drawn(steps: int) -> None:
    page = render_page([loader_chapter(run(steps), text="t", facts={}, sheets=())], title="t")
    assert "NaN" not in page.split("const figures = ")[1].split("\n")[0]
