"""Groups by a job: those that are found at one go, whatever is kept, through stops and kills."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.data.image.fingerprint import VIEWS, WORDS
from headwater.data.index import Index
from headwater.engine.inference import Failed
from headwater.errors import DatasetStale, SampleCorrupt, WrongUse
from headwater.select.duplicates import group_hashes
from headwater.store.cabinet import Cabinet
from headwater.store.fingerprints import Fingerprints
from headwater.store.jobs import duplicates as module
from headwater.store.jobs.duplicates import Batch, Gallery, check_bound, find_groups, unfold
from headwater.store.jobs.record import JobRecord
from headwater.store.jobs.runner import Running
from headwater.store.jobs.selections import Selections

COUNT = 300
numbers = itertools.count()


def make_hashes() -> np.ndarray:
    """The last third repeats the first with a bit turned over."""
    rng = np.random.default_rng(2)
    found = rng.integers(0, 1 << 63, (COUNT, len(VIEWS), WORDS)).astype(np.uint64)
    found[200:] = found[:100] ^ np.uint64(1)
    return found


HASHES = make_hashes()
LABELS = np.concatenate((np.arange(200) % 7, np.arange(100) % 7))
LABELS[205] = 6 if LABELS[205] != 6 else 0  # alike, and of another label


@dataclass
class Files:
    """A look at pictures, of which some cannot be looked at; counts those that it made."""

    index: Index
    prints: Fingerprints | None = None
    broken: frozenset[int] = frozenset()
    made: list[int] = field(default_factory=list)

    def kept(self, positions: np.ndarray) -> Batch:
        if self.prints is None:
            return positions[:0], np.empty(0), ()
        places, hashes = self.prints.get(self.index.ids[positions])
        return positions[places], hashes, ()

    def make(self, positions: np.ndarray) -> Iterator[Batch]:
        for part in np.array_split(positions, 3):
            sound = np.array([at for at in part.tolist() if at not in self.broken], np.int64)
            lost = [at for at in part.tolist() if at in self.broken]
            self.made += sound.tolist()
            if self.prints is not None:
                self.prints.put(sound, HASHES[sound])
            failed = (Failed(at, int(self.index.ids[at]), SampleCorrupt("damaged")) for at in lost)
            yield sound, HASHES[sound], tuple(failed)

    def group(self, rows: np.ndarray, labels: np.ndarray, ids: np.ndarray) -> Any:
        return group_hashes(rows, labels, ids=ids)


def make_index() -> Index:
    keys = [f"{number}.jpg" for number in range(COUNT)]
    return Index.build(keys, np.arange(1, COUNT + 1), labels=LABELS, classes=tuple("abcdefg"))


def run(
    look: Files, folder: Path, over: Callable[[], bool] = lambda: False, **more: Any
) -> tuple[JobRecord, np.ndarray]:
    """The job, and the group of each sample."""
    record = JobRecord(
        id=f"{next(numbers):016x}",
        kind="duplicates",
        dataset="photos",
        version=look.index.version,
        model="",
        by="tester",
        begun="now",
        bound=18,
    )
    running = Running(record, lambda record: None, over)
    selections = Selections(folder)
    find_groups(Gallery("photos", look.index, look, selections, **more), running)
    groups = np.full(COUNT, -1, np.int32)
    if running.record.result:
        kept = selections.get(record.id)
        assert kept.digest == running.record.result
        groups[look.index.position_of(kept.ids)] = unfold(kept.weights)
    return running.record, groups


def test_rows_go_out_for_who_has_those_of_other_parts(tmp_path: Path) -> None:
    look, selections = Files(make_index(), broken=frozenset({3})), Selections(tmp_path)
    record = JobRecord(
        *("0" * 16, "duplicates", "photos", look.index.version, "", "tester", "now"), options={"rows": True}
    )
    running = Running(record, lambda record: None)
    find_groups(Gallery("photos", look.index, look, selections), running)
    kept, sound = selections.get(record.id), np.delete(np.arange(COUNT), 3)
    assert kept.digest == running.record.result
    assert running.record.counts == {"looked_at": COUNT - 1, "failed": 1, "chosen": COUNT - 1}
    np.testing.assert_array_equal(kept.ids, look.index.ids[sound])
    assert kept.rows is not None
    np.testing.assert_array_equal(kept.rows.view("<u8"), HASHES[sound].reshape(COUNT - 1, -1))


def same_groups(left: np.ndarray, right: np.ndarray) -> bool:
    """Whatever numbers they have."""

    def sets(groups: np.ndarray) -> set[frozenset[int]]:
        return {frozenset(np.flatnonzero(groups == one).tolist()) for one in np.unique(groups[groups >= 0])}

    return sets(left) == sets(right)


@pytest.mark.parametrize("block", [1, 60, 10**6])
def test_classes_apart_give_the_groups_of_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    record, groups = run(Files(make_index()), tmp_path)
    assert same_groups(groups, group_hashes(HASHES, LABELS))
    assert record.counts == {"looked_at": COUNT, "failed": 0, "groups": 99, "chosen": 198}
    assert (record.cursor, record.total) == (COUNT, COUNT)


def test_what_cannot_be_looked_at_is_alone_and_named(tmp_path: Path) -> None:
    record, groups = run(Files(make_index(), broken=frozenset({3, 150})), tmp_path)
    assert [one.key for one in record.failures] == ["3.jpg", "150.jpg"]
    assert (record.counts["failed"], record.counts["looked_at"]) == (2, COUNT - 2)
    assert groups[203] == groups[3] == -1
    assert record.counts["groups"] == 98


def test_what_is_kept_is_not_made_again(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path / "kept", most_bytes=1 << 20)
    look = Files(make_index(), Fingerprints(cabinet, make_index(), dataset="photos"))
    assert look.prints is not None
    look.prints.put(np.arange(0, COUNT, 2), HASHES[::2])
    _, first = run(look, tmp_path)
    assert sorted(look.made) == list(range(1, COUNT, 2))
    _, second = run(look, tmp_path)
    assert len(look.made) == COUNT // 2
    assert same_groups(first, second)
    assert same_groups(first, group_hashes(HASHES, LABELS))
    cabinet.close()


def test_stopped_between_classes_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 1)
    spent: list[float] = []

    @contextmanager
    def spend(seconds: float) -> Iterator[None]:
        spent.append(seconds)
        yield

    record, _ = run(Files(make_index()), tmp_path, lambda: len(spent) > 2, spend=spend)
    assert (record.result, len(spent)) == ("", 3)
    assert spent[0] == 0 < spent[1]
    assert not list(tmp_path.iterdir())


def test_no_samples_have_no_groups(tmp_path: Path) -> None:
    record, groups = run(Files(make_index(), broken=frozenset(range(COUNT))), tmp_path)
    assert record.counts == {"looked_at": 0, "failed": COUNT, "groups": 0, "chosen": 0}
    assert (groups == -1).all()


def test_data_that_changed_needs_another_job(tmp_path: Path) -> None:
    look = Files(make_index())
    record = JobRecord("0" * 16, "duplicates", "photos", "0" * 32, "", "tester", "now")
    with pytest.raises(DatasetStale, match="start another"):
        find_groups(
            Gallery("photos", look.index, look, Selections(tmp_path)), Running(record, lambda record: None)
        )


def test_done_before_it_could_say_so_it_is_not_done_again(tmp_path: Path) -> None:
    look = Files(make_index())
    record, _ = run(look, tmp_path)
    again = Running(msgspec.structs.replace(record, state="running"), lambda record: None)
    look.made.clear()
    find_groups(Gallery("photos", look.index, look, Selections(tmp_path)), again)
    assert not look.made


@given(st.lists(st.integers(2, 5), max_size=12))
def test_sizes_tell_groups(sizes: list[int]) -> None:
    rows = np.repeat(np.array(sizes, np.float32), np.array(sizes, np.int64))
    wanted = np.repeat(np.arange(len(sizes)), np.array(sizes, np.int64))
    assert unfold(rows).tolist() == wanted.tolist()


@pytest.mark.parametrize("rows", [[1.0], [2.0], [2.0, 2.0, 2.0], [2.5, 2.5], [np.nan, np.nan], [-2.0, -2.0]])
def test_sizes_that_are_none(rows: list[float]) -> None:
    with pytest.raises(ValueError, match="groups"):
        unfold(np.array(rows, np.float32))


@pytest.mark.parametrize(
    ("model", "bound"), [("", -1.0), ("", 129.0), ("", 1.5), ("m", 0.0), ("m", 1.1), ("", float("nan"))]
)
def test_bounds_that_cannot_be(model: str, bound: float) -> None:
    with pytest.raises(WrongUse, match=r"whole number|above 0"):
        check_bound(model, bound)
