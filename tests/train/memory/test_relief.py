"""Operations that find no memory: what is held leaves, and they give the same as with all the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwater.train.memory.relief import Relief
from headwater.train.memory.shortage import is_out_of_memory
from scarcity import Scarce

CHILD = Path(__file__).parent / "under_a_limit.py"
PINNED = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0"}


@pytest.mark.slow
@pytest.mark.parametrize(("net", "budget"), [("recurrent", 28), ("dropping", 28), ("convolving", 16)])
def test_under_a_hard_limit_results_are_those_of_plain_training(net: str, budget: int) -> None:
    """The limit rises until training is possible: at first only where tensors leave for want of memory."""
    tries = (train_under(net, budget * 2**20, tenths * budget * 2**20 // 10) for tenths in range(8, 40))
    found = next(one for one in tries if one["fits"])
    assert found["equal"]
    assert found["relieved"] > 0, "else the limit was no limit"
    assert (found["split"] > 0) == (net == "convolving")


def train_under(net: str, budget: int, limit: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(CHILD), net, str(budget), str(limit)],
        env=os.environ | PINNED | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_scarcely(scarce: Scarce, relief: Relief, call: object) -> object:
    """Relief is asked first, so it must be the inner mode of the two."""
    with scarce, relief:
        return call()  # type: ignore[operator]


def test_what_was_drawn_or_counted_is_drawn_and_counted_once() -> None:
    values = torch.randn(32, 8)
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(values, 0.5)
    torch.manual_seed(0)
    found = run_scarcely(
        Scarce("native_dropout", 1), Relief(lambda: True), lambda: torch.native_dropout(values, 0.5, True)[0]
    )
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, expected)
    plain, norm = torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8)
    plain(values).sum().backward()
    run_scarcely(
        Scarce("native_batch_norm.default", 1), Relief(lambda: True), lambda: norm(values).sum().backward()
    )
    assert torch.equal(norm.running_mean, plain.running_mean)
    assert torch.equal(norm.running_var, plain.running_var)


def test_nothing_is_tried_again_in_vain() -> None:
    asked: list[int] = []

    def relieve(found: bool) -> bool:
        asked.append(1)
        return found

    values = torch.randn(8)
    with pytest.raises(RuntimeError, match="allocate"):
        run_scarcely(Scarce("exp", 1), Relief(lambda: relieve(False)), lambda: torch.exp(values))
    with pytest.raises(RuntimeError, match="allocate"):
        run_scarcely(Scarce("exp", 2), Relief(lambda: relieve(True)), lambda: torch.exp(values))
    assert len(asked) == 2
    with pytest.raises(RuntimeError, match="other"):
        run_scarcely(Scarce("exp", 1, "other"), Relief(lambda: relieve(True)), lambda: torch.exp(values))
    with pytest.raises(RuntimeError, match="allocate"):
        run_scarcely(Scarce("exp_", 1), Relief(lambda: relieve(True)), lambda: torch.exp_(values))
    assert len(asked) == 2, "an operation that changes a tensor may have done so"


def test_it_is_never_found_where_the_mode_of_another_was() -> None:
    relief = Relief(lambda: True)
    with Scarce("none", 0):
        relief.switch(on=True)
        assert torch._C._len_torch_dispatch_stack() == 1
    relief.switch(on=True)
    other = Scarce("none", 0)
    with other:
        relief.switch(on=False)
        assert torch._C._get_dispatch_stack_at(1) is other
    relief.switch(on=False)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_closed_below_another_mode_it_does_nothing() -> None:
    relief = Relief(lambda: True)
    relief.switch(on=True)
    with Scarce("none", 0):
        relief.close()
    asked: list[int] = []
    relief._apart.run = lambda *_: asked.append(1)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="allocate"), Scarce("exp", 1):
        torch.exp(torch.zeros(4))
    assert not asked
    relief.switch(on=False)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_what_says_that_there_is_no_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("could not create a primitive"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("not enough memory"))
