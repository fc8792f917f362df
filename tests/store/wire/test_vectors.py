"""Vectors on the wire: any bits come back as they were, in no more bytes, and what was altered is noticed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headwater.store.wire.payloads import Damaged
from headwater.store.wire.vectors import pack, unpack

WIDTH = 1280


def halves(*, zeros: float, seed: int = 0) -> np.ndarray:
    """As features of a rectifier are: so large a share of zeros, the rest of one sign."""
    rng = np.random.default_rng(seed)
    values = np.abs(rng.normal(size=WIDTH)).astype(np.float16)
    return np.where(rng.random(WIDTH) < zeros, np.float16(0), values)


def as_payload(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@given(arrays(np.uint16, st.integers(1, 3000)))
def test_any_bits_come_back(bits: np.ndarray) -> None:
    packed = pack(bits.astype("<u2").tobytes())
    assert len(packed) <= 2 * len(bits)
    found = unpack(as_payload(packed), len(bits), packed=True)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found.view(np.uint16), bits)


def test_half_of_it_zeros_saves_a_third() -> None:
    values = halves(zeros=0.5)
    assert len(pack(values.tobytes())) < 0.75 * values.nbytes


def test_what_does_not_get_shorter_stays_as_it_is() -> None:
    noise = np.random.default_rng(1).integers(0, 1 << 16, WIDTH, np.uint16).tobytes()
    assert pack(noise) == noise
    assert unpack(as_payload(noise), WIDTH, packed=False).tobytes() == noise


def test_packed_is_damaged_for_who_did_not_ask_for_it() -> None:
    packed = as_payload(pack(halves(zeros=0.5).tobytes()))
    with pytest.raises(Damaged, match=r"bytes; the model has 1,280 of two bytes"):
        unpack(packed, WIDTH, packed=False)


def test_anything_cut_off_or_of_another_length_is_damaged() -> None:
    packed = pack(halves(zeros=0.5).tobytes())
    for end in (0, 1, 4, 9, len(packed) // 2, len(packed) - 1):
        with pytest.raises(Damaged):
            unpack(as_payload(packed[:end]), WIDTH, packed=True)
    for other in (packed, bytes(2 * WIDTH)):
        for width in (1, WIDTH - 1, WIDTH + 1):
            with pytest.raises(Damaged):
                unpack(as_payload(other), width, packed=True)


def test_a_frame_that_says_it_is_huge_is_not_believed() -> None:
    bomb = pa.Codec("zstd", 19).compress(bytes(1 << 26), asbytes=True)
    assert len(bomb) < 2 * WIDTH * 4
    with pytest.raises(Damaged):
        unpack(as_payload(bomb[: 2 * WIDTH - 1]), WIDTH, packed=True)
    whole = pa.Codec("zstd", 1).compress(bytes(1 << 20), asbytes=True)
    assert len(whole) < 2 * WIDTH
    with pytest.raises(Damaged, match="of zstd are no 2,560 bytes"):
        unpack(as_payload(whole), WIDTH, packed=True)
