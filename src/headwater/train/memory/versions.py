"""Versions of tensors that are changed as lists: torch does not count those while a dispatch mode is on."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload


def run_counting(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the operation gives. All that it has changed has another version then, as without a mode."""
    changed = _changed_lists(func, args, kwargs)
    before = [tensor._version for tensor in changed]
    out = func(*args, **kwargs)
    for tensor, version in zip(changed, before, strict=True):
        if tensor._version == version:
            torch.autograd.graph.increment_version(tensor)
    return out


def _changed_lists(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    lists = [args[place] if place < len(args) else kwargs.get(name, ()) for place, name in _written(func)]
    return [tensor for tensors in lists for tensor in tensors if not tensor.is_inference()]


@cache
def _written(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Places and names of lists that it writes to. Fused optimisers count no versions, mode or not."""
    name = func._schema.name.removeprefix("aten::")
    if name.startswith(("_fused_", "_amp_foreach_")):
        return ()
    arguments = enumerate(func._schema.arguments)
    return tuple((place, one.name) for place, one in arguments if _is_written_list(one))


def _is_written_list(argument: torch.Argument) -> bool:
    written = argument.alias_info is not None and argument.alias_info.is_write
    return written and isinstance(argument.type, torch.ListType)
