"""How each tensor of a forward pass was made: a dispatch mode notes operations, their inputs and their time.

Nothing here holds a tensor's memory, except that of parameters and of what is too small to matter.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from headwater.train.memory.operators import Kind, kind_of, may_replay, widens, without_side_effects
from headwater.train.memory.storages import WeakStorage, is_loose, is_ordinary
from headwater.train.memory.streams import Clock
from headwater.train.memory.versions import run_counting

if TYPE_CHECKING:
    from headwater.train.memory.holding import Holding

SMALL = 4096
"""Bytes; what is smaller is always kept."""


class Node:
    """The content of a storage at one version: how it was made, and what holds it, if anything does."""

    __slots__ = ("device", "holding", "index", "recipe", "size", "version", "weak")

    def __init__(
        self, storage: torch.UntypedStorage, version: int, recipe: Recipe | None, index: int
    ) -> None:
        self.weak = WeakStorage(storage)  # while it lives, no other storage has this address
        self.size = storage.nbytes()
        self.device = storage.device
        self.version = version
        self.recipe = recipe
        self.index = index
        self.holding: weakref.ref[Holding] | None = None

    @property
    def held_by(self) -> Holding | None:
        """What has this content; None, too, where that was changed since."""
        holding = self.holding() if self.holding is not None else None
        return None if holding is None or holding.spoiled or holding.worthless else holding


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor as a part of a storage."""

    node: Node
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """A tensor that stays where it is, at the version that it had."""

    tensor: torch.Tensor
    version: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """An operation to run again; `args` and `kwargs` have `Ref` and `Fixed` in place of tensors."""

    operation: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seconds: float

    def refs(self) -> Iterator[Ref]:
        yield from _refs((*self.args, *self.kwargs.values()))


class Lineage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation while it is entered, unless `quiet`; `clear` forgets all of them."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = clock
        self.quiet = False
        self._nodes: dict[int, Node] = {}
        self._outside: dict[int, WeakStorage] = {}
        self._inside = 0.0
        self._own: list[float] = []

    @property
    def seconds(self) -> float:
        """What noting takes by itself, for as many operations as were noted since `clear`."""
        return median(self._own) * len(self._own) if self._own else 0.0

    def clear(self) -> None:
        self._nodes = {}
        self._outside = {}
        self._own = []

    def node_of(self, tensor: torch.Tensor) -> Node | None:
        """How the present content of the tensor's storage came about, if that was seen."""
        node = self._nodes.get(tensor.untyped_storage()._cdata)
        return node if node is not None and node.version == tensor._version else None

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.quiet:
            return run_counting(func, args, kwargs)
        begin = time.perf_counter()
        out = self._run(func, args, kwargs)
        self._own.append(time.perf_counter() - begin - self._inside)
        return out

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind, functional = kind_of(func)
        if kind is Kind.VIEW:
            if is_outside(args[0]) and is_ordinary(args[0]):
                storage = args[0].untyped_storage()
                self._outside[storage._cdata] = WeakStorage(storage)
            return self._call(func, args, kwargs, timed=False)[0]
        if kind is Kind.OTHER:
            return self._call(func, args, kwargs, timed=False)[0]
        if functional is not None and kind is Kind.CHANGE and widens(args):
            functional = None
        noted = self._recipe_of(functional, args, kwargs)
        out, seconds = self._call(func, args, kwargs, timed=True)
        recipe = noted and Recipe(*noted, seconds)
        self._note(out, recipe, step=int(kind is Kind.CHANGE))
        return out

    def _call(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], *, timed: bool
    ) -> tuple[Any, float]:
        """What the operation itself gives, and its seconds if it is `timed`: then a device is waited for."""
        entered = time.perf_counter()
        begin = self.clock() if timed else 0.0
        out = run_counting(func, args, kwargs)
        seconds = self.clock.since(begin) if timed else 0.0
        self._inside = time.perf_counter() - entered
        return out, seconds

    def _recipe_of(
        self, operation: OpOverload | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[OpOverload, tuple[Any, ...], dict[str, Any]] | None:
        """Taken before the operation runs, because it may change its first argument."""
        if operation is None or not may_replay(operation, args, kwargs):
            return None
        if not all(map(is_ordinary, _tensors((*args, *kwargs.values())))):
            return None
        found = tuple(self._refer(value) for value in without_side_effects(operation, args))
        return operation, found, {name: self._refer(value) for name, value in kwargs.items()}

    def _refer(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._refer_to(value)
        if isinstance(value, list | tuple):
            return type(value)(self._refer(item) for item in value)
        return value

    def _refer_to(self, tensor: torch.Tensor) -> Ref | Fixed:
        storage = tensor.untyped_storage()
        if is_outside(tensor) or storage._cdata in self._outside:
            return Fixed(tensor, tensor._version)
        if storage.nbytes() < SMALL:  # a copy, because the tensor may own the graph that owns this
            copy = tensor.clone()
            return Fixed(copy, copy._version)
        node = self._nodes.get(storage._cdata)
        if is_loose(tensor):
            node = Node(storage, tensor._version, None, 0)  # nothing can be made of it
        elif node is None or node.version != tensor._version:
            node = self._nodes[storage._cdata] = Node(storage, tensor._version, None, 0)
        return Ref(node, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _note(self, out: Any, recipe: Recipe | None, *, step: int) -> None:
        """`step`: autograd counts the new version of what was changed after this call."""
        for index, tensor in enumerate(out if isinstance(out, tuple | list) else (out,)):
            if not isinstance(tensor, torch.Tensor) or not is_ordinary(tensor):
                continue
            storage = tensor.untyped_storage()
            whole = tensor.numel() * tensor.itemsize == storage.nbytes()
            if storage.nbytes() >= SMALL:
                made = recipe if whole else None
                self._nodes[storage._cdata] = Node(storage, tensor._version + step, made, index)


def is_outside(tensor: Any) -> bool:
    """Parameters, and views of them: they stay in memory whatever happens."""
    if type(tensor) is torch.nn.Parameter:
        return True
    if not isinstance(tensor, torch.Tensor):
        return False
    base = tensor if tensor._base is None else tensor._base
    return type(base) is torch.nn.Parameter or (base.is_leaf and base.requires_grad)


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _refs(values: Sequence[Any]) -> Iterator[Ref]:
    for value in values:
        if isinstance(value, Ref):
            yield value
        elif isinstance(value, list | tuple):
            yield from _refs(value)
