"""Calls made at the same time: answers in order, at most so many at once, the first error at once."""

from __future__ import annotations

import threading

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


def test_nobody_waits_for_the_others_once_one_has_failed() -> None:
    never, ended = threading.Event(), threading.Event()

    def fail() -> None:
        raise KeyError("store-b")

    def hang() -> None:
        never.wait(60)
        ended.set()

    with pytest.raises(KeyError, match="store-b"):
        all_at_once([hang, fail], name="test")
    assert not ended.is_set()
    never.set()
