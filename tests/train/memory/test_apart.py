"""Where oneDNN makes no kernels in a thread any more, operations run in another, to the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from headwater.train.memory import apart
from headwater.train.memory.relief import Relief
from scarcity import NO_MEMORY, Scarce

NO_KERNEL = "could not create a primitive"


@pytest.mark.slow
def test_a_process_that_ran_out_of_kernels_trains_on() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "out_of_kernels.py")],
        env=os.environ
        | {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
        | {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    if not found.pop("ran_out"):
        pytest.skip("oneDNN never lacked memory for a kernel alone")
    assert found == {"plain": False, "equal": True, "largest": 9}


def train(layer: torch.nn.Module, values: torch.Tensor) -> list[torch.Tensor]:
    layer.zero_grad()
    values = values.clone().requires_grad_()
    layer(values).square().sum().backward()
    return [one.grad for one in (values, *layer.parameters()) if one.grad is not None]


def test_what_failed_so_once_is_run_apart_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, values = torch.nn.Conv2d(4, 6, 3), torch.randn(3, 4, 9, 9)
    expected = train(layer, values)
    begun: list[threading.Thread] = []
    start = apart.start_thread

    def note(thread: threading.Thread, stack: int, *, beside: int) -> None:
        begun.append(thread)
        start(thread, stack, beside=beside)

    monkeypatch.setattr(apart, "start_thread", note)
    scarce = Scarce("convolution", 100, NO_KERNEL)
    with scarce, Relief(lambda: pytest.fail("nothing has to leave for it")):
        found = [one for _ in range(3) for one in train(layer, values)]
    assert all(map(torch.equal, found, expected * 3))
    assert scarce.times == 98, "forward and backward failed once each"
    assert len(begun) == 6
    assert not any(thread.is_alive() for thread in begun)


@pytest.mark.parametrize("layer", [torch.nn.Conv1d(4, 6, 3), torch.nn.ConvTranspose1d(4, 6, 3)])
def test_what_was_made_apart_may_be_changed_in_place(layer: torch.nn.Module) -> None:
    net, values = torch.nn.Sequential(layer, torch.nn.ReLU(inplace=True)), torch.randn(3, 4, 9)
    expected = train(net, values)
    with Scarce("convolution", 100, NO_KERNEL), Relief(lambda: False):
        found = [one for _ in range(2) for one in train(net, values)]
        output = layer(values)
    assert all(map(torch.equal, found, expected * 2))
    assert output._base is None, "a view would be refused by what changes it"


def test_a_process_without_room_for_threads_is_told_so_and_lives() -> None:
    """OpenMP would end it, and Python would wait for ever for a thread that cannot begin."""
    text = """
import resource, torch
from pathlib import Path
from headwater.train.memory.apart import _run_apart
torch.set_num_threads(2)
data = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
for room in (0, 2**20, 2**20 + 2**13, 2**21, 2**22, 2**23):
    resource.setrlimit(resource.RLIMIT_DATA, (int(data.split()[1]) * 1024 + room, resource.RLIM_INFINITY))
    try:
        print(_run_apart(lambda: "ran", (), {}))
    except MemoryError as error:
        print("no room" in str(error))
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
print(_run_apart(lambda: "ran", (), {}))
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"MALLOC_ARENA_MAX": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["True"] * 6 + ["ran"]


def test_it_runs_with_as_many_threads_and_the_same_mode() -> None:
    seen: list[tuple[int, bool]] = []

    def note(*_: object) -> str:
        seen.append((torch.get_num_threads(), torch.is_grad_enabled()))
        return "result"

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert apart._run_apart(note, (), {}) == "result"  # type: ignore[arg-type]
        with torch.no_grad():
            apart._run_apart(note, (), {})  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)
    assert seen == [(1, True), (1, False)]


def test_an_error_there_is_an_error_here() -> None:
    def fail() -> None:
        raise KeyError("there")

    with pytest.raises(KeyError, match="there"):
        apart._run_apart(fail, (), {})  # type: ignore[arg-type]


def test_want_of_memory_that_is_said_is_not_tried_apart() -> None:
    scarce = Scarce("convolution", 1, NO_MEMORY)
    with pytest.raises(RuntimeError, match=NO_MEMORY), scarce, Relief(lambda: False):
        torch.nn.functional.conv2d(torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 3))


@pytest.mark.parametrize(
    ("asked", "size"), [("512", 2**19), ("512k", 2**19), (" 2 M ", 2**21), ("16384B", 2**14), ("1G", 2**30)]
)
def test_the_stack_of_a_thread_of_openmp_is_what_it_was_told(
    asked: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_STACKSIZE", asked)
    assert apart._openmp_stack() == size


@pytest.mark.parametrize("asked", ["", "much", "-1", "9B"])
def test_else_it_is_the_usual_one(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_STACKSIZE", asked)
    assert apart._openmp_stack() >= 2**23
