"""A budget whose tensors go to host memory, on a CPU: the code that an accelerator's go through."""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from budgets import assert_equal, loss_of, make, train
from fulldisk import files_no_larger_than
from headwater.errors import MemoryTooSmall, SavedTensorChanged
from headwater.train.memory.budget import MemoryBudget
from headwater.train.memory.hosttier import HostTier, open_host_tier
from headwater.train.memory.ledger import Ledger, Ways
from headwater.train.memory.slabs import Slabs
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.stagedtier import StagedTier
from headwater.train.memory.streams import Clock, Streams
from lagging import Lagging, Postponing

CPU = torch.device("cpu")
NETS = ["convolutional", "residual", "transformer", "lstm"]
ENOUGH = 64 * 2**20


class Watched:
    """A budget with a host tier, and what is to be seen of it."""

    def __init__(self, size: int, host: int, *, module: Any = None, piece: int = 2**14, **ways: bool) -> None:
        self.streams = Streams(CPU, module)
        self.slabs = Slabs(host, pinned=False, slab=2**20)
        self.most_in_host = self.most_in_file = 0
        self._piece = piece
        self.budget = MemoryBudget(size, self._open, streams=self.streams, ways=Ways(**ways))

    def _open(self) -> HostTier:
        self.file = SpillFile()
        staged = StagedTier(self.file, self.streams, pinned=False, piece=self._piece)
        return HostTier(self.slabs, staged, self.streams)

    def loss_of(self, net: nn.Module, inputs: Tensor) -> Tensor:
        loss = loss_of(net, inputs)
        self.most_in_host = max(self.most_in_host, self.slabs.used)
        self.most_in_file = max(self.most_in_file, self.file.used)
        return loss

    def train(self, name: str) -> dict[str, Tensor]:
        return train(name, around=self.budget, loss=self.loss_of)


def share_of(name: str, share: float) -> int:
    whole = Watched(2**30, 0)
    whole.train(name)
    return int(whole.budget.report().peak_before * share)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_through_host_memory_training_is_the_same(name: str, recompute: bool) -> None:
    watched = Watched(share_of(name, 0.7), ENOUGH, recompute=recompute)
    assert_equal(watched.train(name), train(name))
    report = watched.budget.report()
    assert report.peak <= report.budget < report.peak_before
    assert report.guided >= 2
    assert watched.most_in_file == 0
    if not recompute:
        assert watched.most_in_host >= report.peak_before - report.budget
    assert watched.slabs.taken == 0, "it was given back"


@pytest.mark.parametrize("name", NETS)
def test_what_does_not_fit_goes_on_to_the_file(name: str) -> None:
    watched = Watched(share_of(name, 0.6), 2**17, recompute=False)
    assert_equal(watched.train(name), train(name))
    assert 0 < watched.most_in_host <= 2**17
    assert watched.most_in_file > 0


def test_without_host_memory_all_goes_through_a_piece_of_it() -> None:
    watched = Watched(share_of("residual", 0.5), 0, piece=5000, recompute=False)
    assert_equal(watched.train("residual"), train("residual"))
    assert watched.most_in_host == 0
    assert watched.most_in_file > 10 * 5000


@pytest.mark.parametrize("name", ["residual", "transformer"])
@pytest.mark.parametrize("recompute", [True, False])
def test_iterations_by_a_plan_never_wait_for_a_device_that_lags(name: str, recompute: bool) -> None:
    """Where nothing is made again: torch waits when bytes of what was are compared."""
    device = Lagging()
    watched = Watched(share_of(name, 0.7), ENOUGH, module=device, recompute=recompute)
    waits: list[int] = []

    def loss(net: nn.Module, inputs: Tensor) -> Tensor:
        waits.append(device.waits)
        device.waits = 0
        return watched.loss_of(net, inputs)

    found = train(name, steps=9, around=watched.budget, loss=loss)
    assert_equal(found, train(name, steps=9))
    report = watched.budget.report()
    assert report.peak <= report.budget
    assert report.guided >= 5
    assert max(waits) > 10, "times of a measured iteration are exact"
    assert waits[-3:] == [0, 0, 0]


@pytest.mark.parametrize("host", [ENOUGH, 2**17, 0])
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_a_device_that_copies_as_late_as_it_may_finds_what_it_needs(
    name: str, recompute: bool, host: int
) -> None:
    """No memory is given away or written to before it was copied, and nothing is used before it is back."""
    device = Postponing()
    watched = Watched(share_of(name, 0.6), host, module=device, recompute=recompute)
    assert_equal(watched.train(name), train(name))
    report = watched.budget.report()
    assert report.peak <= report.budget
    assert report.guided >= 1
    if host and not recompute:
        assert device.postponed > 10


