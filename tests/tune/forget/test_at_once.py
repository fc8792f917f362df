"""Several who forget at once, or train meanwhile: no head that is in force knows a sample without a word."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest

import headwater as hw
from forgetting import NAME, Home, choose_ids
from headwater.errors import DatasetError, StateMismatch
from headwater.tune.again import HeadAgain
from headwater.tune.forget.survey import Wish, look_around
from headwater.tune.forget.work import forget
from headwater.tune.recipe import Recipe
from headwater.tune.tuner import Tuner
from relabelling import small_model


class Paused:
    """Forgets in a thread, and waits before a step until it may go on."""

    def __init__(self, home: Home, wish: Wish, *, before: str) -> None:
        self._before, self.there, self.go_on = before, threading.Event(), threading.Event()
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, args=(home, wish))

    def _run(self, home: Home, wish: Wish) -> None:
        try:
            home.forget(wish, watch=self._watch)
        except Exception as error:
            self.errors.append(error)
        self.there.set()

    def _watch(self, step: str) -> None:
        if step == self._before:
            self.there.set()
            assert self.go_on.wait(60)

    def end(self) -> None:
        self.go_on.set()
        self._thread.join()

    def begin(self) -> None:
        self._thread.start()
        assert self.there.wait(60)


@contextmanager
def paused(home: Home, wish: Wish, *, before: str) -> Iterator[Paused]:
    other = Paused(home, wish, before=before)
    other.begin()
    try:
        yield other
    finally:
        other.end()
    assert not other.errors


def journal_ids(home: Home) -> np.ndarray:
    with closing(hw.open(home.data)) as data:
        return HeadAgain(data, NAME, registry=home.registry).ids


@pytest.mark.parametrize("before", ["replay", "bring", "seal here"])
def test_a_second_one_is_refused_and_told_who_is_at_it(before: str, home: Home) -> None:
    first, second = choose_ids(home)
    with paused(home, Wish(ids=(first,)), before=before):
        in_force, scene = home.registry.in_force(), replace(home.scene, patience_seconds=0.0)
        refused = pytest.raises(
            DatasetError,
            match=rf"process {os.getpid()}, at {home.data} since .* is forgetting samples .* nothing was "
            "changed: wait until that has ended, or end it, and say the same again",
        )
        with refused, scene.alone():
            forget(scene, look_around(scene, Wish(ids=(second,))))
        assert home.registry.in_force() == in_force
    home.forget(Wish(ids=(second,)))
    assert not np.isin([first, second], journal_ids(home)).any()
    assert len(home.registry.sealed()) == 2


def test_a_second_one_waits_for_the_first(home: Home) -> None:
    ids, told = choose_ids(home), []
    with paused(home, Wish(ids=ids[:1]), before="bring") as other:

        def tell(text: str) -> None:
            told.append(text)
            other.go_on.set()

        with replace(home.scene, patience_seconds=60.0).alone(tell=tell):
            survey = look_around(home.scene, Wish(ids=ids[1:]))
    assert told == [told[0]]
    assert "is forgetting samples" in told[0]
    assert survey.task.old == {NAME: home.registry.current(NAME).digest}, "what came of the first one"
    forget(home.scene, survey)
    assert not np.isin(ids, journal_ids(home)).any()


def test_who_has_another_folder_of_forgotten_samples_is_kept_out_of_the_registry(home: Home) -> None:
    """Such as another user: what would go wrong is in the registry."""
    ids = choose_ids(home)
    with paused(home, Wish(ids=ids[:1]), before="bring"):
        scene = replace(home.scene, folder=home.folder / "another's", patience_seconds=0.0)
        with pytest.raises(DatasetError, match=r"is forgetting samples with .*models"), scene.alone():
            pass


def test_what_was_looked_at_before_others_forgot_is_looked_at_again(home: Home) -> None:
    first, second = choose_ids(home)
    survey = look_around(home.scene, Wish(ids=(second,)))
    home.forget(Wish(ids=(first,)))
    with pytest.raises(StateMismatch, match=r"other samples have been forgotten, .* look again"):
        forget(home.scene, survey)
    home.forget(Wish(ids=(second,)))
    assert not np.isin([first, second], journal_ids(home)).any()


def test_versions_that_came_meanwhile_are_sealed_or_told_of(home: Home) -> None:
    """A training run that had opened the data before, and ended while they were being forgotten."""
    ids, found = choose_ids(home), {}
    with closing(hw.open(home.data)) as data:
        made = {"by": "my training", "data": data.version}

    def watch(step: str) -> None:
        if step == "seal":
            for seed, name in enumerate(("late", "late", "other")):
                current = home.registry.put(
                    small_model(seed),
                    name=name,
                    made=made if name == "late" else {**made, "data": "f" * 32},
                    switch=True,
                )
                found.setdefault(name, []).append(current.digest)

    done = home.forget(Wish(ids=ids), watch=watch)
    assert found["late"][0] in home.registry.sealed()
    assert not {found["late"][1], *found["other"]} & home.registry.sealed()
    assert list(done.task.left) == ["late"]
    assert "train it again on what is left" in done.task.left["late"]


def test_a_fine_tuning_that_ends_before_the_switch_stays_in_force_and_is_told_of(home: Home) -> None:
    ids = choose_ids(home)

    def watch(step: str) -> None:
        if step == "bring":
            with closing(hw.open(home.data)) as data:
                recipe = Recipe(epochs=2, runs=2, seed=3)
                Tuner(data, "plain", registry=home.registry, recipe=recipe).fit(NAME, journal=True)

    done = home.forget(Wish(ids=ids), watch=watch)
    assert "came into force meanwhile: forget them again" in done.task.left[NAME]
    assert home.registry.current(NAME).digest != done.task.new[NAME]
    again = home.forget(Wish(ids=ids))
    assert not again.task.left
    assert not np.isin(ids, journal_ids(home)).any()
