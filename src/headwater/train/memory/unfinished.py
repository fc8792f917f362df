"""What was saved by an operation that may still fill it, as `rrelu` does with its noise."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from headwater.plan.memory import Action
from headwater.train.memory.holding import Holding


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A holding that is its operation's until that is over, and what becomes of it then."""

    holding: weakref.ref[Holding]
    operation: int
    action: Action
    fresh: bool


class Operations:
    """Those of which something waits, by the numbers that autograd gives them."""

    def __init__(self) -> None:
        self._waiting: list[Unfinished] = []

    def __contains__(self, holding: Holding) -> bool:
        return any(one.holding() is holding for one in self._waiting)

    def await_end(self, holding: Holding, action: Action, *, fresh: bool) -> None:
        """Of the operation that saves now."""
        now = _present()
        self._waiting.append(Unfinished(weakref.ref(holding), now, action, fresh))

    def ended(self, *, all_of_them: bool) -> Iterator[tuple[Holding, Action, bool]]:
        """What waited for operations before the present one, or for all: holding, action, whether it is
        fresh. Each is given once."""
        if not self._waiting:
            return
        now = None if all_of_them else _present()
        waiting, self._waiting = self._waiting, []
        self._waiting = [one for one in waiting if one.operation == now]
        for one in waiting:
            holding = one.holding()
            if one.operation != now and holding is not None:
                yield holding, one.action, one.fresh

    def clear(self) -> None:
        self._waiting.clear()


def _present() -> int:
    """The number of the operation that runs, or runs next: autograd counts them thread by thread."""
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    return number
