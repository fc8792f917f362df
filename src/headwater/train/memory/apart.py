"""Operations of oneDNN in another thread, once this one makes no kernels any more.

The assembler in oneDNN remembers for each thread that it once got no memory. From then on every new kernel
fails there, however much memory there is; a thread that begins afterwards makes them.
"""

from __future__ import annotations

import os
import re
import resource
import threading
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet, _AutoDispatchBelowAutograd, _ExcludeDispatchKeyGuard
from torch._ops import OpOverload

from headwater.train.memory.shortage import is_vague
from headwater.train.memory.threads import start_thread

STACK = 2**20
"""Bytes; the usual 8 MiB of a thread count against a limit on the process's data."""
PORTION = 2**15
"""Elements below which torch does not divide a loop."""
USUAL_STACK = 2**23
"""Bytes of a thread of OpenMP, if nobody says otherwise."""
LEAST_STACK = 2**14
"""Bytes, below which the system refuses a stack and OpenMP takes the usual one."""
UNITS = {"B": 1, "": 2**10, "K": 2**10, "M": 2**20, "G": 2**30}
"""Of `OMP_STACKSIZE`."""


class Apart:
    """Runs an operation where it can be run. Not for operations that change a tensor."""

    def __init__(self) -> None:
        self._barred: set[OpOverload] = set()

    @property
    def needed(self) -> bool:
        """Whether an operation failed so."""
        return bool(self._barred)

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its result; one that fails so is run in a thread of its own, at once and from then on."""
        if func not in self._barred:
            try:
                return func(*args, **kwargs)
            except RuntimeError as error:
                if not is_vague(error):
                    raise
            self._barred.add(func)
        return _run_apart(func, args, kwargs)


def _run_apart(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With as many threads and below autograd, as here, so that the same kernel is chosen."""
    found: list[Any] = []
    failed: list[BaseException] = []
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()

    def work() -> None:
        try:
            _take_threads(threads)
            below = _ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.ADInplaceOrView))
            with _AutoDispatchBelowAutograd(), below, torch.set_grad_enabled(grad):
                found.append(func(*args, **kwargs))
        except BaseException as error:  # it is raised where the result is waited for
            failed.append(error)

    thread = threading.Thread(target=work, name="headwater-apart", daemon=True)
    start_thread(thread, STACK, beside=(threads - 1) * _openmp_stack())
    thread.join()
    if failed:
        raise failed.pop()
    return found.pop()


def _take_threads(count: int) -> None:
    """Those of OpenMP for this thread, now that there is room for them, and not when the operation has it."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    torch.empty(count * PORTION, dtype=torch.uint8).fill_(1)


def _openmp_stack() -> int:
    """Bytes for each thread that a thread gets for its loops; OpenMP ends a process that lacks them."""
    asked = re.fullmatch(r"\s*(\d+)\s*([BKMG]?)\s*", os.environ.get("OMP_STACKSIZE", ""), re.IGNORECASE)
    size = int(asked[1]) * UNITS[asked[2].upper()] if asked is not None else 0
    if size >= LEAST_STACK:
        return size
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return USUAL_STACK if soft == resource.RLIM_INFINITY else max(soft, USUAL_STACK)
