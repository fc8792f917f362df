"""Things that begin anew in a forked child, where the threads that were using them do not exist."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something with locks, or with work that another thread has promised to finish."""

    def begin(self) -> None:
        """Forget everything, also who holds a lock."""
        ...


_alive: WeakSet[Renewable] = WeakSet()


def renew_in_children(thing: Renewable) -> None:
    """Have `thing.begin()` called in every child that is forked from now on, for as long as it lives."""
    _alive.add(thing)


def _renew() -> None:
    for thing in list(_alive):
        thing.begin()


os.register_at_fork(after_in_child=_renew)
