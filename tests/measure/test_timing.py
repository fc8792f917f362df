"""The shortest of several calls."""

from __future__ import annotations

from headwater.measure.timing import least_seconds


def test_the_shortest_counts() -> None:
    now, calls, lasting = [0.0], [0], [3.0, 1.0, 2.0]

    def call() -> None:
        now[0] += lasting[calls[0]]
        calls[0] += 1

    assert least_seconds(call, clock=lambda: now[0]) == 1.0
    assert calls == [3]
