"""Several selections as one, and local data by the job that stores run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.errors import WrongUse
from headwater.models.registry import Registry
from headwater.store.client.errand import Abandoned
from headwater.store.client.selecting import Selected
from headwater.store.selecting import SelectingHere, selects_at, unite
from headwater.store.wire.jobmessages import SelectionWish
from sieves import proxy, write_labelled


def part(ids: list[int], weights: list[float], samples: int, **more: object) -> Selected:
    return Selected(np.array(ids), np.array(weights, np.float32), samples, "said", **more)  # type: ignore[arg-type]


def test_parts_weigh_together_as_much_as_they_have_samples() -> None:
    """One store chose a half and another a tenth of as many: what these stand for differs fivefold."""
    found = unite([part([1, 2, 3, 4, 5], [1, 1, 1, 1, 1], 10), part([9], [1.0], 10)])
    assert found.ids.tolist() == [1, 2, 3, 4, 5, 9]
    assert found.weights.mean() == pytest.approx(1)
    assert found.weights[:5].sum() == pytest.approx(found.weights[5])
    assert (found.samples, found.reason) == (20, "said")


def test_what_it_took_is_added_up() -> None:
    one = part([1], [1.0], 4, counts={"scored": 4, "chosen": 1}, seconds=2.0, bytes_moved=10)
    two = part([2], [1.0], 5, counts={"scored": 3, "failed": 2}, seconds=3.0, bytes_moved=20)
    found = unite([one, two])
    assert found.counts == {"scored": 7, "unlabelled": 0, "failed": 2, "chosen": 1}
    assert (found.seconds, found.bytes_moved) == (3.0, 30)


@pytest.fixture
def photos(tmp_path: Path) -> hw.Dataset:
    return hw.open(write_labelled(tmp_path / "photos", 30, broken=1))


def test_local_data_is_selected_here(photos: hw.Dataset, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    version = registry.put(proxy(), name="small")
    here = SelectingHere(photos.store, registry, tmp_path / "kept")
    wish = SelectionWish("infobatch", seed=3, run="mine")
    found = here.run(version.digest, wish)
    assert (found.samples, found.counts["scored"], found.counts["failed"]) == (91, 90, 1)
    assert len(found.ids) == found.counts["chosen"] < 91
    assert found.seconds > 0
    np.testing.assert_array_equal(here.run(version.digest, wish).ids, found.ids)
    with pytest.raises(WrongUse, match="no selector 'dance'"):
        here.run(version.digest, SelectionWish("dance"))
    with pytest.raises(Abandoned):
        here.run(version.digest, wish, over=lambda: True)


def test_local_data_is_no_store(photos: hw.Dataset) -> None:
    with pytest.raises(WrongUse, match="is no store"):
        selects_at(photos.store)
