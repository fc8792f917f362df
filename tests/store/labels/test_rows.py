from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.store.labels import LabelRows, Source


def test_one_value_holds_for_all_rows() -> None:
    rows = LabelRows.of([3, 1, 2], [0, 1, 0], source=Source.MODEL, model=4, scores=0.5)
    assert rows.models.tolist() == [4, 4, 4]
    assert rows.scores.tolist() == [0.5] * 3
    assert np.isnan(rows.margins).all()
    assert rows.labels.dtype == np.int32
    assert len(rows) == 3


def test_parts_are_in_order_of_id() -> None:
    rows = LabelRows.of([5, 1, 4, 2, 3], [5, 1, 4, 2, 3], source=Source.HUMAN)
    parts = [part.samples.tolist() for part in rows.parts(2)]
    assert parts == [[1, 2], [3, 4], [5]]
    assert all((part.samples == part.labels).all() for part in rows.parts(2))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(WrongUse, match="sample 4 occurs twice"):
        LabelRows.of([4, 5, 4], [0, 0, 0], source=Source.HUMAN)
    with pytest.raises(WrongUse, match="is negative; ids have 63 bits"):
        LabelRows.of([4, -5], [0, 0], source=Source.HUMAN)
    with pytest.raises(WrongUse, match="a label is negative"):
        LabelRows.of([4], [-1], source=Source.HUMAN)
    with pytest.raises(WrongUse, match=r"labels have shape \(2,\), there are 3 samples"):
        LabelRows.of([1, 2, 3], [0, 1], source=Source.HUMAN)


def test_nothing_is_rows_too() -> None:
    assert len(LabelRows.fetched([])) == 0
    assert list(LabelRows.of([], [], source=Source.HUMAN).parts(3)) == []
