"""`headwater select`: a dry run over a dataset, with or without what a run has saved."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

import headwater as hw
from headwater import transforms as T
from headwater.cli.select import read_settings
from headwater.errors import WrongUse
from headwater.select import Always, Buckets, Medoids
from headwater.select.selecting import Selector
from headwater.select.selection import Selection


@pytest.fixture(scope="module")
def saved(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of a run of two epochs, in which the loss is the label."""
    folder = tmp_path_factory.mktemp("signals")
    loader = hw.DataLoader(
        hw.open(photo_folder), [T.Resize((8, 8))], batch_size=8, select="infobatch", signals=folder
    )
    for _ in range(2):
        for batch in loader:
            loader.report(batch, loss=batch.targets.float())
    return folder / f"{loader.state_dict()['signals']}.arrow"


def test_a_selector_that_learns_from_nothing_needs_no_run(
    headwater_json: Any, photo_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "ids.csv"
    found = headwater_json("select", photo_folder, "--by", "fresh", "--set", "share=0.5", "--out", out)
    data = hw.open(photo_folder)
    assert found["samples"] == len(data)
    assert 0.3 < found["selected"] / len(data) < 0.7
    assert found["bytes"] < found["bytes_of_all"] == data.sizes.sum()
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == found["selected"]
    assert {int(row["id"]) for row in rows} < set(data.ids.tolist())
    assert np.mean([float(row["weight"]) for row in rows]) == pytest.approx(1)
    assert sum(one["selected"] for one in found["classes"].values()) == found["selected"]


def test_what_a_run_has_saved_decides(headwater_json: Any, photo_folder: Path, saved: Path) -> None:
    found = headwater_json("select", photo_folder, "--by", "infobatch", "--signals", saved)
    assert found["epoch"] == 2
    assert found["selected"] < found["samples"]
    assert "below the mean" in found["reason"]


@pytest.fixture(scope="module")
def late(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Selection]:
    """The table of a run of eight epochs before its last, which waits for data, and what that visits."""
    loader = hw.DataLoader(
        hw.open(photo_folder),
        [T.Resize((8, 8))],
        **{"batch_size": 8, "seed": 11, "epochs": 8, "select": "fresh"},
        signals=(folder := tmp_path_factory.mktemp("late")),
    )
    loader.set_epoch(6)
    for batch in loader:
        loader.report(batch, loss=batch.targets.float(), logits=torch.eye(10)[batch.targets])
    loader.signals.notes["history"][-1]["stalled"] = 0.625  # no test waits for a slow disk
    return folder / f"{loader.state_dict()['signals']}.arrow", loader.selection


def test_a_dry_run_has_what_the_run_has(
    headwater_json: Any, photo_folder: Path, late: tuple[Path, Selection], tmp_path: Path
) -> None:
    table, standing = late
    out = tmp_path / "ids.csv"
    words = ("select", photo_folder, "--signals", table)
    found = headwater_json(*words, "--by", "fresh", "--out", out)
    assert (found["epoch"], found["epochs"], found["seed"], found["stalled"]) == (7, 8, 11, 0.625)
    with out.open() as file:
        ids = [int(row["id"]) for row in csv.DictReader(file)]
    assert ids == hw.open(photo_folder).ids[standing.places].tolist()
    whole = headwater_json(*words, "--by", "infobatch")
    assert whole["reason"] == "everything: the last eighth of the epochs is whole"
    stalled = headwater_json(*words, "--by", "buckets", "--epochs", "80")
    assert "training waits for data 62% of its time" in stalled["reason"]


def test_what_is_given_goes_before_what_the_run_has(
    headwater_json: Any, photo_folder: Path, late: tuple[Path, Selection]
) -> None:
    given = ("--seed", "3", "--epochs", "80", "--stalled", "0")
    found = headwater_json("select", photo_folder, "--signals", late[0], "--by", "buckets", *given)
    assert (found["epochs"], found["seed"], found["stalled"]) == (80, 3, 0)
    assert "waits for data" not in found["reason"]


def test_a_page_shows_plots_and_pictures(
    headwater: Any, photo_folder: Path, saved: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    done = headwater("select", photo_folder, "--by", "infobatch", "--signals", saved, "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    titles = ("Classes", "What samples count", "Losses", "Samples, epoch by epoch", "The highest losses")
    for title in (*titles, "Losses that were known, by quantile"):
        assert f">{title}<" in text
    assert text.count("data:image/png") > 10


@pytest.fixture(scope="module")
def twins(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photos, and copies of three of one class."""
    root = Path(shutil.copytree(photo_folder, tmp_path_factory.mktemp("twins") / "photos"))
    for path in sorted(next(one for one in sorted(root.iterdir()) if one.is_dir()).glob("*.jpg"))[:3]:
        shutil.copy(path, path.with_name(f"{path.stem}-again.jpg"))
    return root


def test_near_duplicates_are_found_left_out_and_shown(
    headwater: Any, headwater_json: Any, twins: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    plain = headwater_json("select", twins)
    assert plain["duplicates"] == {"groups": 0, "samples": 0}
    found = headwater_json("select", twins, "--duplicates", "--html", page)
    groups = found["duplicates"]
    assert groups["groups"] >= 3
    assert found["selected"] == found["samples"] - groups["samples"] + groups["groups"]
    assert found["largest_weight"] == pytest.approx(2, rel=0.1)
    assert "near-duplicates left out" in found["reason"]
    text = page.read_text()
    assert "Near-duplicates" in text
    assert text.count("group 0</") == 2, "the members of a group, side by side"
    shown = headwater("select", twins, "--duplicates").stdout
    assert f"{groups['samples']} in {groups['groups']} groups" in shown


def test_a_run_with_near_duplicates_that_reports_nothing_is_foretold(
    headwater: Any, headwater_json: Any, twins: Path, tmp_path: Path
) -> None:
    data = hw.open(twins)
    duplicates = replace(hw.find_duplicates(data), mode="drop")
    loader = hw.DataLoader(
        data, [T.Resize((8, 8))], batch_size=8, seed=2, duplicates=duplicates, signals=tmp_path
    )
    list(loader)
    table, out = tmp_path / f"{loader.state_dict()['signals']}.arrow", tmp_path / "ids.csv"
    found = headwater_json("select", twins, "--signals", table, "--out", out)
    assert loader.selection is not None
    assert (found["epoch"], found["unknown"]) == (1, [])
    with out.open() as file:
        ids = [int(row["id"]) for row in csv.DictReader(file)]
    assert ids == data.ids[loader.selection.places].tolist()
    assert len(ids) == len(data) - duplicates.redundant
    cached = hw.DataLoader(
        data,
        [T.Resize((8, 8))],
        batch_size=8,
        **{"duplicates": replace(duplicates, mode="stand_in"), "cache": 1 << 20, "signals": tmp_path},
    )
    list(cached)
    table = tmp_path / f"{cached.state_dict()['signals']}.arrow"
    assert "not known here: which samples" in headwater("select", twins, "--signals", table).stdout


def test_what_a_run_has_told_apart_is_plotted(headwater: Any, photo_folder: Path, tmp_path: Path) -> None:
    """The distribution of similarity, of gradients that a run has reported."""
    loader = hw.DataLoader(
        hw.open(photo_folder), [T.Resize((8, 8))], batch_size=8, select="medoids", signals=tmp_path
    )
    for batch in loader:
        logits = one_hot(batch.targets, 10) + batch.inputs.float().mean((1, 2, 3))[:, None]
        loader.report(batch, loss=batch.targets.float(), logits=logits)
    saved = tmp_path / f"{loader.state_dict()['signals']}.arrow"
    page = tmp_path / "page.html"
    words = ("select", photo_folder, "--by", "medoids", "--signals", saved, "--html", page)
    done = headwater(*words)
    assert done.returncode == 0, done.stderr
    assert "How alike two samples of a class are" in page.read_text()


@pytest.mark.parametrize(
    ("selector", "name"),
    [
        (Buckets(rate=1.0, floor=0.1), "waiting"),
        (Medoids(0.5, threshold=0.5, every=1, floor=0.1), "dropped as learned"),
    ],
    ids=["buckets", "medoids"],
)
def test_who_is_set_aside_is_plotted_by_the_name_that_the_runs_selector_has_for_that(
    headwater: Any, photo_folder: Path, tmp_path: Path, selector: Selector, name: str
) -> None:
    """Whichever selector is looked at now."""
    steps, options = [T.Resize((8, 8))], {"batch_size": 8, "signals": tmp_path}
    loader = hw.DataLoader(hw.open(photo_folder), steps, select=Always(selector), **options)
    for _ in range(3):
        for batch in loader:
            loader.report(batch, loss=torch.zeros(len(batch)), logits=9.0 * one_hot(batch.targets, 10))
    assert np.count_nonzero(loader.signals.bucket) > 0
    saved, page = tmp_path / f"{loader.state_dict()['signals']}.arrow", tmp_path / "page.html"
    done = headwater("select", photo_folder, "--by", "fresh", "--signals", saved, "--html", page)
    assert done.returncode == 0, done.stderr
    known = {"waiting", "dropped as learned", "left out by the proxy", "in bucket 1"}
    assert {one for one in known if f'"name":"{one}"' in page.read_text()} == {name}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--by", "best"], "no selector 'best'"),
        (["--by", "fresh", "--set", "part=1"], "no parameter 'part'"),
        (["--by", "fresh", "--set", "share"], "NAME=VALUE"),
        (["--by", "fresh", "--set", "share=2"], "share is 2"),
        (["--signals", "nowhere.arrow"], "no file nowhere.arrow"),
        (["--by", "infobatch", "--epoch", "3", "--signals", "SAVED-ELSEWHERE"], "no file"),
    ],
)
def test_what_cannot_be_is_named(headwater: Any, photo_folder: Path, words: list[str], said: str) -> None:
    done = headwater("select", photo_folder, *words)
    assert done.returncode in (1, 2)
    assert said in done.stderr


def test_settings_are_names_and_plain_values() -> None:
    assert read_settings(["a=1", "b=0.5", "c=true", "d=none", "e=[1]"]) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": "none",
        "e": "[1]",
    }
    with pytest.raises(WrongUse, match="NAME=VALUE"):
        read_settings(["=1"])
