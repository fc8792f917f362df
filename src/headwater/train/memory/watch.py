"""Where operations are watched: lineage inside of modules' forward, want of memory from there on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from headwater.train.memory.lineage import Lineage
from headwater.train.memory.relief import Relief


class ModuleWatch:
    """Enters lineage around the outermost module that is called, while `wanted` says so.

    A mode that is active when backward begins is called for each of its operations; modules are where
    forward can be told from the rest. `relief` is for backward too: it is switched where a module begins.
    `on_forward` is told of each outermost module, while anything is watched. `backwards` counts backward
    passes, which tell that the outermost module is over where an interrupt has left it unseen.
    """

    def __init__(
        self,
        mode: Lineage,
        wanted: Callable[[], bool],
        relief: Relief,
        relief_wanted: Callable[[], bool],
        *,
        on_forward: Callable[[torch.nn.Module], None],
        backwards: Callable[[], int],
    ) -> None:
        self._on_forward, self._backwards = on_forward, backwards
        self._mode, self._wanted = mode, wanted
        self._relief, self._relief_wanted = relief, relief_wanted
        self._thread = threading.get_ident()
        self._depth = self._begun = 0
        self._entered = False
        self._hooks: list[RemovableHandle] = []
        self._over = False

    def update(self) -> None:
        """Be there if it is wanted; called between modules, or when something changed inside of one."""
        wanted = (self._wanted() or self._relief_wanted()) and not self._over
        if wanted and not self._hooks:
            self._depth = 0
            before = register_module_forward_pre_hook(self._before)
            self._hooks = [before, register_module_forward_hook(self._after, always_call=True)]
        elif not wanted and not self._depth:
            self._remove()

    def close(self) -> None:
        """For good: what changes afterwards brings nothing back."""
        self._over = True
        self._remove()
        self._relief.close()

    def _remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._leave()
        self._relief.switch(on=False)

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._depth and self._begun != self._backwards():
            self._depth = 0
            self._leave()
        self._depth += 1
        if self._depth == 1 and _is_forward():
            self._begun = self._backwards()
            self._on_forward(module)
            self._relief.switch(on=self._relief_wanted())
            if self._wanted() and not self._entered:
                self._mode.__enter__()  # type: ignore[no-untyped-call]
                self._entered = True

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            self._leave()
            self.update()

    def _leave(self) -> None:
        depth = torch._C._len_torch_dispatch_stack()
        if self._entered and depth and torch._C._get_dispatch_stack_at(depth - 1) is self._mode:
            self._entered = False
            self._mode.__exit__(None, None, None)


def _is_forward() -> bool:
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1
