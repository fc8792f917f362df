"""How often a job at a store is looked at."""

from __future__ import annotations

from headwater.tune.relabel import rest_seconds

DAY = 24 * 3600.0


def looks(seconds: float) -> list[float]:
    """When a job that takes so long is looked at, from its beginning on."""
    found = [rest_seconds(0.0)]
    while found[-1] < seconds:
        found.append(found[-1] + rest_seconds(found[-1]))
    return found


def test_an_end_is_seen_soon() -> None:
    for seconds in (0.1, 1.0, 7.0, 60.0, 1000.0, DAY):
        assert looks(seconds)[-1] <= max(1.1 * seconds, seconds + 0.5)
        assert looks(seconds)[-1] <= seconds + 10.0


def test_a_long_job_is_looked_at_every_ten_seconds() -> None:
    """Each look is some hundred bytes: a photo a second is labelled for far less than it has."""
    assert len(looks(DAY)) < DAY / 10 + 100
