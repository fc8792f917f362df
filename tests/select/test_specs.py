"""Selectors as names and parameters: there and back, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.select.infobatch import InfoBatch
from headwater.select.medoids import Medoids
from headwater.select.selecting import SELECTORS, find_selector
from headwater.select.selection import Choice
from headwater.select.specs import describe_selector, make_selector
from headwater.select.uniform import Uniform


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_comes_back_from_its_description(name: str) -> None:
    selector = find_selector(name)
    assert describe_selector(selector) == (name, {})
    assert make_selector(name, {}) == selector


def test_what_is_not_as_by_default_is_told() -> None:
    assert describe_selector(Uniform(0.25)) == ("uniform", {"share": 0.25})
    assert make_selector("uniform", {"share": 0.25}) == Uniform(0.25)
    assert make_selector("uniform", {"share": 1}) == Uniform(1.0)
    assert describe_selector(Medoids(explore=0.0)) == ("medoids", {"explore": 0.0}), "else a store chooses"
    assert make_selector("medoids", {"explore": None}) == Medoids()
    assert make_selector("infobatch", {"ratio": 0.25, "explore": 0.1}) == InfoBatch(0.25, 0.1)


def test_facts_about_a_selector_are_no_parameters() -> None:
    for name in SELECTORS:
        for fact in ("name", "needs"):
            with pytest.raises(WrongUse, match=f"selector '{name}' has no parameter '{fact}'; it has"):
                make_selector(name, {fact: "x"})


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("dance", {}, "there is no selector 'dance'; choose from uniform"),
        ("uniform", {"size": 3}, "selector 'uniform' has no parameter 'size'; it has share"),
        ("uniform", {"share": "0.5"}, "parameter 'share' of selector 'uniform' is '0.5': expected `float`"),
        ("uniform", {"share": True}, "parameter 'share' of selector 'uniform' is True: expected `float`"),
        ("uniform", {"share": None}, "parameter 'share' of selector 'uniform' is None: expected `float`"),
        ("uniform", {"share": float("nan")}, "'share' of selector 'uniform' is nan; give a finite number"),
        ("uniform", {"share": 0.0}, "share is 0.0; it must be above 0"),
        ("buckets", {"patience": 1.5}, "parameter 'patience' of selector 'buckets' is 1.5: expected `int`"),
        ("buckets", {"recall": "all"}, "parameter 'recall' of selector 'buckets' is 'all': invalid"),
    ],
)
def test_what_cannot_be_is_named(name: str, parameters: dict[str, object], said: str) -> None:
    with pytest.raises(WrongUse, match=said):
        make_selector(name, parameters)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Own:
    """A selector that only this process has, under the name of another."""

    name = "uniform"
    needs: tuple[str, ...] = ()
    explore: float = 0.0

    def choose(self, samples: object) -> Choice:
        raise NotImplementedError


def test_a_selector_of_ones_own_cannot_be_described() -> None:
    with pytest.raises(WrongUse, match="selector 'uniform' is one of your own; a store has uniform"):
        describe_selector(Own())


def test_what_is_no_name_or_number_cannot_be_described() -> None:
    with pytest.raises(WrongUse, match="no name or number"):
        describe_selector(Uniform(Fraction(1, 3)))  # type: ignore[arg-type]
    assert describe_selector(Uniform(np.float32(0.25)))[1] == {"share": 0.25}  # type: ignore[arg-type]
    assert type(describe_selector(Uniform(np.float32(0.25)))[1]["share"]) is float  # type: ignore[arg-type]


def test_every_parameter_of_every_selector_can_be_sent() -> None:
    """Else a selector would have a wish that a store never hears."""
    for name in SELECTORS:
        selector = find_selector(name)
        assert is_dataclass(selector)
        own = {field.name for field in fields(selector) if field.init} - {"needs"}
        given = {field: getattr(selector, field) for field in own}
        assert make_selector(name, given) == selector
