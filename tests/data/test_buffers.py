"""Memory is used again, but never while somebody looks at it."""

from __future__ import annotations

import gc

import numpy as np
import torch

from headwater.data.buffers import Buffers


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again() -> None:
    buffers = Buffers(2)
    first = buffers.lend(1000)
    place = address(first)
    assert len(first) == 1000
    del first
    assert address(buffers.lend(900)) == place


def test_memory_that_is_held_is_not_lent() -> None:
    buffers = Buffers(4)
    kept = [buffers.lend(100) for _ in range(6)]
    assert len({address(array) for array in kept}) == 6


def test_a_view_of_bytes_keeps_it() -> None:
    buffers = Buffers(2)
    part = memoryview(buffers.lend(64))[10:20]
    part[:] = b"0123456789"
    gc.collect()
    other = buffers.lend(64)
    other[:] = 255
    assert bytes(part) == b"0123456789"
    place = address(np.frombuffer(part, np.uint8)) - 10
    del part
    assert address(buffers.lend(64)) == place


def test_a_tensor_and_its_parts_keep_it() -> None:
    buffers = Buffers(2)
    part = torch.from_numpy(buffers.lend(16 * 4)).view(torch.float32).view(4, 4)[1:3].numpy()
    part[:] = 7
    gc.collect()
    buffers.lend(64)[:] = 255
    assert (part == 7).all()


def test_no_more_is_kept_than_asked_for() -> None:
    buffers = Buffers(3)
    held = [buffers.lend(10) for _ in range(9)]
    del held
    assert len(buffers._free) == 3


def test_a_piece_too_small_is_left_for_others() -> None:
    buffers = Buffers(3)
    small = buffers.lend(10)
    place = address(small)
    del small
    large = buffers.lend(5000)
    assert len(large) == 5000
    assert address(buffers.lend(12)) == place
