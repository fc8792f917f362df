"""Where training stands comes back as it was, or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from headwater.tune import state
from headwater.tune.state import Standing

TENSORS = {
    "head/weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "optimiser/0/step": np.float32(3)[None][0:1],
}
PLAIN = {"optimiser/0/momentum_buffer": None, "optimiser/1/step": 4}


def test_epochs_and_runs_add_up() -> None:
    standing = Standing().trained(0.5).trained(0.25)
    assert (standing.run, standing.epoch, standing.losses) == (0, 2, ((0.5, 0.25),))
    later = standing.ended(0.75).trained(0.125)
    assert (later.run, later.epoch, later.losses, later.accuracy) == (1, 1, ((0.5, 0.25), (0.125,)), (0.75,))
    assert later.ended(None).accuracy == (0.75, None)


def test_round_trip(tmp_path: Path) -> None:
    standing = Standing().trained(0.1).ended(None).trained(1 / 3)
    state.save(tmp_path / "s", standing, tensors=TENSORS, plain=PLAIN)
    found = state.load(tmp_path / "s")
    assert found is not None
    assert (found[0], found[2]) == (standing, PLAIN)
    assert all(np.array_equal(found[1][name], value) for name, value in TENSORS.items())


def test_nothing_saved_is_nothing(tmp_path: Path) -> None:
    assert state.load(tmp_path / "s") is None


def test_any_altered_byte_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s"
    state.save(path, Standing().trained(0.1), tensors=TENSORS, plain=PLAIN)
    good = path.read_bytes()
    caplog.set_level(logging.CRITICAL)
    for place in range(0, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :])
        assert state.load(path) is None, place


def test_a_damaged_state_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "s").write_bytes(b"nonsense")
    assert state.load(tmp_path / "s") is None
    assert "training begins anew" in caplog.text
