"""What selecting costs and saves: sums by hand, and the line that ends it."""

from __future__ import annotations

import pytest

from headwater.loader.worth import ROUNDS, Spent, Worth


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(worth: Worth, clock: Clock, seconds: float, visited: int = 30, **spent: float) -> None:
    """An epoch over so many of 100 samples."""
    worth.begin(visited, 100)
    worth.spend(**spent)
    clock.now += seconds
    worth.end(selected=True)


def test_what_is_left_out_would_have_taken_as_long_as_what_is_visited() -> None:
    assert Spent(3.0, visited=30, samples=100).saved == pytest.approx(7.0)
    assert Spent(3.0, visited=100, samples=100).saved == 0
    assert Spent(3.0, waited=1.0, fed=2.0, link=4.0).cost == 7.0


def test_while_it_pays_there_is_nothing_to_say() -> None:
    clock = Clock()
    worth = Worth(clock)
    for _ in range(9):
        run(worth, clock, 3.0, waited=6.0)
        assert not worth.verdict


def test_when_it_does_not_it_says_why() -> None:
    clock = Clock()
    worth = Worth(clock)
    for number in range(ROUNDS):
        assert not worth.verdict, f"{number} epochs are too few to tell"
        run(worth, clock, 3.5, waited=6.0, fed=0.5, link=1.0)
    assert worth.verdict == ("selecting costs 7.5 s an epoch (waited 6 s, fed 0.5 s, link 1 s) and saves 7 s")
    run(worth, clock, 300.0)
    assert not worth.verdict, "one good epoch may make up for bad ones"


def test_an_epoch_on_everything_saves_nothing() -> None:
    clock = Clock()
    worth = Worth(clock)
    for _ in range(ROUNDS):
        run(worth, clock, 3.0, visited=100, fed=0.01)
    assert worth.verdict.endswith("and saves 0 s")


def test_epochs_before_the_first_selection_do_not_count() -> None:
    clock = Clock()
    worth = Worth(clock)
    worth.end(selected=False)  # nothing had begun
    for _ in range(5):
        worth.begin(100, 100)
        worth.spend(fed=9.0)
        clock.now += 10.0
        worth.end(selected=False)
    assert worth.epoch_seconds == 1.0, "without the time that it stood still"
    assert not worth.verdict


def test_what_was_spent_before_an_epoch_was_for_it() -> None:
    clock = Clock()
    worth = Worth(clock)
    for _ in range(ROUNDS):
        worth.spend(waited=9.0)
        run(worth, clock, 3.0)
    assert "waited 9 s" in worth.verdict
