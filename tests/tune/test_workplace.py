"""Fine-tunings that nobody goes on with do not fill the disk, and those under way are left alone."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from headwater.errors import ModelError
from headwater.tune.workplace import IDLE_DAYS, working

DAY = 86_400.0


def leave(cache: Path, key: str, *, days: float) -> Path:
    """A fine-tuning that was begun and given up so long ago."""
    folder = cache / "finetune" / key
    folder.mkdir(parents=True)
    for name in ("features.f16", "features.log", "lock"):
        (folder / name).write_bytes(b"x" * 100)
    age(folder, days)
    return folder


def age(folder: Path, days: float) -> None:
    then = time.time() - days * DAY
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))


def test_what_was_given_up_long_ago_is_removed_and_said(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, recent = leave(cache, "a" * 32, days=IDLE_DAYS + 1), leave(cache, "b" * 32, days=IDLE_DAYS - 1)
    half_gone = leave(cache, "c" * 32 + ".done", days=IDLE_DAYS + 1)
    with caplog.at_level(logging.WARNING, "headwater"), working("d" * 32) as place:
        left = sorted(folder.name for folder in place.folder.parent.iterdir())
    assert left == [recent.name, "d" * 32]
    told = {record.getMessage() for record in caplog.records}
    assert told == {
        f"removed {folder}: nobody went on with that fine-tuning for 30 days" for folder in (old, half_gone)
    }


def test_one_change_of_late_keeps_it(cache: Path) -> None:
    folder = leave(cache, "a" * 32, days=IDLE_DAYS + 1)
    (folder / "training.state").write_bytes(b"epoch 3")
    with working("d" * 32):
        assert folder.exists()


def test_one_that_is_under_way_is_left_alone(cache: Path) -> None:
    with working("a" * 32) as place:
        age(place.folder, IDLE_DAYS + 1)
        with working("b" * 32):
            assert place.folder.exists()


def test_ones_own_is_gone_on_with_however_old(cache: Path) -> None:
    folder = leave(cache, "a" * 32, days=10 * IDLE_DAYS)
    with working("a" * 32):
        assert (folder / "features.log").exists()


def test_a_folder_that_cannot_be_made(cache: Path) -> None:
    cache.write_text("no folder")
    with pytest.raises(ModelError, match=r"cannot work in .*; set HEADWATER_CACHE"), working("a" * 32):
        pass
