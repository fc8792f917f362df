"""What every benchmark prints about itself."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pages import ROOT


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that benchmarks print with, in a folder of its own."""
    copy = shutil.copy(ROOT / "benchmarks" / "measuring.py", tmp_path)
    spec = importlib.util.spec_from_file_location("measuring", copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "measuring", module)  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_header_names_the_commit_and_whether_the_tree_is_changed(
    measuring: ModuleType, tmp_path: Path
) -> None:
    def git(*words: str) -> str:
        settings = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        done = subprocess.run(["git", *settings, *words], cwd=tmp_path, check=True, capture_output=True)
        return done.stdout.decode().strip()

    assert "commit" not in measuring.machine()
    git("init", "--quiet")
    git("add", "measuring.py")
    git("commit", "--quiet", "--message", "All of it")
    (tmp_path / ".git" / "info" / "exclude").write_text("__pycache__\n")
    commit = git("rev-parse", "--short", "HEAD")
    assert re.search(rf", commit {commit}, load", measuring.machine())
    (tmp_path / "measuring.py").write_text("changed")
    assert re.search(rf", commit {commit}\+, load", measuring.machine())


def test_without_git_there_is_no_commit(measuring: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "commit" not in measuring.machine()


def test_a_benchmark_can_be_told_numbers_of_its_own(
    measuring: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"core-watts": measuring.Flag(10.0, "of a core"), "gigabyte": measuring.Flag(0.5, "price")}
    monkeypatch.setattr(sys, "argv", ["near_data.py", "--quick", "--core-watts", "7.5"])
    options = measuring.read_options("Words.", flags)
    assert options.quick
    assert options.numbers == {"core-watts": 7.5, "gigabyte": 0.5}


def test_a_benchmark_can_be_told_folders_of_its_own_which_it_does_not_print(
    measuring: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tables.py", "--data", "/a", "--work", "/b", "--quick"])
    options = measuring.read_options("Words.", {}, {"work": "keeps things", "fashion": "clothes"})
    assert options.folders == {"work": Path("/b"), "fashion": None}
    shown = ".venv/bin/python benchmarks/tables.py --data FOLDER --work FOLDER --quick"
    assert measuring.command(options) == shown


def test_a_benchmark_can_be_told_to_choose_what_there_is(
    measuring: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"best": ("infobatch", "buckets of ours, 5%")}
    monkeypatch.setattr(sys, "argv", ["confirm.py", "--best", "buckets of ours, 5%"])
    options = measuring.read_options("Words.", {}, {}, names)
    assert options.names == {"best": "buckets of ours, 5%"}
    assert measuring.command(options).endswith("confirm.py --best 'buckets of ours, 5%'")
    monkeypatch.setattr(sys, "argv", ["confirm.py", "--best", "another"])
    with pytest.raises(SystemExit, match="2"):
        measuring.read_options("Words.", {}, {}, names)
    monkeypatch.setattr(sys, "argv", ["confirm.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        measuring.read_options("Words.", {}, {}, names)
    assert "buckets of ours, 5%" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["confirm.py"])
    assert measuring.read_options("Words.", {}, {}, names).names == {"best": None}


@pytest.mark.parametrize(("ratios", "holds"), [([1.14, 0.2, 1.14], True), ([0.8, 0.84, 9.0], False)])
def test_a_prediction_is_judged_by_the_median(
    measuring: ModuleType, ratios: list[float], holds: bool
) -> None:
    bar = measuring.close_to_one("seconds", ratios, 0.15)
    assert (bar.holds, bar.asked) == (holds, "within 15%")


@pytest.fixture
def cuts(measuring: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("cuts")


def test_cuts_take_turns_and_each_has_the_seconds_of_its_rounds(cuts: ModuleType) -> None:
    told: list[str] = []
    ready = [cuts.Ready(name, lambda name=name: told.append(name), lambda: None, 0.0) for name in "ab"]
    found = cuts.race(ready, cuts.Options(None, quick=False, json=False))
    batches = 8
    assert told == (["a"] * batches + ["b"] * batches) * (1 + cuts.ROUNDS), "a round goes before the first"
    assert {name: len(seconds) for name, seconds in found.items()} == {"a": cuts.ROUNDS, "b": cuts.ROUNDS}


@pytest.mark.parametrize(("taken", "holds"), [((0.9, 1.1, 5.0), True), ((1.15, 1.3, 1.4), False)])
def test_the_cut_of_the_plan_is_judged_by_the_spread_of_the_best(
    cuts: ModuleType, taken: tuple[float, ...], holds: bool
) -> None:
    """What ships more than the image is no choice, however quick."""
    rounds = {"images": (1.0, 1.0, 1.2), "features": taken, "large": (0.1,)}
    sizes = {"images": 100.0, "features": 1.0, "large": 1e6}
    found = [cuts.Found(cuts.Cut(name, 0.0, sizes[name], 0.0), rounds[name]) for name in rounds]
    bar = cuts.holds("net", cuts.Outcome(found, "features"))
    assert (bar.holds, bar.found.startswith("features")) == (holds, True)
    assert "images 1000.00 ms (1000.00..1200.00)" in bar.found


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("near_selection")


def test_a_proxy_that_is_not_int8_fails_the_bar_of_int8(near: ModuleType) -> None:
    int8 = {"precision": "int8", "correlation": 0.97, "chosen": 5, "bytes": 100}
    fell_back = {**int8, "precision": "fp32", "correlation": None}
    badly, lost = {**int8, "correlation": 0.94}, {**int8, "precision": "", "correlation": None, "chosen": 0}

    def holds(*rounds: dict[str, object], weights: int = 400) -> list[bool]:
        return [bar.holds for bar in near.proxy_bars([rounds], weights)]

    assert holds(int8, int8) == [True, True]
    assert holds(int8, int8, weights=399) == [True, False]
    assert holds(int8, fell_back) == holds(int8, badly) == [False, True]
    assert holds(int8, lost) == holds() == [False, False]
