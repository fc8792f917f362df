"""Errors that mean want of memory; on a CPU there is only their text."""

from __future__ import annotations

_SAYS_SO = ("can't allocate memory", "not enough memory", "bad_alloc", "can't start new thread")
_MAY_MEAN_SO = ("could not create a primitive", "could not create a memory", "could not execute a primitive")
"""Of oneDNN, which does not say why."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator of torch or of Python says so."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and _has(error, (*_SAYS_SO, *_MAY_MEAN_SO))


def is_vague(error: BaseException) -> bool:
    """Whether an error that counts as want of memory may mean something else."""
    return isinstance(error, RuntimeError) and _has(error, _MAY_MEAN_SO)


def _has(error: BaseException, texts: tuple[str, ...]) -> bool:
    return any(text in str(error) for text in texts)
