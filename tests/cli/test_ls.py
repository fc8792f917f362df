from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import headwater as hw


def test_the_document_says_what_the_dataset_holds(headwater_json: Any, photo_folder: Path) -> None:
    found = headwater_json("ls", photo_folder, "--samples", 2)
    data = hw.open(photo_folder)
    assert found["samples"] == len(data) == sum(found["classes"].values())
    assert tuple(found["classes"]) == data.classes
    assert found["bytes"] == data.sizes.sum()
    assert found["version"] == data.version
    assert found["sizes"]["largest"] == data.sizes.max()
    assert [entry["key"] for entry in found["first"]] == [data[0].key, data[1].key]


def test_every_layout_can_be_listed(headwater_json: Any, photo_tars: Path, photo_parquet: Path) -> None:
    for path in (photo_tars, photo_parquet):
        found = headwater_json("ls", path)
        assert found["samples"] == len(hw.open(path))


def test_the_table_shows_the_same(headwater: Any, photo_folder: Path) -> None:
    done = headwater("ls", photo_folder)
    data = hw.open(photo_folder)
    assert done.returncode == 0
    assert f"{len(data)} (" in done.stdout
    assert data.version in done.stdout
    assert data[0].key in done.stdout


def test_names_cannot_write_to_the_terminal(headwater: Any, photo_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "hostile"
    folder = root / "evil\x1b[31mred[bold]"
    folder.mkdir(parents=True)
    shutil.copy(next(photo_folder.rglob("*.jpg")), folder / "a.jpg")
    done = headwater("ls", root)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "red[bold]" in done.stdout


def test_samples_can_be_left_out(headwater_json: Any, photo_folder: Path) -> None:
    assert headwater_json("ls", photo_folder, "--samples", 0)["first"] == []
