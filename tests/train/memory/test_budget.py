"""The context: what it refuses, what it reports, and that nothing is left behind."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import headwater as hw
from budgets import assert_equal, loss_of, make, train
from fulldisk import files_no_larger_than
from headwater.errors import MemoryTooSmall, SavedTensorChanged, SpillFailed, WrongUse
from headwater.train.memory.spill import SpillFile, _warn_if_memory
from headwater.train.memory.transfer import Lane, Transfer


def open_files() -> Counter[str]:
    """All descriptors of this process, by what they are open on."""
    found = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return Counter(os.readlink(path) for path in found if path.is_symlink())


class Failing(nn.Module):
    """Passes tensors on until it is told not to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException | None = error

    def forward(self, values: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return values


@pytest.mark.parametrize("error", [RuntimeError("as told"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("inside", [True, False])
def test_an_exception_in_mid_forward_leaves_nothing_behind(error: BaseException, inside: bool) -> None:
    net, inputs = make("residual")
    assert isinstance(net, nn.Sequential)
    failing = Failing(error)
    broken = nn.Sequential(*net[:4], failing, *net[4:])
    alive: list[weakref.ref[Tensor]] = []
    net[2].register_forward_hook(lambda *found: alive.append(weakref.ref(found[2])))
    train("residual", steps=1)
    gc.collect()
    files, threads = open_files(), threading.active_count()
    budget = hw.memory_budget(300_000)
    if inside:
        with budget:
            with pytest.raises(type(error)):
                loss_of(broken, inputs)
            error.__traceback__ = None  # it holds what was computed
            gc.collect()
            failing.error = None
            loss_of(broken, inputs).backward()
            assert budget.report().iterations == 1
    else:
        with pytest.raises(type(error)), budget:
            loss_of(broken, inputs)
    error.__traceback__ = None
    gc.collect()
    assert not open_files() - files
    assert threading.active_count() == threads
    assert all(ref() is None for ref in alive)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert_equal(train("residual", around=hw.memory_budget(600_000)), train("residual"))


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_an_iteration_that_ends_with_the_context_leaves_no_hook_behind(iterations: int) -> None:
    """It is measured then, and a plan is made that would want to watch."""
    net, inputs = make("residual")
    with hw.memory_budget(300_000):
        for _ in range(iterations):
            loss_of(net, inputs).backward()
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks


class Bent(nn.Module):
    """Operations that are never run again."""

    def forward(self, values: Tensor) -> Tensor:
        return torch.atan(torch.erf(values))


def test_how_tensors_are_made_is_noted_only_as_long_as_some_may_be_made_again() -> None:
    def run(around: AbstractContextManager[object]) -> Iterator[Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), *(Bent() for _ in range(8)), nn.Linear(64, 4))
        with around:
            for _ in range(4):
                net.zero_grad()
                loss_of(net, torch.ones(64, 64)).backward()
                yield torch.cat(
                    [value.grad.flatten() for value in net.parameters() if value.grad is not None]
                )

    watching = torch.nn.modules.module._global_forward_pre_hooks
    budget = hw.memory_budget(180_000)
    found = []
    for turn, gradients in enumerate(run(budget)):
        found.append(gradients)
        report = budget.report()
        assert report.plan is not None
        assert bool(watching) == (turn < 2), "all that leaves is swapped, and no operation lacked memory"
    assert report.swapped > 0
    assert all(map(torch.equal, found, run(nullcontext())))
    net, inputs = make("residual")
    with hw.memory_budget(1_000_000, swap=False):
        for _ in range(3):
            loss_of(net, inputs).backward()
            assert watching


def test_an_interrupt_in_backward_leaves_nothing_behind() -> None:
    net, inputs = make("residual")
    files, threads = open_files(), threading.active_count()

    def stop(gradient: Tensor) -> None:
        raise KeyboardInterrupt

    budget = hw.memory_budget(300_000)
    with budget:
        handle = next(iter(net.parameters())).register_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            loss_of(net, inputs).backward()
        handle.remove()
        gc.collect()
        loss_of(net, inputs).backward()
    gc.collect()
    assert not open_files() - files
    assert threading.active_count() == threads


def test_a_folder_that_is_missing_or_closed_is_an_error_before_training(tmp_path: Path) -> None:
    with pytest.raises(SpillFailed, match="not there"), hw.memory_budget("1MiB", spill=tmp_path / "none"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(SpillFailed), hw.memory_budget("1MiB", spill=tmp_path / "file"):
        pass
    with hw.memory_budget("1MiB", spill=tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for wrong in (5, ""):
        with pytest.raises(WrongUse, match=f"spill={wrong!r}"):
            hw.memory_budget("1MiB", spill=wrong)  # type: ignore[arg-type]


def test_a_full_disk_is_said_and_training_goes_on_by_recomputing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    budget = hw.memory_budget(1_000_000)
    with files_no_larger_than(4096):
        found = train("residual", around=budget)
        with pytest.raises(SpillFailed, match="no room for 8,192 more bytes"):
            SpillFile(tmp_path).reserve(8192)
    assert_equal(found, train("residual"))
    report = budget.report()
    assert report.recomputed > 0
    assert report.swapped == 0
    assert report.peak <= report.budget
    assert report.disk_closed
    assert "nothing more goes to the disk" in str(report)
    assert "nothing more leaves memory for the disk" in caplog.text
    assert report.plan is not None
    assert not report.plan.bytes_of("swap")


@pytest.mark.parametrize("room", [3, 4, 6, 9])
def test_a_disk_that_fills_up_in_any_iteration_stops_no_training(room: int) -> None:
    """Tanh can be made again; there is room for so many tensors, fewer than leave with a larger batch."""

    def run(around: AbstractContextManager[object]) -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.Tanh())))
        found = []
        with around:
            for rows in (64, 64, 64, 64, 96, 96, 96):
                net.zero_grad()
                loss_of(net, torch.ones(rows, 64)).backward()
                found.append(
                    torch.cat([one.grad.flatten() for one in net.parameters() if one.grad is not None])
                )
        return found

    budget = hw.memory_budget(7 * 96 * 64 * 4)
    with files_no_larger_than(room * 64 * 64 * 4):
        found = run(budget)
    assert all(map(torch.equal, found, run(nullcontext())))
    assert budget.report().peak <= budget.report().budget


def test_a_full_disk_keeps_nothing_of_its_iteration_alive() -> None:
    net, inputs = make("residual")
    alive: list[weakref.ref[Tensor]] = []
    assert isinstance(net, nn.Sequential)
    net[2].register_forward_hook(lambda *found: alive.append(weakref.ref(found[2])))
    gc.collect()
    gc.disable()
    try:
        with files_no_larger_than(4096), hw.memory_budget(1_000_000) as budget:
            for _ in range(2):
                loss_of(net, inputs).backward()
                assert all(ref() is None for ref in alive)
            assert budget.report().disk_closed
    finally:
        gc.enable()


def test_a_full_disk_without_another_way_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    small = hw.memory_budget(300_000, recompute=False)
    full = files_no_larger_than(100_000)
    with (
        full,
        caplog.at_level(logging.WARNING),
        pytest.raises(MemoryTooSmall, match="cannot leave") as caught,
    ):
        train("residual", around=small)
    assert caught.value.needed > 300_000
    assert "no room" in caplog.text


def test_a_transfer_that_cannot_begin_leaves_the_tensor_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was written then, so nothing must be read."""
    failures, send = iter([True]), Lane.send

    def fail_once(lane: Lane, transfer: Transfer) -> Transfer:
        if next(failures, False):
            raise RuntimeError("can't start new thread")
        return send(lane, transfer)

    monkeypatch.setattr(Lane, "send", fail_once)
    found = train("residual", around=hw.memory_budget(300_000, recompute=False))
    assert next(failures, None) is None
    assert_equal(found, train("residual"))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
def test_a_folder_that_is_in_memory_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    _warn_if_memory.cache_clear()
    SpillFile("/dev/shm").close()
    SpillFile("/dev/shm").close()
    assert caplog.text.count("/dev/shm is in memory itself") == 1


def test_a_spill_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    place = file.reserve(4096)
    os.close(file._file)
    with pytest.raises(SpillFailed, match="cannot be read"):
        file.read(place, torch.zeros(4096, dtype=torch.uint8).data_ptr())


def test_a_budget_below_one_step_of_backward_names_what_it_needs() -> None:
    with pytest.raises(MemoryTooSmall, match="one step") as caught:
        train("lstm", around=hw.memory_budget(300_000))
    needed = caught.value.needed
    assert needed > 300_000
    budget = hw.memory_budget(needed)
    assert_equal(train("lstm", around=budget), train("lstm"))
    assert budget.report().peak <= needed


def test_what_autograd_would_refuse_is_refused() -> None:
    """Hooks on saved tensors switch off autograd's own check; without ours, gradients would be wrong."""
    with hw.memory_budget("1GiB"):
        values = torch.randn(64, 64, requires_grad=True) * 1.0
        result = values.exp()
        loss = (result * result).sum()
        result.mul_(2.0)
        with pytest.raises(SavedTensorChanged, match="in place"):
            loss.backward()


def test_parameters_changed_before_backward_are_refused() -> None:
    net, inputs = make("residual")
    with hw.memory_budget("1GiB"):
        loss = loss_of(net, inputs)
        with torch.no_grad():
            for value in net.parameters():
                value.mul_(0.5)
        with pytest.raises(RuntimeError, match="in place"):
            loss.backward()


def test_one_at_a_time() -> None:
    found: list[BaseException] = []

    def other() -> None:
        try:
            hw.memory_budget("1MiB").__enter__()
        except WrongUse as error:
            found.append(error)

    with hw.memory_budget("1MiB"):
        with pytest.raises(WrongUse, match="one at a time"), hw.memory_budget("1MiB"):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(found) == 1
    with hw.memory_budget("1MiB"):
        pass


def test_arguments_that_cannot_be_right() -> None:
    with pytest.raises(WrongUse, match="holds nothing"):
        hw.memory_budget(0)
    with pytest.raises(WrongUse, match="no number"):
        hw.memory_budget("much")
    with pytest.raises(WrongUse, match="at least one"):
        hw.memory_budget("1MiB", swap=False, recompute=False)
    with pytest.raises(WrongUse, match="not entered"):
        hw.memory_budget("1MiB").report()


def test_the_report() -> None:
    budget = hw.memory_budget(500_000)
    with budget:
        assert "no iteration" in str(budget.report())
    budget = hw.memory_budget(500_000)
    train("residual", around=budget)
    report = budget.report()
    assert (report.iterations, report.budget) == (5, 500_000)
    assert report.guided >= 2
    assert report.peak <= report.budget < report.peak_before
    assert report.swapped + report.recomputed >= report.peak_before - report.budget
    assert max(report.held) == report.peak
    assert max(report.held_before) == report.peak_before
    assert len(report.seconds) == len(report.held) == len(report.held_before)
    assert report.plan is not None
    assert report.plan.fits
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["peak"] == report.peak
    assert "late" in str(report)


def test_the_record_of_an_iteration_can_be_planned_again() -> None:
    net, inputs = make("residual")
    with hw.memory_budget("1GiB") as budget:
        with pytest.raises(WrongUse, match="measured"):
            budget.record()
        for _ in range(2):
            loss_of(net, inputs).backward()
        record = budget.record()
        assert record.peak() == budget.report().peak_before
    assert sum(tensor.parents is not None for tensor in record.tensors) > len(record.tensors) // 2


def test_evaluation_inside_changes_nothing() -> None:
    def run() -> list[Tensor]:
        net, inputs = make("residual")
        found = []
        for _ in range(4):
            loss = loss_of(net, inputs)
            loss.backward()
            with torch.no_grad():
                found.append(loss_of(net.eval(), inputs))
            loss_of(net.train(), inputs)  # never goes backward
            found.append(loss.detach())
        return [*found, *(one.grad for one in net.parameters() if one.grad is not None)]

    with hw.memory_budget(400_000) as budget:
        found = run()
        assert budget.report().iterations == 4
    expected = run()
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


def test_slices_of_data_and_buffers_are_left_alone() -> None:
    data = torch.randn(64, 4096)
    layer = nn.Linear(4096, 32)
    layer.register_buffer("scale", torch.rand(4096))
    with hw.memory_budget("1GiB") as budget:
        for _ in range(3):
            layer(data[:4] * layer.scale).sum().backward()
        assert budget.report().peak_before == 4 * 4096 * 4
