"""Calls that wait for other machines, made at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from headwater.engine.crew import Daemons

T = TypeVar("T")


def all_at_once(calls: Sequence[Callable[[], T]], *, name: str, most: int | None = None) -> list[T]:
    """What the calls give, in their order; each in a thread, `most` of them at a time.

    The first that raises is raised at once: what has not begun then never does, and nobody waits for the
    rest. Threads are called after `name`.
    """
    threads = Daemons(min(most or len(calls), len(calls)), name)
    done: SimpleQueue[tuple[int, T] | BaseException] = SimpleQueue()

    def run(number: int) -> None:
        try:
            done.put((number, calls[number]()))
        except BaseException as error:
            done.put(error)

    for number in range(len(calls)):
        threads.submit(run, number)
    found: dict[int, T] = {}
    try:
        for _ in calls:
            one = done.get()
            if isinstance(one, BaseException):
                raise one
            found[one[0]] = one[1]
    finally:
        threads.shutdown(cancel_futures=True)
    return [found[number] for number in range(len(calls))]
