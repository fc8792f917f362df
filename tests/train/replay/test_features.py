"""Rows of features, and the digest that they are known by."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import JournalRefused, WrongUse
from headwater.train.replay.features import Features

IDS = np.array([50, 10, 40, 20])
VALUES = np.arange(8, dtype=np.float16).reshape(4, 2)
TARGETS = np.array([0, 1, 1, 0])
ALL = np.arange(4)


def make(**changes: object) -> Features:
    return Features(**{"ids": IDS, "values": VALUES, "targets": TARGETS, **changes})  # type: ignore[arg-type]


def test_rows_are_taken_in_single_precision() -> None:
    inputs, targets = make().take(np.array([2, 0]))
    assert inputs.tolist() == [[4, 5], [0, 1]]
    assert inputs.numpy().dtype == np.float32
    assert targets.tolist() == [1, 0]
    assert make().take(slice(1, 3))[0].tolist() == [[2, 3], [4, 5]]


def test_ids_are_found_wherever_they_lie() -> None:
    assert make().find(np.array([20, 50, -1, 10])).tolist() == [3, 0, -1, 1]


def test_an_id_that_comes_again_has_its_next_row() -> None:
    found = make(ids=np.array([7, 9, 7, 7])).find(np.array([9, 7, 7, 7]))
    assert found.tolist() == [1, 0, 2, 3]
    with pytest.raises(
        JournalRefused, match="1 rows of samples are not in the features, such as that of id 9"
    ):
        make(ids=np.array([7, 9, 7, 7])).find(np.array([9, 9]))


def test_ids_that_are_not_there_are_named() -> None:
    with pytest.raises(JournalRefused, match=r"2 rows.*such as that of id 30"):
        make().find(np.array([30, 60, 10]))


def test_the_digest_is_of_the_rows_and_not_of_their_order() -> None:
    turned = make().pick(np.array([3, 1, 0, 2]))
    assert turned.version(ALL) == make().version(ALL)
    assert make().version(ALL) != make().version(ALL[:3])
    assert make().version(np.array([1, 2])) == make().pick(np.array([2, 1])).version(np.arange(2))


@pytest.mark.parametrize(
    "change",
    [
        {"ids": np.array([50, 10, 40, 21])},
        {"targets": np.array([0, 1, 1, 1])},
        {"values": VALUES + np.float16(0.5)},
        {"source": "layers"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_change_is_another_digest(change: dict[str, object]) -> None:
    assert make(**change).version(ALL) != make().version(ALL)


def test_with_a_source_values_may_be_made_again() -> None:
    again = make(values=VALUES + np.float16(0.5), source="layers")
    assert again.version(ALL) == make(source="layers").version(ALL)
    assert again.version(ALL) != make(source="others").version(ALL)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ids": IDS[:3]}, "3 ids, 4 rows and 4 targets"),
        ({"ids": np.array([1, 2, 3, -4])}, "4 ids, the least of them -4"),
        ({"ids": IDS[:0], "values": VALUES[:0], "targets": TARGETS[:0]}, "0 ids"),
        ({"values": np.array(["a"] * 4)}, "torch takes no"),
    ],
)
def test_columns_that_do_not_fit(change: dict[str, object], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        make(**change)


def test_arrays_that_cannot_be_written_to_are_taken() -> None:
    values = VALUES.copy()
    values.flags.writeable = False
    assert make(values=values).take(slice(0, 1))[0].tolist() == [[0, 1]]
