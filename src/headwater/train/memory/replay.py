"""Making a tensor again from its lineage, bit for bit, and the check that it is the one that went."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import xxhash

from headwater.errors import SavedTensorChanged
from headwater.train.memory.holding import Holding
from headwater.train.memory.lineage import Fixed, Node, Recipe, Ref
from headwater.train.memory.storages import bytes_of, part_of

DEEPEST = 64
"""Operations in a row that are run again at most, between two tensors that autograd keeps."""


class Account(Protocol):
    """Who says what memory there is, and brings what is not there."""

    def bring(self, holding: Holding) -> torch.Tensor:
        """Its content, in memory; it stays there until it is let go."""

    def let_go(self, holding: Holding) -> None:
        """It may leave again."""

    def lend(self, size: int) -> None:
        """Make room for something new."""

    def give_back(self, size: int) -> None:
        """It is gone."""


def find_sources(node: Node, depth: int = 0) -> tuple[Holding, ...] | None:
    """Holdings from which the node can be made; None if something on the way is neither held nor known."""
    if node.recipe is None or depth > DEEPEST:
        return None
    found: list[Holding] = []
    for ref in node.recipe.refs():
        held = ref.node.held_by
        below = (held,) if held is not None else find_sources(ref.node, depth + 1)
        if below is None:
            return None
        found += below
    return tuple(found)


def replay_seconds(node: Node, depth: int = 0) -> float:
    """How long the operations took that would be run again."""
    if node.recipe is None or depth > DEEPEST:
        return 0.0
    unheld = [ref.node for ref in node.recipe.refs() if ref.node.held_by is None]
    return node.recipe.seconds + sum(replay_seconds(parent, depth + 1) for parent in unheld)


def replay_bytes(node: Node, depth: int = 0) -> int:
    """What making it takes beside itself: inputs that are held, and what passes through."""
    if node.recipe is None or depth > DEEPEST:
        return 0
    nodes = [ref.node for ref in node.recipe.refs()]
    below = sum(replay_bytes(parent, depth + 1) for parent in nodes if parent.held_by is None)
    return below + sum(parent.size for parent in nodes)


def replay(node: Node, account: Account) -> torch.Tensor:
    """Run the operation again, and before it those of inputs that nobody holds.

    Room for the result is lent and not given back; room for inputs is, when they were used.
    """
    recipe = node.recipe
    if recipe is None:
        raise SavedTensorChanged("a tensor cannot be made again: its origin is gone")
    brought: dict[int, tuple[Holding, torch.Tensor]] = {}
    passing: dict[int, torch.Tensor] = {}

    def give(ref: Ref) -> torch.Tensor:
        held, key = ref.node.held_by, id(ref.node)
        if held is not None:
            if key not in brought:
                brought[key] = held, account.bring(held)
            return brought[key][1]
        if key not in passing:
            passing[key] = replay(ref.node, account)
        return passing[key]

    try:
        made = _run(recipe, give, node, account)
    finally:
        for holding, _ in brought.values():
            account.let_go(holding)
        for tensor in passing.values():
            account.give_back(tensor.untyped_storage().nbytes())
    return made


def _run(recipe: Recipe, give: Callable[[Ref], torch.Tensor], node: Node, account: Account) -> torch.Tensor:
    args = tuple(_restore(value, give) for value in recipe.args)
    kwargs = {name: _restore(value, give) for name, value in recipe.kwargs.items()}
    account.lend(node.size)
    try:
        with torch.no_grad(), torch.autocast(node.device.type, enabled=False):
            out = recipe.operation(*args, **kwargs)
    except BaseException:
        account.give_back(node.size)
        raise
    made: torch.Tensor = out[node.index] if isinstance(out, tuple | list) else out
    return made


def take_digest(tensor: torch.Tensor) -> torch.Tensor:
    """What all bytes of the storage are known by, and their order; on its device, which nobody waits for."""
    whole = bytes_of(tensor)
    if not whole.is_cpu:
        return _sums(whole)
    content = (ctypes.c_char * whole.numel()).from_address(whole.data_ptr())
    return torch.frombuffer(bytearray(xxhash.xxh3_128_digest(content)), dtype=torch.uint8)


def check_digest(tensor: torch.Tensor, digest: torch.Tensor, size: int) -> None:
    """Raises `SavedTensorChanged` unless the bytes are the same."""
    if tensor.untyped_storage().nbytes() != size or not torch.equal(take_digest(tensor), digest):
        raise SavedTensorChanged(
            "a tensor that was made again differs from the one that forward made; an input of it was changed "
            "outside of what is tracked, or the operation is not deterministic; "
            "use memory_budget(recompute=False)"
        )


def _restore(value: Any, give: Callable[[Ref], torch.Tensor]) -> Any:
    if isinstance(value, Ref):
        return part_of(give(value), value.dtype, value.size, value.stride, value.offset)
    if isinstance(value, Fixed):
        if value.tensor._version != value.version:
            raise SavedTensorChanged(
                "a parameter or buffer was changed between forward and backward, and a tensor must be made "
                "again with it; change it after backward, or use memory_budget(recompute=False)"
            )
        return value.tensor
    if isinstance(value, list | tuple):
        return type(value)(_restore(item, give) for item in value)
    return value


def _sums(whole: torch.Tensor) -> torch.Tensor:
    """Of the words in a square, by rows and by columns, each with another weight; and of those beside it."""
    words = whole[: whole.numel() // 8 * 8].view(torch.int64)
    side = math.isqrt(words.numel())
    square, rest = words[: side * side].view(side, side), words[side * side :]
    weights = torch.arange(1, 4 * side + 16, 2, device=whole.device)
    rows, columns = square.sum(1), square.sum(0)
    left = torch.cat([rest, whole[words.numel() * 8 :].long()])
    return torch.stack([(values * weights[: len(values)]).sum() for values in (rows, columns, left)])
