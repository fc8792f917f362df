"""What is an id, and what only looks like one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from headwater.errors import WrongUse
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.naming import as_ids
from headwater.train.replay.retraining import retrain
from headwater.train.replay.valuation import value_samples
from replays import COUNT, SPARE, first_rows, make_features, record

DATA = make_features(spare=SPARE)
FEW = Features(np.arange(COUNT + SPARE), DATA.values, DATA.targets)
MOST = (1 << 63) - 1


@pytest.mark.parametrize(
    "ids",
    [
        [1, 5],
        (1, 5),
        {5, 1},
        iter([1, 5]),
        np.array([1, 5]),
        np.array([1, 5], np.uint8),
        [np.int64(1), np.uint32(5)],
        torch.tensor([1, 5]),
    ],
)
def test_whole_numbers_are_ids(ids: Iterable[int]) -> None:
    assert sorted(as_ids(ids, "remove").tolist()) == [1, 5]


def test_the_ends_of_what_is_an_id() -> None:
    assert as_ids([0, MOST], "add").tolist() == [0, MOST]
    assert as_ids([], "add").dtype == as_ids(np.array([]), "add").dtype == np.int64


NONE = [
    ("12", "is '12'; give a list"),
    (b"12", "is b'12'; give a list"),
    (3, "is 3; give a list"),
    (np.array([False, True]), r"is an array of bool, \(2,\); .* of a mask give ids\[mask\]"),
    (np.array([1.0]), "is an array of float64"),
    (np.array([[1]]), "is an array of int64"),
    ([True], "has True, which is no id"),
    ([np.True_], "which is no id"),
    (torch.tensor([True]), "which is no id"),
    ([3.7], "has 3.7, which is no id"),
    ([3.0], "has 3.0, which is no id"),
    (["3"], "has '3', which is no id"),
    ([None], "has None, which is no id"),
    ([-1], f"has -1; ids are from 0 to {MOST}"),
    (np.array([-1]), f"has -1; ids are from 0 to {MOST}"),
    ([2**64], f"has {2**64}; ids are from 0"),
    (np.array([2**63], np.uint64), f"has {2**63}; ids are from 0"),
    ([3, 3], "is named twice in"),
]


@pytest.mark.parametrize(("ids", "says"), NONE, ids=[repr(ids) for ids, _ in NONE])
def test_what_only_looks_like_ids_is_refused(tmp_path: Path, ids: Iterable[int], says: str) -> None:
    """Of a journal whose ids are 0, 1, 2 and so on, so that any number would be one."""
    record(tmp_path / "a", first_rows(FEW))
    journal = Journal(tmp_path / "a", FEW)
    with pytest.raises(WrongUse, match=says):
        retrain(journal, remove=ids)
    with pytest.raises(WrongUse, match=says):
        retrain(journal, add=ids)
    with pytest.raises(WrongUse, match=says):
        value_samples(journal, ids, judge=FEW.pick(np.arange(COUNT, COUNT + SPARE)))
