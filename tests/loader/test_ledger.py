"""A selector at the trainer that costs more than it saves: by a clock that is told what to say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.loader.curator import Curator
from headwater.loader.ledger import Ledger
from headwater.loader.worth import LEAST_SECONDS, ROUNDS
from headwater.select.always import Always
from headwater.select.craig import Craig
from headwater.select.infobatch import InfoBatch
from headwater.select.medoids import Medoids
from headwater.select.samples import Samples
from headwater.select.selecting import SELECTORS, Selector, make_selection
from headwater.select.selection import Choice


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """Takes every other sample, and its time."""

    name, explore = "slow", 0.0

    def __init__(self, clock: Clock, seconds: float, needs: tuple[str, ...] = ("vectors",)) -> None:
        self.needs, self._clock, self._seconds = needs, clock, seconds
        self.asked = 0

    def choose(self, samples: Samples) -> Choice:
        self.asked += 1
        self._clock.now += self._seconds
        return Choice(np.arange(0, len(samples), 2), "every other")


def ledger_of(selector: Selector, *, selecting: float, seconds: float, scored: float = 0.0) -> Ledger:
    """After as many epochs on half of the samples as it takes to judge, and a first one, which is cold."""
    ledger = Ledger(selector, clock=(clock := Clock()))
    ledger.trained(9 * seconds, visited=50, samples=100)
    for _ in range(ROUNDS):
        assert not ledger.verdict
        with ledger.selecting():
            clock.now += selecting
        ledger.scored(scored)
        ledger.trained(seconds, visited=50, samples=100)
    return ledger


def test_what_is_saved_is_set_against_choosing_and_scoring() -> None:
    assert ledger_of(Craig(), selecting=4.0, seconds=10.0).lost == 0
    dear = ledger_of(Craig(), selecting=4.0, seconds=10.0, scored=4.0)
    assert dear.lost == pytest.approx(2.0), "6 s of training are saved by 8 s"
    assert dear.verdict == (
        "selecting costs 8 s an epoch (selected 4 s, scored 4 s) and saves 6 s of epochs which take 6 s of 12"
    )


def test_only_who_compares_samples_is_judged() -> None:
    judged = {name for name, make in SELECTORS.items() if Ledger(make()).judges}
    assert judged == {"medoids", "craig", "k_center"}
    assert not Ledger(Always(Medoids())).judges


def test_always_selects_as_the_selector_does() -> None:
    samples = Samples.of(np.arange(90), np.zeros(90, np.int64), loss=np.arange(90, dtype=np.float32), epoch=3)
    one, other = make_selection(Always(InfoBatch()), samples), make_selection(InfoBatch(), samples)
    np.testing.assert_array_equal(one.places, other.places)
    np.testing.assert_array_equal(one.weights, other.weights)
    assert (one.selector, Always(InfoBatch(explore=0.5)).explore) == ("infobatch", 0.5)


def test_epochs_that_are_not_whole_and_those_on_everything_tell_nothing() -> None:
    ledger = Ledger(Craig(), clock=Clock())
    for _ in range(ROUNDS):
        ledger.scored(50.0)
        ledger.left()
        ledger.trained(10.0, visited=100, samples=100)
    assert not ledger.lost


@pytest.fixture
def data(photo_folder: Path) -> hw.Dataset:
    return hw.open(photo_folder)


def curate(data: hw.Dataset, selector: Selector, clock: Clock, folder: Path) -> Curator:
    ranks = {"ranks": lambda: (0, 1)}
    return Curator(selector, data, seed=0, epochs=None, folder=folder, clock=clock, **ranks)


def run(curator: Curator, epochs: range, seconds: float = 10.0) -> list[int]:
    """How many samples each epoch visits, if it takes so long."""
    found = []
    for epoch in epochs:
        curator.signals.column("vectors", width=2)[:] = 0  # as if they had been reported
        found.append(len(curator.begin(epoch)))
        curator.trained(seconds, whole=True)
    return found


def test_a_selector_that_does_not_pay_ends_with_its_figures(
    data: hw.Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow, count = Slow(clock := Clock(), 30.0), len(data)
    curator = curate(data, slow, clock, tmp_path)
    half = (count + 1) // 2
    assert run(curator, range(6)) == [half] * (1 + ROUNDS) + [count] * 2
    assert slow.asked == 1 + ROUNDS
    assert "selecting costs 30 s an epoch (selected 30 s)" in caplog.text
    assert caplog.text.count("slow ends, and epochs visit everything") == 1
    assert curator.ended in curator.begin(5).reason
    assert curator.needs == (), "nobody has to make vectors any more"
    again = curate(data, fresh := Slow(clock, 30.0), clock, tmp_path)
    again.restore(curator.save())
    assert run(again, range(6, 8)) == [count] * 2
    assert fresh.asked == 0


@pytest.mark.parametrize(
    ("seconds", "needs"), [(2.0, ("vectors",)), (10 + LEAST_SECONDS / 2, ("vectors",)), (99.0, ())]
)
def test_one_that_pays_or_hardly_costs_or_has_other_reasons_goes_on(
    data: hw.Dataset, tmp_path: Path, seconds: float, needs: tuple[str, ...]
) -> None:
    curator = curate(data, Slow(clock := Clock(), seconds, needs), clock, tmp_path)
    assert run(curator, range(6)) == [(len(data) + 1) // 2] * 6
    assert not curator.ended


def test_scores_that_a_loader_is_told_count_too(data: hw.Dataset, tmp_path: Path) -> None:
    curator = curate(data, Slow(clock := Clock(), 0.0), clock, tmp_path)
    for epoch in range(1 + ROUNDS):
        curator.scored(8.0)
        run(curator, range(epoch, epoch + 1))
    assert run(curator, range(1 + ROUNDS, 2 + ROUNDS)) == [len(data)]
    assert "(scored 8 s) and saves 2 s" in curator.ended


def test_one_that_is_wanted_whatever_it_costs_goes_on(data: hw.Dataset, tmp_path: Path) -> None:
    curator = curate(data, Always(Slow(clock := Clock(), 99.0)), clock, tmp_path)
    assert run(curator, range(6)) == [(len(data) + 1) // 2] * 6
