"""Operations that find no memory: what may leave does, then they are tried once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._python_dispatch import TorchDispatchMode

from headwater.train.memory.apart import Apart
from headwater.train.memory.parts import Parts
from headwater.train.memory.shelf import NoDisk
from headwater.train.memory.shortage import is_out_of_memory
from headwater.train.memory.versions import run_counting


class Relief(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of its thread, forward and backward, while it is on.

    `relieve` lets go what may leave, and says whether anything did. If that was not enough, `parts` computes
    less at once. An operation that changes a tensor is not tried again, because nobody knows how far it came.
    """

    def __init__(self, relieve: Callable[[], bool], parts: Parts | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._relieve, self._parts = relieve, parts
        self._apart = Apart()
        self._on = self._closed = False

    @property
    def runs_apart(self) -> bool:
        """Whether there are operations that this thread does not run any more."""
        return self._apart.needed

    def switch(self, *, on: bool) -> None:
        """Be on or off, as far as other modes allow: nobody may find this one where theirs was."""
        depth = torch._C._len_torch_dispatch_stack()
        if on and not self._on and not depth:
            self._on = True
            self.__enter__()  # type: ignore[no-untyped-call]
        elif not on and self._on and depth and torch._C._get_dispatch_stack_at(depth - 1) is self:
            self._on = False
            self.__exit__(None, None, None)

    def close(self) -> None:
        """Off for good; where another mode lies above, it stays and does nothing."""
        self._closed = True
        self.switch(on=False)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            return run_counting(func, args, kwargs)
        if self._closed or func.is_view:
            return func(*args, **kwargs)
        before = _Before.of(func, args, kwargs)
        splits = self._parts is not None and self._parts.can_split(func, args)
        try:
            return self._apart.run(func, args, kwargs)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            left = self._relieve()
            if not left and not splits:
                raise
        before.restore()  # outside of the handler: the error's frames hold what the operation had by then
        try:
            if left:
                return self._apart.run(func, args, kwargs)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or not splits:
                raise
        assert self._parts is not None
        try:
            return self._parts.run(self._apart.run, func, args)
        except NoDisk:
            return self._apart.run(func, args, kwargs)  # which says what is missing


@dataclass(frozen=True, slots=True)
class _Before:
    """What an operation changes beside its result: a generator, or the statistics of a batch norm."""

    generator: torch.Generator | None = None
    state: torch.Tensor | None = None
    statistics: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    @classmethod
    def of(cls, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Before:
        if torch.Tag.nondeterministic_seeded in func.tags:
            generator = kwargs.get("generator") or _generator_for(args, kwargs)
            return cls(generator, generator.get_state())
        if "batch_norm" in func._schema.name and "backward" not in func._schema.name:
            running = (arg for arg in args[3:5] if isinstance(arg, torch.Tensor))
            return cls(statistics=tuple((tensor, tensor.clone()) for tensor in running))
        return _NOTHING

    def restore(self) -> None:
        if self.generator is not None and self.state is not None:
            self.generator.set_state(self.state)
        for tensor, content in self.statistics:
            with _unsafe_preserve_version_counter(tensor):  # backward may check it
                tensor.copy_(content)


_NOTHING = _Before()


def _generator_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator:
    tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    device = tensor.device if tensor is not None else torch.device(kwargs.get("device") or "cpu")
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    index = device.index if device.index is not None else module.current_device()
    found: torch.Generator = module.default_generators[index]
    return found
