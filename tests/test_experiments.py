"""What long experiments keep of their runs, and what pairs of runs tell."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pages import ROOT


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("experiments", ROOT / "benchmarks" / "experiments.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "experiments", module)  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def make_run(module: ModuleType, accuracy: float) -> Any:
    return module.Run(
        [50.0, accuracy], [4, 2], [400, 200], [400.0, 150.0], [0, 1], [1.0, 1.5], {"training": 1.5}, 2.0
    )


def test_what_was_made_is_not_made_again(experiments: ModuleType, tmp_path: Path) -> None:
    path, made = tmp_path / "runs.jsonl", []

    def train(setting: str, seed: int) -> Any:
        made.append((setting, seed))
        return make_run(experiments, 60.0 + seed)

    experiments.Found(experiments.Results(path), "digits", range(1)).make(["a", "b"], train)
    found = experiments.Found(experiments.Results(path), "digits", range(2))
    found.make(["a", "b"], train)
    assert made == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert experiments.finals(found.of("b")) == [60.0, 61.0]
    assert found.used == "4 runs of 6 CPU s in all, 2 of them new"


def test_a_run_that_was_cut_off_is_made_again(experiments: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    results, key = experiments.Results(path), experiments.Key("digits", "a", 0)
    results.put(key, make_run(experiments, 60.0))
    results.put(experiments.Key("digits", "a", 1), make_run(experiments, 61.0))
    path.write_bytes(path.read_bytes()[:-7])
    again = experiments.Results(path)
    assert len(again) == 1
    assert again[key] == make_run(experiments, 60.0)
    again.put(experiments.Key("digits", "a", 1), make_run(experiments, 62.0))
    assert len(experiments.Results(path)) == 2


def test_time_to_an_accuracy(experiments: ModuleType) -> None:
    run = make_run(experiments, 60.0)
    assert [run.seconds_to(wanted) for wanted in (50.0, 55.0, 60.1)] == [1.0, 1.5, math.inf]


def test_the_interval_of_pairs(experiments: ModuleType) -> None:
    apart = experiments.Difference.of([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert apart.mean == pytest.approx(2.0)
    assert apart.half == pytest.approx(4.303 / math.sqrt(3))  # t of two degrees of freedom, a deviation of 1
    assert apart.verdict == "equal"
    assert experiments.Difference.of([3.0, 3.1], [1.0, 1.0]).verdict == "ahead"
    assert experiments.Difference.of([1.0, 1.0], [3.0, 3.1]).verdict == "behind"
    assert experiments.Difference.of([5.0], [1.0]).verdict == "equal"
    many = experiments.Difference.of([0.0, 1.0] * 50, [0.0] * 100)
    assert many.half == pytest.approx(1.984 * 0.5025 / 10, rel=2e-3)


@pytest.mark.parametrize(
    ("at", "found"), [(0.0, 5.0), (1.0, 5.0), (1.5, 6.0), (2.0, 7.0), (4.0, 9.0), (9.0, 9.0)]
)
def test_between_two_runs_lies_a_line(experiments: ModuleType, at: float, found: float) -> None:
    assert experiments.interpolate([1.0, 2.0, 4.0], [5.0, 7.0, 9.0], at) == pytest.approx(found)
