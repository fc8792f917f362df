"""What a store keeps of images, with labels in SQLite and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from datasets import make_photo
from headwater.models.version import ModelVersion
from headwater.store.server.keeping import Keeper, Opinion
from headwater.store.server.shard import Arrival
from headwater.store.server.state import State
from labelled import Kind
from relabelling import nudged, small_model

RNG = np.random.default_rng(5)
IMAGES = [Arrival(make_photo(RNG, 16, 16), "jpg") for _ in range(4)]


@pytest.fixture
def state(tmp_path: Path, label_kind: Kind) -> Iterator[State]:
    with State(tmp_path / "state", labels=label_kind.make()) as made:
        yield made


def keep(state: State, version: ModelVersion, label: int, images: list[Arrival] = IMAGES) -> list[int]:
    """By a store that has just been started; the ids."""
    numbers = np.full(len(images), 0.5, np.float32)
    opinion = Opinion(version, np.full(len(images), label, np.int32), numbers, numbers)
    with closing(Keeper(state, ["photos"])) as keeper:
        return [one.id for one in keeper.keep("photos", images, opinion)]


def test_an_older_version_that_labels_for_the_first_time_replaces_nothing(state: State) -> None:
    """As after a rollback, when an image is sent again."""
    old = state.registry.put(small_model(), name="small", switch=True)
    new = state.registry.put(nudged(small_model(), 3.0), name="small", parent=old.digest, switch=True)
    ids = keep(state, new, 1, IMAGES[:3])
    assert keep(state, old, 2)[:3] == ids
    rows = state.labels.get("photos-inbox", ids)
    assert rows.labels.tolist() == [1, 1, 1]
    assert state.labels.models()[0].digest == old.digest
    keep(state, new, 1)
    assert set(state.labels.get("photos-inbox", keep(state, old, 2)).labels.tolist()) == {1}
