"""Calls made at the same time: answers in order, at most so many at once, the first error at last."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from headwater.engine.together import all_at_once


def test_answers_come_in_the_order_of_the_calls() -> None:
    """The first waits for the last, so all are under way together."""
    last = threading.Event()

    def wait() -> str:
        assert last.wait(10)
        return "first"

    def end() -> str:
        last.set()
        return "last"

    assert all_at_once([wait, lambda: "middle", end], name="test") == ["first", "middle", "last"]
    assert all_at_once([], name="test") == []


def test_no_more_than_so_many_are_under_way() -> None:
    lock, under_way, seen = threading.Lock(), 0, []

    def call() -> None:
        nonlocal under_way
        with lock:
            under_way += 1
            seen.append(under_way)
        with lock:
            under_way -= 1

    all_at_once([call] * 20, name="test", most=2)
    assert len(seen) == 20
    assert max(seen) <= 2


def test_what_fails_keeps_nothing_from_the_others() -> None:
    """The last does not begin before the first has failed, and ends all the same."""
    failed, ended = threading.Event(), threading.Event()

    def fail() -> None:
        failed.set()
        raise KeyError("store-b")

    def work() -> None:
        assert failed.wait(10)
        time.sleep(0.05)
        ended.set()

    with pytest.raises(KeyError, match="store-b"):
        all_at_once([fail, work, work], name="test")
    assert ended.is_set()


def test_of_many_those_that_have_not_begun_never_do() -> None:
    """A store that is away is not asked a thousand times."""
    begun: list[int] = []

    def fail(number: int) -> None:
        begun.append(number)
        raise KeyError(number)

    with pytest.raises(KeyError):
        all_at_once([partial(fail, number) for number in range(1000)], name="test", most=2)
    assert 1 <= len(begun) <= 2
