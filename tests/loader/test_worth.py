"""What selecting costs and saves: sums by hand, and the line that ends it."""

from __future__ import annotations

import pytest

from headwater.loader.worth import LEAST_SECONDS, RECENT, ROUNDS, Spent, Worth


def run(worth: Worth, seconds: float, *, visited: int = 30, busy: bool = True, **spent: float) -> None:
    """An epoch over so many of 100 samples."""
    worth.spend(**spent)
    worth.note(seconds, visited=visited, samples=100, selected=visited < 100, busy=busy)


def quiet() -> Worth:
    """Ten seconds for all samples, as long as nothing else goes on; many more in the first epoch."""
    worth = Worth()
    run(worth, 40.0, visited=100, busy=False, fed=99.0)
    run(worth, 10.0, visited=100, busy=False, fed=99.0)
    return worth


def test_what_is_saved_is_what_all_samples_would_have_taken_less_what_some_took() -> None:
    assert Spent(3.0, whole=10.0).saved == 7.0
    assert Spent(12.0, whole=10.0).saved == -2.0
    assert Spent(3.0, whole=10.0, waited=1.0, fed=2.0).cost == 3.0


def test_while_it_pays_there_is_nothing_to_say() -> None:
    worth = quiet()
    for _ in range(9):
        run(worth, 3.0, waited=6.0)
        assert not worth.verdict


def test_when_it_does_not_it_says_why() -> None:
    worth = quiet()
    for number in range(ROUNDS):
        assert not worth.verdict, f"{number} epochs are too few to tell"
        run(worth, 3.5, waited=6.0, fed=2.0)
    assert worth.verdict == (
        "selecting costs 8 s an epoch (waited 6 s, fed 2 s) and saves 6.5 s of epochs which take 3.5 s of 10"
    )
    run(worth, 1.0)
    assert not worth.verdict, "one good epoch may make up for bad ones"


def test_what_is_lost_in_less_than_a_second_may_be_chance() -> None:
    worth = quiet()
    for _ in range(ROUNDS):
        run(worth, 3.5, waited=6.5 + 0.9 * LEAST_SECONDS)
    assert worth.lost == pytest.approx(0.9 * LEAST_SECONDS)
    assert not worth.verdict
    worth = quiet()
    for _ in range(ROUNDS):
        run(worth, 3.5, waited=6.5 + 1.1 * LEAST_SECONDS)
    assert worth.verdict


def test_epochs_that_scoring_slows_do_not_save_what_they_are_slowed_by() -> None:
    """Nobody waits, but a third of the samples takes as long as all of them did."""
    worth = quiet()
    for _ in range(ROUNDS):
        run(worth, 11.0)
    assert worth.verdict.endswith("and saves -1 s of epochs which take 11 s of 10")


def test_a_cold_first_epoch_makes_nothing_look_better() -> None:
    """All samples take 40 s with cold caches and 5 s with warm ones; scoring makes 30 of them take 4.5 s."""
    worth = Worth()
    run(worth, 40.0, visited=100, busy=False)
    for _ in range(2 * ROUNDS):
        run(worth, 4.5, fed=3.0)
        assert (worth.wants_quiet, worth.lost) == (True, 0), "nobody knows what training takes by itself"
    worth.note(1.5, visited=30, samples=100, selected=False, busy=False)
    assert not worth.wants_quiet
    for _ in range(ROUNDS):
        assert not worth.verdict
        run(worth, 4.5, fed=3.0)
    assert worth.verdict.endswith("and saves 0.5 s of epochs which take 4.5 s of 5")


def test_the_first_epoch_of_a_process_is_cold_also_where_a_run_goes_on() -> None:
    worth = Worth()
    run(worth, 12.0, busy=False)
    assert worth.wants_quiet
    for _ in range(ROUNDS):
        run(worth, 3.0, busy=False, waited=8.0 + LEAST_SECONDS)
    assert "saves 7 s of epochs which take 3 s of 10" in worth.verdict, "and not by what the first one took"


def test_after_an_epoch_that_was_left_early_none_is_cold() -> None:
    worth = Worth()
    worth.leave()
    run(worth, 3.0, busy=False)
    assert not worth.wants_quiet


def test_the_epochs_before_the_first_quiet_one_bound_it() -> None:
    """An epoch on a few samples takes time for itself too, which one on all of them takes only once."""
    worth = Worth()
    run(worth, 10.0, visited=100, busy=False)
    run(worth, 5.0, busy=False)
    for _ in range(ROUNDS - 1):
        run(worth, 5.0, waited=9.0)
    assert "of epochs which take 5 s of 10" in worth.verdict


def test_epochs_that_are_busy_bound_what_training_takes_by_itself() -> None:
    worth = quiet()
    run(worth, 0.6)  # 2 s for all samples, or less
    for _ in range(ROUNDS - 1):
        run(worth, 4.9)
    assert worth.verdict.endswith("and saves -1.47 s of epochs which take 3.47 s of 2")


def test_before_it_ends_training_is_looked_at_by_itself_again() -> None:
    """A link that has become slower: 30 samples take what all took, and would save more than before."""
    worth = quiet()
    for _ in range(2 * ROUNDS):
        run(worth, 3.0)
        assert not worth.wants_quiet
    while not worth.wants_quiet:
        run(worth, 11.0)
        assert not worth.verdict, "what a sample takes by itself is not known any more"
    run(worth, 9.0, busy=False)
    for _ in range(2 * ROUNDS):
        assert not worth.verdict
        run(worth, 11.0)
    assert worth.lost == 0
    for _ in range(2 * ROUNDS):
        run(worth, 11.0, waited=25.0)
    assert worth.wants_quiet
    for _ in range(ROUNDS):
        assert not worth.verdict, "it is judged anew by what is known anew"
        run(worth, 9.0, busy=False, waited=25.0)
    assert "saves 21 s of epochs which take 9 s of 30" in worth.verdict


def test_now_and_then_training_is_looked_at_by_itself_also_while_selecting_pays() -> None:
    worth = quiet()
    for _ in range(RECENT):
        run(worth, 3.0)
        assert not worth.wants_quiet
    run(worth, 3.0)
    assert worth.wants_quiet
    run(worth, 3.0, busy=False)
    assert not worth.wants_quiet


def test_an_epoch_on_everything_saves_nothing() -> None:
    worth = quiet()
    for _ in range(ROUNDS):
        worth.spend(fed=1.5)
        worth.note(10.0, visited=100, samples=100, selected=True, busy=True)
    assert "and saves 0 s" in worth.verdict


def test_epochs_before_the_first_selection_do_not_count() -> None:
    worth = quiet()
    for _ in range(5):
        run(worth, 10.0, visited=100, fed=9.0)
    assert worth.epoch_seconds == 10.0
    assert not worth.verdict


def test_what_was_spent_before_an_epoch_was_for_it() -> None:
    worth = quiet()
    run(worth, 3.0, waited=60.0)
    for _ in range(ROUNDS):
        run(worth, 3.0)
    assert not worth.verdict


@pytest.mark.parametrize("visited", [0, 1])
def test_epochs_of_next_to_nothing_are_no_reason_to_fail(visited: int) -> None:
    worth = Worth()
    run(worth, 1.0, visited=visited)
    assert worth.epoch_seconds == 1.0
