"""Whose memory counts, and what is refused."""

from __future__ import annotations

import os

import pytest
import torch

import headwater as hw
from headwater.errors import WrongUse
from headwater.train.memory.devices import find_device, find_host_bytes

CUDA = torch.device("cuda", 0)


def test_the_cpu_has_no_number() -> None:
    assert (
        find_device("cpu") == find_device("cpu:0") == find_device(torch.device("cpu")) == torch.device("cpu")
    )
    assert find_device("cpu").index is None, "as tensors have it"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is one")
def test_without_an_accelerator_it_is_the_cpu_that_counts() -> None:
    assert find_device(None) == torch.device("cpu")
    with pytest.raises(WrongUse, match="0 devices of kind cuda"):
        hw.memory_budget("1MiB", device="cuda")
    with pytest.raises(WrongUse, match="0 devices"):
        hw.max_batch(lambda size: size, "1MiB", device="cuda:1")


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", "meta"])
def test_what_torch_does_not_know_is_refused(device: str) -> None:
    with pytest.raises(WrongUse, match="such as 'cuda:0' or 'cpu'"):
        hw.memory_budget("1MiB", device=device)


def test_a_device_without_streams_is_refused() -> None:
    with pytest.raises(WrongUse, match="no streams"):
        hw.memory_budget("1MiB", device="mps")


def test_host_memory_is_for_accelerators() -> None:
    for host in (0, "1GiB"):
        with pytest.raises(WrongUse, match="leave `host` out"):
            hw.memory_budget("1MiB", device="cpu", host=host)
    with pytest.raises(WrongUse, match="leave `host` out"):
        hw.max_batch(lambda size: size, "1MiB", device="cpu", host="1GiB")
    assert find_host_bytes(None, torch.device("cpu")) == 0


def test_how_much_of_it() -> None:
    assert find_host_bytes("2GiB", CUDA) == 2**31
    assert find_host_bytes(0, CUDA) == 0
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert find_host_bytes(None, CUDA) == whole // 4
    with pytest.raises(WrongUse, match="less than none"):
        find_host_bytes(-1, CUDA)
    with pytest.raises(WrongUse, match="no number"):
        find_host_bytes("much", CUDA)


def test_tensors_of_other_devices_are_left_alone() -> None:
    layer = torch.nn.Linear(64, 64, device="meta")
    with hw.memory_budget("1MiB", device="cpu") as budget:
        layer(torch.empty(64, 64, device="meta")).square().sum()
        assert budget._tracker is not None
        assert budget._tracker.ledger.whole == 0
