"""Operations of oneDNN in another thread, once this one makes no kernels any more.

The assembler in oneDNN remembers for each thread that it once got no memory. From then on every new kernel
fails there, however much memory there is; a thread that begins afterwards makes them.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch._ops import OpOverload

from headwater.train.memory.shortage import is_vague

STACK = 2**20
"""Bytes; the usual 8 MiB of a thread count against a limit on the process's data."""
CUSHION = 2**20
"""Bytes that must be there for a thread to begin: one without them dies unseen, and Python waits for it."""


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
    """With as many threads and the same mode of autograd, so that the same kernel is chosen."""
    found: list[Any] = []
    failed: list[BaseException] = []
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()

    def work() -> None:
        try:
            torch.set_num_threads(threads)
            with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(grad):
                found.append(func(*args, **kwargs))
        except BaseException as error:  # it is raised where the result is waited for
            failed.append(error)

    _run_to_its_end(threading.Thread(target=work, name="headwater-apart", daemon=True))
    if failed:
        raise failed.pop()
    return found.pop()


def _run_to_its_end(thread: threading.Thread) -> None:
    bytearray(CUSHION)  # a MemoryError here is one that the caller knows
    usual = threading.stack_size(STACK)
    try:
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
