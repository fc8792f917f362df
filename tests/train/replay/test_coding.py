"""Gradients as halves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headwater.train.replay.coding import CHANGE, WHOLE, Vector, encode

SIZE = 64
numbers = arrays.arrays(np.float32, SIZE, elements=st.floats(-(2.0**100), 2.0**100, width=32))


@given(gradient=numbers)
def test_eleven_bits_of_the_largest_are_kept(gradient: Vector) -> None:
    coded = encode(gradient, None)
    assert coded.kind == WHOLE
    largest = float(np.abs(gradient).max())
    error = np.abs(coded.decode(None).astype(np.float64) - gradient)
    assert (error <= np.maximum(2.0**-11 * np.abs(gradient), 2.0**-38 * largest) + 1e-43).all()


@given(gradient=numbers, before=numbers)
def test_a_change_is_never_worse(gradient: Vector, before: Vector) -> None:
    coded = encode(gradient, before)
    error = np.abs(coded.decode(before).astype(np.float64) - gradient).max()
    assert error <= 2.0**-10 * float(np.abs(gradient).max()) + 1e-43


def test_small_changes_are_coded_as_such_and_do_not_add_up() -> None:
    rng = np.random.default_rng(0)
    gradient, known = rng.normal(size=SIZE).astype(np.float32), None
    for step in range(300):
        coded = encode(gradient, known)
        assert coded.kind == (CHANGE if step else WHOLE)
        known = coded.decode(known)
        assert float(np.abs(known - gradient).max()) < (2e-3 if step == 0 else 2e-5)
        gradient = gradient + rng.normal(size=SIZE).astype(np.float32) * np.float32(1e-3)


def test_a_change_needs_what_was_before() -> None:
    gradient = np.ones(SIZE, np.float32)
    coded = encode(gradient * np.float32(1.01), gradient)
    assert coded.kind == CHANGE
    with pytest.raises(ValueError, match="without one before"):
        coded.decode(None)


def test_nothing_stays_nothing() -> None:
    assert not encode(np.zeros(SIZE, np.float32), None).decode(None).any()