@pytest.mark.parametrize("behind", ["a bit", "an iteration"])
def test_a_late_fetch_of_a_device_that_lags_is_fed_back(behind: str) -> None:
    """The device gets there before the next iteration, or in the middle of its forward pass."""
    device = Lagging()
    watched = Watched(share_of("residual", 0.6), ENOUGH, module=device, recompute=False)
    leads: dict[int, float] = {}

    def catch_up(*_: object) -> None:
        device.now = 1e9

    def loss(net: nn.Module, inputs: Tensor) -> Tensor:
        assert isinstance(net, nn.Sequential)
        assert watched.budget._tracker is not None
        guide = watched.budget._tracker.guides.find(())
        leads.update(guide._leads if guide is not None else {})
        if behind == "a bit":
            catch_up()
        with net[3].register_forward_hook(catch_up):
            found = watched.loss_of(net, inputs)
        device.now = 0.0
        return found

    train("residual", steps=9, around=watched.budget, loss=loss)
    report = watched.budget.report()
    assert report.fetches_in_all > 0
    assert report.late_fetches_in_all > 0, "a copy takes a second there, and computing no time at all"
    assert report.stall_seconds > 0
    assert leads, "such fetches begin earlier"


def test_a_new_shape_is_measured_again_on_a_device_that_lags() -> None:
    device = Lagging()
    watched = Watched(600_000, ENOUGH, module=device)
    net, _ = make("residual")
    sizes = [4, 4, 4, 6, 6, 6, 6, 6, 4, 4]
    exact: list[bool] = []
    with watched.budget:
        for size in sizes:
            torch.manual_seed(size)
            loss_of(net, torch.randn(size, 3, 16, 16)).backward()
            assert watched.budget._tracker is not None
            exact.append(watched.budget._tracker.ledger.clock.sure)
        assert watched.budget.report().guided >= 5
    assert exact[0]
    assert not exact[3], "it began like the one before"
    assert exact[4]
    assert not exact[-1]


class Failing(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        raise RuntimeError("as told")


@pytest.mark.parametrize("host", [ENOUGH, 2**17, 0])
def test_an_exception_in_mid_forward_leaves_nothing_behind(host: int) -> None:
    net, inputs = make("residual")
    assert isinstance(net, nn.Sequential)
    broken = nn.Sequential(*net[:4], Failing(), *net[4:])
    threads = threading.active_count()
    watched = Watched(300_000, host, recompute=False)
    with watched.budget:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="as told"):
                loss_of(broken, inputs)
            gc.collect()
        watched.budget.report()
        assert watched.slabs.used == watched.file.used == 0
        loss_of(net, inputs).backward()
    with pytest.raises(RuntimeError, match="as told"), watched.budget:
        loss_of(broken, inputs)
    gc.collect()
    assert watched.slabs.taken == 0
    assert threading.active_count() == threads


def test_host_memory_and_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(1_000_000, 2**17)
    with files_no_larger_than(4096), caplog.at_level(logging.WARNING):
        found = watched.train("residual")
    assert_equal(found, train("residual"))
    assert watched.most_in_host > 0
    assert watched.most_in_file == 0
    assert watched.budget.report().recomputed > 0
    assert watched.budget.report().disk_closed
    assert "no room" in caplog.text
    with files_no_larger_than(4096), pytest.raises(MemoryTooSmall, match="cannot leave"):
        Watched(300_000, 2**17, recompute=False).train("residual")


@pytest.mark.parametrize("host", [0, 2**20])
def test_a_full_disk_closes_the_file_and_not_host_memory(host: int, tmp_path: Path) -> None:
    streams = Streams(CPU)
    tier = open_host_tier(SpillFile(tmp_path), streams, host)
    ledger = Ledger(2**20, tier, Ways(), Clock(streams))
    with files_no_larger_than(4096):
        assert ledger.take_room(2**22, at_most=2**22) == bool(host)
    assert ledger.no_file
    assert ("swap" in ledger.ways) == bool(host)
    tier.close()


@pytest.mark.parametrize("module", [None, Lagging()], ids=["at once", "lagging"])
def test_a_tensor_that_is_changed_while_it_leaves_is_refused_or_right(module: Any) -> None:
    watched = Watched(100_000, ENOUGH, module=module, recompute=False)
    with watched.budget:
        for _ in range(4):
            values = torch.randn(64, 64, requires_grad=True) * 1.0
            results = [values.exp() for _ in range(10)]
            loss = torch.stack([(result * result).sum() for result in results]).sum()
            results[-1].mul_(2.0)
            with pytest.raises(SavedTensorChanged, match="in place"):
                loss.backward()


def test_the_usual_sizes(tmp_path: Path) -> None:
    tier = open_host_tier(SpillFile(tmp_path), Streams(CPU), 2**20)
    tensor = torch.randn(100, 100)
    extent = tier.reserve(tensor.nbytes)
    tier.write(extent, tensor[2:, 3:]).wait()
    found, fetch = tier.read(extent, CPU)
    fetch.wait()
    assert torch.equal(found.view(torch.float32).view(100, 100), tensor), "all of the storage"
    assert tier.rates.write > 0
    tier.release(extent)
    tier.close()
