"""Bytes and the time in which files were awaited."""

from __future__ import annotations

from headwater.store.client.traffic import Traffic


def test_answers_that_are_awaited_together_count_as_one() -> None:
    now = 0.0
    traffic = Traffic(lambda: now)
    with traffic.awaiting(files=True):
        now = 1.0
        with traffic.awaiting(files=True):
            now = 2.0
        traffic.count(100)
        now = 3.0
    now = 10.0
    assert traffic.read() == (100, 3.0)
    with traffic.awaiting(files=True):
        now = 11.0
        assert traffic.read() == (100, 4.0)


def test_what_takes_cpu_counts_only_while_files_are_awaited() -> None:
    now = 0.0
    traffic = Traffic(lambda: now)
    with traffic.awaiting(files=False):
        now = 5.0
        traffic.count(70)
        with traffic.awaiting(files=True):
            now = 6.0
            traffic.count(30)
    assert traffic.read() == (30, 1.0)
