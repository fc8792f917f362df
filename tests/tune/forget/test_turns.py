"""Locks of folders: each once, whatever it is called, and none that cannot be had."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from headwater.errors import DatasetError
from headwater.tune.forget.turns import alone


def test_one_folder_by_two_names_is_locked_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with (
        alone([tmp_path / "folder", tmp_path / "link"], ["photos"], patience_seconds=0.0),
        pytest.raises(DatasetError, match="at photos since"),
        alone([tmp_path / "link"], ["others"], patience_seconds=0.0),
    ):
        pass
    with alone([tmp_path / "link"], ["others"], patience_seconds=0.0):
        pass


def test_who_fails_leaves_it_free(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), alone([tmp_path], ["photos"], patience_seconds=0.0):
        raise ZeroDivisionError
    with alone([tmp_path], ["photos"], patience_seconds=0.0):
        pass


def test_all_lock_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[list[int]] = []
    real = fcntl.flock

    def watched(handle: int, how: int) -> None:
        order[-1].append(os.fstat(handle).st_ino)
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", watched)
    folders = [tmp_path / name for name in "abc"]
    for some in (folders, folders[::-1]):
        order.append([])
        with alone(some, ["photos"], patience_seconds=0.0):
            pass
    assert order[0] == order[1]
    assert len(order[0]) == 3


def test_a_folder_that_cannot_be_locked_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(DatasetError, match=r"cannot be locked, so nothing is forgotten: .*; make it a"),
            alone([folder], ["photos"]),
        ):
            pass
