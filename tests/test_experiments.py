"""What long experiments keep of their runs, and what pairs of runs tell."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pages import ROOT


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # where it finds what names the commit
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
    assert found.used.startswith("4 runs of 6 CPU s in all, 2 of them new")


def test_runs_are_told_apart_by_the_commit_that_made_them(
    experiments: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = tmp_path / "runs.jsonl", make_run(experiments, 60.0)
    path.write_text(
        json.dumps({"key": {"data": "a", "setting": "b", "seed": 0}, "run": dataclasses.asdict(run)}) + "\n"
    )
    for seed, name in ((1, "abc"), (2, "def+"), (3, "abc")):
        monkeypatch.setattr(experiments, "commit", lambda name=name: name)
        experiments.Results(path).put(experiments.Key("a", "b", seed), run)
    assert experiments.Results(path).used.endswith("; runs by commit: abc 2, unknown 1, def+ 1")


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


def test_runs_of_another_kind_are_kept_too(experiments: ModuleType, tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Bare:
        cpu: float
        rounds: list[dict[str, float]]

    path, key = tmp_path / "runs.jsonl", experiments.Key("photos", "a", 0)
    experiments.Results(path, Bare).put(key, Bare(1.5, [{"bytes": 3.0}]))
    again = experiments.Results(path, Bare)
    assert (again[key], again.cpu) == (Bare(1.5, [{"bytes": 3.0}]), 1.5)


def test_time_to_an_accuracy(experiments: ModuleType) -> None:
    run = make_run(experiments, 60.0)
    assert [run.seconds_to(wanted) for wanted in (50.0, 55.0, 60.1)] == [1.0, 1.5, math.inf]


def test_time_to_an_accuracy_is_compared_with_that_of_the_full_run_itself(experiments: ModuleType) -> None:
    full = [make_run(experiments, 60.0), make_run(experiments, 60.4)]  # as good after 1.5 s
    early = dataclasses.replace(make_run(experiments, 60.0), accuracy=[59.95, 58.0])
    assert experiments.sooner([early], full, lost=0.3) == pytest.approx(1.5)
    assert experiments.sooner(full, full, lost=0.3) == 1.0
    assert experiments.sooner([make_run(experiments, 59.0)], full, lost=0.3) == 0.0


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


@pytest.fixture
def iowa(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("iowa_tables")


def make_tables(module: ModuleType, path: Path, runs: dict[str, Any]) -> Any:
    """Runs of every setting with four seeds: these, and else such that are slow and bad."""
    usual = make_run(module, 55.0)
    found = module.Found(module.Results(path), "digits", range(4))
    found.make(module.SETTINGS, lambda setting, seed: runs.get(setting, usual))
    return found


def test_the_best_selector_is_judged_by_the_time_to_one_accuracy(iowa: ModuleType, tmp_path: Path) -> None:
    full, quick = (make_run(iowa, 60.0) for _ in range(2))
    quick = dataclasses.replace(quick, seconds=[0.2, 0.8])
    late = dataclasses.replace(full, accuracy=[59.9, 60.0])  # the full run is as good after two thirds
    found = make_tables(iowa, tmp_path / "a", {"full": full, "fresh, 30%": quick, "infobatch": quick})
    best = iowa.find_best(found, iowa.SELECTORS)
    assert (best.name, best.holds) == ("infobatch", True), "no random share is among those"
    assert iowa.find_best(found, iowa.CANDIDATES).name == "fresh, 30%"
    assert (best.sooner, best.faster) == (pytest.approx(1.5 / 0.8), pytest.approx(1.5 / 0.8))
    found = make_tables(iowa, tmp_path / "b", {"full": late, "fresh, 30%": quick, "infobatch": quick})
    best = iowa.find_best(found, iowa.SELECTORS)
    assert (best.sooner, best.faster) == (pytest.approx(1.0 / 0.8), pytest.approx(1.5 / 0.8))
    assert not best.holds


def test_a_selector_that_was_good_too_early_is_not_the_best(iowa: ModuleType, tmp_path: Path) -> None:
    full = make_run(iowa, 60.0)
    early = dataclasses.replace(full, accuracy=[61.0, 50.0], seconds=[0.1, 0.2])
    quick = dataclasses.replace(full, seconds=[0.2, 0.8])
    found = make_tables(iowa, tmp_path / "a", {"full": full, "proxy": early, "infobatch": quick})
    assert iowa.find_best(found, iowa.CANDIDATES).name == "infobatch"
    found = make_tables(iowa, tmp_path / "b", {"full": full, "proxy": early})
    assert not iowa.find_best(found, iowa.CANDIDATES).holds
