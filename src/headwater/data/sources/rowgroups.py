"""A bounded cache of loaded row groups, shared by threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, Protocol, TypeVar

from headwater.data.forks import renew_in_children
from headwater.errors import HeadwaterError


class Sized(Protocol):
    """Whatever knows how many bytes it holds."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class GroupCache(Generic[T]):
    """The most recently used values, up to `limit` bytes; one load per key, however many threads ask at once.

    The newest value stays even if it alone is over the limit. A value that is dropped lives on for
    as long as a caller holds it. A forked child begins with an empty cache.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.begin()
        renew_in_children(self)

    def begin(self) -> None:
        """Forget everything, also who holds the lock and what is being loaded."""
        self._lock = Lock()
        self._held: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        """The value of `key`; what `load` raises reaches every thread that waits for it, and is not kept."""
        with self._lock:
            future = self._held.get(key)
            mine = future is None
            if future is None:
                future = self._held[key] = Future()
            else:
                self._held.move_to_end(key)
        if not mine:
            return _result_of_another(future)
        self._load(key, future, load)
        return future.result()

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self._bytes = 0

    def _load(self, key: Hashable, future: Future[T], load: Callable[[], T]) -> None:
        try:
            value = load()
        except BaseException as error:
            with self._lock:
                self._held.pop(key, None)
            future.set_exception(error)
            return
        with self._lock:
            self._bytes += value.nbytes if self._held.get(key) is future else 0
        future.set_result(value)
        self._shrink(newest=key)

    def _shrink(self, *, newest: Hashable) -> None:
        with self._lock:
            for key in [k for k, future in self._held.items() if future.done() and k != newest]:
                if self._bytes <= self._limit:
                    return
                self._bytes -= self._held.pop(key).result().nbytes


def _result_of_another(future: Future[T]) -> T:
    """What another thread loads; an error is a copy, because each caller writes its own sample into it."""
    try:
        return future.result()
    except HeadwaterError as error:
        raise type(error)(*error.args) from error
