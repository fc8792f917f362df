"""Samples whose data are gone already, and which models are to forget only now."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from forgetting import NAME, STEPS, Home, choose_ids, copied, kill_at, state_of
from headwater.data.forgetting import Audit
from headwater.data.forgotten import forgotten_folder
from headwater.errors import WrongUse
from headwater.tune.again import HeadAgain
from headwater.tune.forget.survey import Wish, look_around
from headwater.tune.journals import journal_path

QUICK = ("replay", "audit", "end")


def exact_head(home: Home, ids: tuple[int, ...]) -> np.ndarray:
    with closing(hw.open(home.data)) as data:
        again = HeadAgain(data, NAME, registry=home.registry)
        return np.asarray(again.without(ids, method="exact").tensors["weight"])


@pytest.mark.parametrize("method", ["replay", pytest.param("exact", marks=pytest.mark.slow)])
def test_a_model_that_was_left_is_trained_again_in_full(home: Home, method: str) -> None:
    ids, old = choose_ids(home), home.registry.current(NAME)
    marks, exact = [home.marks(id) for id in ids], exact_head(home, ids)
    left = home.forget(Wish(ids=ids, models=False))
    assert "forget them again without --no-model" in left.task.left[NAME]
    assert not left.task.sealed
    done = home.forget(Wish(ids=ids, method=method))
    facts = done.task.facts[NAME]
    assert (facts["method"], facts["samples"]) == ("exact", 2)
    assert facts["reason"] == ("" if method == "exact" else "a replay needs 2 samples that are gone already")
    np.testing.assert_array_equal(home.registry.get(NAME).tensors["head/weight"], exact)
    assert home.registry.sealed() == {old.digest}
    assert not journal_path(home.registry, old.digest).exists()
    assert not [trace for mark in marks for trace in home.traces(mark)]


def test_the_audit_notes_both_requests_and_not_a_third(home: Home) -> None:
    ids, old = choose_ids(home), home.registry.current(NAME).digest
    home.forget(Wish(ids=ids, models=False))
    done = home.forget(Wish(ids=ids))
    home.forget(Wish(ids=ids))
    first, second = Audit(forgotten_folder()).lines()
    assert first["hashes"] == second["hashes"]
    assert (first["models"], first["sealed"], first["left"]) == ({}, [], [NAME])
    assert (second["sealed"], second["left"]) == ([old], [])
    assert second["models"] == {NAME: {"from": old, "to": done.task.new[NAME]}}
    assert home.scene.past.when(ids[0]) == first["time"]


@pytest.mark.slow
def test_who_was_left_in_a_model_goes_with_the_next(home: Home) -> None:
    first, second = choose_ids(home)
    exact = exact_head(home, (first, second))
    home.forget(Wish(ids=(first,), models=False))
    done = home.forget(Wish(ids=(second,)))
    assert done.task.facts[NAME]["samples"] == 2
    np.testing.assert_array_equal(home.registry.get(NAME).tensors["head/weight"], exact)


@pytest.mark.slow
def test_a_sample_that_is_only_gone_from_the_folder_is_not_trained_without(home: Home) -> None:
    """Nobody said that it is to be forgotten."""
    first, second = choose_ids(home)
    with closing(hw.open(home.data)) as data:
        (home.data / data.select([first])[0].key).unlink()
    with pytest.raises(WrongUse, match=f"no sample with id {first}"):
        home.forget(Wish(ids=(second,)))
    assert not home.registry.sealed()


@pytest.fixture(scope="module")
def expected(template: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch, copied(template, patch) as home:
        ids = choose_ids(home)
        home.forget(Wish(ids=ids, models=False))
        home.forget(Wish(ids=ids))
        return state_of(home)


@pytest.mark.parametrize(
    "step", [step if step in QUICK else pytest.param(step, marks=pytest.mark.slow) for step in STEPS]
)
def test_killed_at_a_step_of_the_second_request_and_repeated(
    step: str, home: Home, expected: dict[str, Any]
) -> None:
    ids = choose_ids(home)
    home.forget(Wish(ids=ids, models=False))
    kill_at(step, home, Wish(ids=ids))
    home.forget(Wish(ids=ids))
    assert state_of(home) == expected


@pytest.mark.slow
def test_what_stays_is_told_also_when_it_was_interrupted(home: Home) -> None:
    ids = choose_ids(home)
    kill_at("caches", home, Wish(ids=ids, models=False))
    survey = look_around(home.scene, Wish(ids=ids))
    assert survey.resumed
    assert set(survey.left) == {NAME}
    assert "plain" in survey.task.untold.values()
