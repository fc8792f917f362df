"""What selections leave on disk: whole or not there, no more than so many, and never by a path."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from headwater.data.index import Index
from headwater.errors import WrongUse
from headwater.measure.signals import Signals
from headwater.store.jobs import selections as module
from headwater.store.jobs.selections import Kept, Selections

JOB = "0123456789abcdef"


def make(count: int = 50, seed: int = 0) -> Kept:
    rng = np.random.default_rng(seed)
    return Kept(rng.integers(0, 1 << 62, count), rng.random(count, np.float32), "photos", "v" * 32)


def test_what_was_put_is_there(tmp_path: Path) -> None:
    kept = make()
    Selections(tmp_path / "new").put(JOB, kept)
    found = Selections(tmp_path / "new").get(JOB)
    np.testing.assert_array_equal(found.ids, kept.ids)
    np.testing.assert_array_equal(found.weights, kept.weights)
    assert (found.dataset, found.version, found.digest) == ("photos", "v" * 32, kept.digest)


@pytest.mark.parametrize("of", ["ids", "weights", "version", "end"])
def test_a_flipped_bit_is_seen(tmp_path: Path, of: str) -> None:
    held, kept = Selections(tmp_path), make()
    held.put(JOB, kept)
    path = tmp_path / f"{JOB}.arrow"
    data = bytearray(path.read_bytes())
    marks = {"ids": kept.ids.tobytes(), "weights": kept.weights.tobytes(), "version": b"v" * 32}
    data[data.rindex(marks[of]) + 5 if of in marks else -1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WrongUse, match="is damaged; start another job"):
        held.get(JOB)


@pytest.mark.parametrize("job", ["", "x", "../secret", "0" * 15, JOB.upper(), f"{JOB}.arrow", "\0" * 16])
def test_a_job_that_is_none_has_no_selection(tmp_path: Path, job: str) -> None:
    (tmp_path / "secret.arrow").write_bytes(b"x")
    with pytest.raises(WrongUse, match="no selection of job"):
        Selections(tmp_path / "inner").get(job)


def test_bytes_of_each_sample_are_there_and_are_checked(tmp_path: Path) -> None:
    held, plain = Selections(tmp_path), make()
    rows = np.random.default_rng(1).integers(0, 256, (50, 96)).astype(np.uint8)
    kept = Kept(plain.ids, plain.weights, "photos", "v" * 32, rows)
    held.put(JOB, kept)
    found = held.get(JOB)
    np.testing.assert_array_equal(found.chosen.rows, rows)
    assert found.digest == kept.digest != plain.digest
    path = tmp_path / f"{JOB}.arrow"
    data = bytearray(path.read_bytes())
    data[data.rindex(rows[7].tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(WrongUse, match="is damaged; start another job"):
        held.get(JOB)


def test_large_ones_send_away_those_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 12_000)
    held, plain = Selections(tmp_path), make()
    for number, width in enumerate((1, 1, 100, 1, 400)):  # the last one is larger by itself, and stays
        rows = np.zeros((50, width), np.uint8)
        held.put(f"{number:016x}", Kept(plain.ids, plain.weights, "photos", "v" * 32, rows))
        os.utime(tmp_path / f"{number:016x}.arrow", (number, number))
        if number == 3:
            assert sorted(int(path.stem) for path in tmp_path.iterdir()) == [1, 2, 3]
    assert [int(path.stem) for path in tmp_path.iterdir()] == [4]


def test_only_the_last_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SELECTIONS", 3)
    held = Selections(tmp_path)
    for number in range(6):
        held.put(f"{number:016x}", make())
        os.utime(tmp_path / f"{number:016x}.arrow", (number, number))
    left = sorted(path.stem for path in tmp_path.iterdir())
    assert left == [f"{number:016x}" for number in (3, 4, 5)]


def test_what_a_kill_has_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / f".{JOB}.arrow.x1").write_bytes(b"half")
    Selections(tmp_path).put(JOB, make())
    assert [path.name for path in tmp_path.iterdir()] == [f"{JOB}.arrow"]


def test_a_damaged_table_of_a_run_counts_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = Index.build([f"{number}" for number in range(9)], np.ones(9))
    run = Selections(tmp_path).run("me", "photos", "mine")
    for epoch in (1, 2):
        signals = run.before(epoch, index)
        signals.record(index.ids, np.full(9, epoch, np.float32), epoch=epoch)
        run.put(epoch, signals, dataset=index.version)
    assert set(run.before(3, index).seen.tolist()) == {2}
    (newest,) = tmp_path.rglob("*2.arrow")
    newest.write_bytes(newest.read_bytes()[:-30])
    assert set(run.before(3, index).seen.tolist()) == {1}
    assert "passed over" in caplog.text
    other = Index.build([f"{number}" for number in range(8)], np.ones(8))
    assert not run.before(3, other).has("seen"), "of other data"


def test_runs_are_told_apart_by_all_their_names(tmp_path: Path) -> None:
    index = Index.build(["a"], np.ones(1))
    held = Selections(tmp_path)
    held.run("a", "bc", "d").put(0, Signals(index), dataset=index.version)
    assert held.run("a", "bc", "d").before(1, index).has("seen")
    for names in (("ab", "c", "d"), ("a", "b", "cd"), ("a", "bc", "")):
        assert not held.run(*names).before(1, index).has("seen")


def test_what_was_selected_of_a_dataset_is_forgotten(tmp_path: Path) -> None:
    held, kept = Selections(tmp_path), make()
    held.put(JOB, kept)
    held.put("f" * 16, Kept(kept.ids, kept.weights, "others", "w" * 32))
    index = Index.build(["a.jpg", "b.jpg"], np.array([1, 2]))
    for number, version in enumerate(("v" * 32, "w" * 32)):
        held.run(str(number)).put(1, Signals(index), dataset=version)
    assert held.forget("photos", {"w" * 32}) == 2
    assert held.forget("photos", {"w" * 32}) == 0
    with pytest.raises(WrongUse, match="no selection of job"):
        held.get(JOB)
    assert held.get("f" * 16).dataset == "others"
    assert len(list((tmp_path / "runs").rglob("*.arrow"))) == 1
