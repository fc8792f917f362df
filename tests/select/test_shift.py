"""How far a choice is from all."""

from __future__ import annotations

import numpy as np
import pytest

from columns import make_samples
from headwater.select.shift import class_shift, describe_shift, size_shift

CHOSEN = np.array([True, True, True, False, False])


def test_classes_and_sizes() -> None:
    samples = make_samples(5, labels=[0, 0, 1, 1, 2], bytes=[1, 2, 3, np.nan, 10])
    assert class_shift(samples, CHOSEN) == pytest.approx(2 / 3 - 2 / 5)
    assert size_shift(samples, CHOSEN) == pytest.approx(2 / 4)
    said = describe_shift(samples, CHOSEN)
    assert said == "; the share of a class moves by up to 27 points, the mean size to 0.5 times that of all"


def test_sizes_that_nobody_knows_and_a_choice_of_all() -> None:
    samples = make_samples(5, labels=[0, 0, 1, 1, 2])
    assert size_shift(samples, CHOSEN) is None
    assert "size" not in describe_shift(samples, CHOSEN)
    assert describe_shift(samples, np.ones(5, np.bool_)) == ""
