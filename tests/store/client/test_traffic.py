"""Bytes and the time in which answers were awaited."""

from __future__ import annotations

from headwater.store.client.traffic import Traffic


def test_answers_that_are_awaited_together_count_as_one() -> None:
    now = 0.0
    traffic = Traffic(lambda: now)
    with traffic:
        now = 1.0
        with traffic:
            now = 2.0
        traffic.count(100)
        now = 3.0
    now = 10.0
    assert traffic.read() == (100, 3.0)
    with traffic:
        now = 11.0
        assert traffic.read() == (100, 4.0)
