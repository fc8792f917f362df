"""Calls that wait for other machines, made at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from headwater.engine.crew import Daemons

T = TypeVar("T")


def all_at_once(calls: Sequence[Callable[[], T]], *, name: str, most: int | None = None) -> list[T]:
    """What the calls give, in their order; each in a thread, `most` of them at a time.

    All are made, whatever one of them raises; the first error is raised when the last has ended. Only with
    `most`, what has not begun when one fails never does. Threads are called after `name`.
    """
    threads = Daemons(min(most or len(calls), len(calls)), name)
    done: SimpleQueue[tuple[int, T] | None] = SimpleQueue()
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            done.put(None if errors and most is not None else (number, calls[number]()))
        except BaseException as error:
            errors.append(error)
            done.put(None)

    for number in range(len(calls)):
        threads.submit(run, number)
    try:
        found = dict(one for one in (done.get() for _ in calls) if one is not None)
    finally:
        threads.shutdown(cancel_futures=True)
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(calls))]
