"""A bar when asked for or on a terminal, silence otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater as hw
from headwater import transforms as T


def load(folder: Path, progress: bool | None) -> None:
    list(hw.DataLoader(hw.open(folder), [T.Resize((8, 8))], batch_size=6, progress=progress))


def test_silent_where_there_is_no_terminal(photo_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(photo_folder, None)
    load(photo_folder, False)
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_request(photo_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(photo_folder, True)
    output = capfd.readouterr()
    assert output.out == ""
    for word in ("epoch 0", "6/6", "samples/s", "MB/s", "waiting"):
        assert word in output.err
