"""Tables of a run: as many as its last states name, and never one that another state needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater import transforms as T
from headwater.data.index import Index
from headwater.errors import StateMismatch
from headwater.loader.tables import KEPT, Tables
from headwater.measure.signals import Signals


@pytest.fixture
def index() -> Index:
    return Index.build([f"{number}.jpg" for number in range(9)], np.full(9, 9))


def table(index: Index, loss: float) -> Signals:
    signals = Signals(index)
    signals.record(index.ids, np.full(9, loss, np.float32), epoch=0)
    return signals


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir()}


def test_a_run_keeps_the_tables_of_its_last_states(index: Index, tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    digests = [tables.save(table(index, number), index) for number in range(KEPT + 4)]
    assert names(tmp_path) == set(digests[-KEPT:])
    assert tables.load(digests[-1], index).loss[0] == KEPT + 3
    with pytest.raises(StateMismatch, match=f"not here; a run keeps those of its last {KEPT} states"):
        tables.load(digests[0], index)


def test_what_is_saved_again_is_new_again(index: Index, tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    first = tables.save(table(index, 0), index)
    for number in (1, 2, 0, 3, 4):
        tables.save(table(index, number), index)
    assert first in names(tmp_path)
    tables.save(table(index, 5), index)
    assert first not in names(tmp_path)


def test_what_others_have_written_stays(index: Index, tmp_path: Path) -> None:
    """The table that a run was resumed from, above all: its first state is the same."""
    before = Tables(tmp_path).save(table(index, 0), index)
    (tmp_path / "notes.txt").write_text("mine")
    tables = Tables(tmp_path)
    tables.load(before, index)
    assert tables.save(table(index, 0), index) == before
    for number in range(1, KEPT + 3):
        tables.save(table(index, number), index)
    assert before in names(tmp_path)
    assert (tmp_path / "notes.txt").exists()
    assert len(names(tmp_path)) == KEPT + 2


def test_a_table_that_cannot_be_written_costs_none_that_is_there(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path)
    kept = {tables.save(table(index, number), index) for number in range(KEPT)}

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headwater.loader.tables.write_batch", full)
    with pytest.raises(StateMismatch, match="No space left"):
        tables.save(table(index, 9), index)
    assert names(tmp_path) == kept


def test_a_loader_that_saves_every_step_fills_no_disk(photo_folder: Path, tmp_path: Path) -> None:
    loader = hw.DataLoader(
        hw.open(photo_folder), [T.Resize((8, 8))], batch_size=2, select="infobatch", signals=tmp_path
    )
    states = []
    for batch in loader:
        loader.report(batch, loss=batch.targets.float())
        states.append(loader.state_dict()["signals"])
    assert len(set(states)) > KEPT
    assert names(tmp_path) == set(states[-KEPT:])
