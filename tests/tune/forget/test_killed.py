"""Killed at any step, and asked again: forgetting ends in the same state as if nothing had happened."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from forgetting import NAME, STEPS, Home, choose_ids, copied, kill_at, state_of
from headwater.errors import JournalRefused, WrongUse
from headwater.tune.forget.survey import Wish, look_around
from headwater.tune.forget.work import forget
from headwater.tune.journals import journal_path

QUICK = ("replay", f"note {NAME}", "forget", "seal here", "end")
"""Those of every test run; all of them with the slow ones."""


@pytest.fixture(scope="module")
def expected(template: Path) -> dict[str, Any]:
    """Of one that was never killed."""
    with pytest.MonkeyPatch.context() as patch, copied(template, patch) as home:
        home.forget(Wish(ids=choose_ids(home)))
        return state_of(home)


@pytest.mark.parametrize(
    "step", [step if step in QUICK else pytest.param(step, marks=pytest.mark.slow) for step in STEPS]
)
def test_killed_at_a_step_and_repeated(step: str, home: Home, expected: dict[str, Any]) -> None:
    ids = choose_ids(home)
    marks = [home.marks(id) for id in ids]
    kill_at(step, home, Wish(ids=ids))
    done = home.forget(Wish(ids=ids))
    assert done.resumed == (step != "record")
    assert state_of(home) == expected
    assert not [trace for mark in marks for trace in home.traces(mark)]


@pytest.mark.slow
def test_killed_again_and_again(home: Home, expected: dict[str, Any]) -> None:
    ids = choose_ids(home)
    for step in STEPS:
        kill_at(step, home, Wish(ids=ids))
    home.forget(Wish(ids=ids))
    assert state_of(home) == expected


@pytest.mark.slow
def test_what_was_interrupted_is_finished_without_naming_it(home: Home, expected: dict[str, Any]) -> None:
    ids = choose_ids(home)
    kill_at("relabel", home, Wish(ids=ids))
    with closing(hw.open(home.data)) as data:
        other = int(np.setdiff1d(data.ids, ids)[0])
    with pytest.raises(WrongUse, match="2 other samples were being forgotten here"):
        look_around(home.scene, Wish(ids=(other,)))
    assert home.forget(Wish()).resumed
    assert state_of(home) == expected


@pytest.mark.slow
def test_a_replay_that_fails_leaves_everything_as_it_was(home: Home) -> None:
    """Such as features that cannot be made any more; the data side may then be forgotten alone."""
    ids, before = choose_ids(home), home.registry.in_force()
    survey = look_around(home.scene, Wish(ids=ids))
    path = journal_path(home.registry, before[NAME])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(JournalRefused):
        forget(home.scene, survey)
    assert home.registry.in_force() == before
    assert len(hw.open(home.data)) == 60
    assert not home.forget(Wish(ids=ids, models=False)).resumed
