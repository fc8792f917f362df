"""Powers and logarithms without the machine's own."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.select.arithmetic import log2, power


def test_power() -> None:
    bases = np.concatenate(([0.0, 1.0], np.random.default_rng(0).random(500), [2.0, 100.0]))
    for exponent in (0.0, 1 / 3, 0.5, 1.0, 2.0, 2.75, 7.9, 33.0):
        np.testing.assert_allclose(power(bases, exponent), bases**exponent, rtol=1e-6)


def test_powers_of_one_base() -> None:
    shares = np.linspace(0, 1, 1001)
    np.testing.assert_allclose(power(1 / 1e8, shares), 1e8**-shares, rtol=5e-6)
    assert power(0.01, [0.0, 0.5, 1.0]).tolist() == pytest.approx([1, 0.1, 0.01])


def test_arguments_are_left_alone() -> None:
    base, exponent = np.array([4.0, 9.0]), np.array([0.5, 2.5])
    assert power(base, exponent).tolist() == pytest.approx([2, 243])
    assert (base.tolist(), exponent.tolist()) == ([4, 9], [0.5, 2.5])


def test_logarithm() -> None:
    values = np.concatenate((np.random.default_rng(0).random(2000), [1e-300, 1e-30, 0.5, 1.0, 3.0, 1e300]))
    np.testing.assert_allclose(log2(values), np.log2(values), rtol=1e-12, atol=1e-13)
    assert log2(8.0) == 3
    assert 0 * log2(0.0) == 0
