"""Columns that are files: the same numbers, and in memory where there is no room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from headwater.data.index import Index, write_batch
from headwater.measure import mapped
from headwater.measure.mapped import make_column
from headwater.measure.signalfile import as_batch, read_signals
from headwater.measure.signals import COLUMNS, Signals


def is_mapped(column: np.ndarray) -> bool:
    owner: object = column
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    return isinstance(owner, np.memmap)


@pytest.fixture
def least(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes from which on a column is a file."""
    monkeypatch.setattr(mapped, "LEAST_BYTES", 1 << 10)
    return 1 << 10


@pytest.mark.parametrize("unknown", [np.nan, -1.0, 0.0])
def test_a_large_column_lies_in_a_file_that_nobody_sees(tmp_path: Path, least: int, unknown: float) -> None:
    column = make_column((least, 2), np.float32, unknown, folder=tmp_path / "signals")
    assert is_mapped(column)
    assert list((tmp_path / "signals").iterdir()) == []
    np.testing.assert_array_equal(column, np.full((least, 2), unknown, np.float32))
    column[7] = 5
    assert column[7].tolist() == [5, 5]
    assert not is_mapped(make_column((least // 8,), np.float32, unknown, folder=tmp_path))
    assert not is_mapped(make_column((least,), np.float32, unknown, folder=None))


def test_without_room_it_stays_in_memory_and_a_line_says_so(
    tmp_path: Path, least: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*place: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    column = make_column((least,), np.int32, -1, folder=tmp_path)
    assert not is_mapped(column)
    assert set(column.tolist()) == {-1}
    assert "No space left" in caplog.text


def test_a_table_of_files_is_the_same_table(tmp_path: Path, least: int) -> None:
    index = Index.build([f"{number:04d}.jpg" for number in range(400)], np.full(400, 9))
    rng = np.random.default_rng(0)
    tables = [Signals(index), Signals(index, folder=tmp_path)]
    for epoch in range(3):
        ids, told = rng.permutation(index.ids)[:100], rng.random((3, 100)).astype(np.float32)
        for table in tables:
            table.record(ids, told[0], epoch=epoch, probability=told[1], margin=told[2], vectors=told.T)
    assert is_mapped(tables[1].loss)
    assert is_mapped(tables[1].vectors)
    (_, digest), (again, same) = (as_batch(table, dataset=index.version) for table in tables)
    assert same == digest
    write_batch(tmp_path / "table.arrow", again)
    read = read_signals(tmp_path / "table.arrow", index, folder=tmp_path)
    assert is_mapped(read.losses)
    assert as_batch(read, dataset=index.version)[1] == digest


def test_rows_take_the_bytes_that_the_docs_say() -> None:
    index = Index.build([f"{number}.jpg" for number in range(1000)], np.full(1000, 9))
    signals, some = Signals(index), np.zeros(1000, np.float32)
    signals.record(index.ids, some, epoch=0)
    signals.note_load(np.arange(1000), seconds=some, bytes=some, epoch=0)
    signals.column("weight")
    assert signals.nbytes == 46 * 1000
    signals.record(index.ids, some, epoch=0, probability=some, margin=some)
    assert signals.nbytes == 74 * 1000
    signals.record(index.ids, some, epoch=0, vectors=np.zeros((1000, 32), np.float16))
    assert signals.nbytes == 138 * 1000
    for name in COLUMNS:
        signals.column(name)
    assert signals.nbytes == (138 + 13 + 4) * 1000
