"""A forked child is told what is wrong instead of waiting for threads that it does not have."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

import headwater as hw
from forks import in_child
from headwater import transforms as T
from headwater.errors import ForkedUse

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.timeout(60),
]


@pytest.fixture
def loader(photo_folder: Path) -> hw.DataLoader:
    return hw.DataLoader(hw.open(photo_folder), [T.Resize((8, 8))], batch_size=4, num_workers=2)


def test_a_loader_made_by_the_parent(loader: hw.DataLoader) -> None:
    list(loader)
    answer = in_child(lambda: next(iter(loader)))
    assert answer.startswith(ForkedUse.__name__)
    assert str(os.getpid()) in answer
    assert "spawn" in answer


def test_an_iterator_that_the_parent_began(loader: hw.DataLoader) -> None:
    batches = iter(loader)
    next(batches)
    assert in_child(lambda: [next(batches) for _ in range(9)]).startswith(ForkedUse.__name__)


@pytest.mark.parametrize("layout", ["photo_folder", "photo_tars", "photo_parquet"])
def test_a_dataset_of_the_parent_works_in_the_child(layout: str, request: pytest.FixtureRequest) -> None:
    """Also if another thread of the parent was reading from it, and held its lock, at that moment."""
    data = hw.open(request.getfixturevalue(layout))
    list(hw.DataLoader(data, [T.Resize((8, 8))], batch_size=4, num_workers=2))

    def load() -> None:
        made = hw.DataLoader(data, [T.Resize((8, 8))], batch_size=4, num_workers=2)
        sys.exit(str(sum(len(batch) for batch in made)))

    source = data.store.source
    locks = [lock for lock in (getattr(source._files, "_lock", None), source_lock(source)) if lock]  # type: ignore[attr-defined]
    for lock in locks:
        lock.acquire()
    try:
        assert in_child(load) == f"SystemExit: {len(data)}"
    finally:
        for lock in locks:
            lock.release()


def source_lock(source: object) -> threading.Lock | None:
    """The lock of a Parquet source's cache of row groups."""
    return getattr(getattr(source, "_groups", None), "_lock", None)


def test_a_loader_made_in_the_child_works(photo_folder: Path) -> None:
    def load() -> None:
        made = hw.DataLoader(hw.open(photo_folder), [T.Resize((8, 8))], batch_size=4, num_workers=2)
        sys.exit(str(sum(len(batch) for batch in made)))

    assert in_child(load) == f"SystemExit: {len(hw.open(photo_folder))}"
