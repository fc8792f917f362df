"""Versions of models that saw a sample, whether they have a head with a journal or not."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

import headwater as hw
from forgetting import NAME, Home
from headwater.errors import ModelRefused
from headwater.models.version import PROXY, ModelVersion
from headwater.tune.again import HeadAgain
from headwater.tune.forget.survey import Wish, look_around
from relabelling import small_model


def choose_id(home: Home, place: int = 3) -> int:
    with closing(hw.open(home.data)) as data:
        return int(HeadAgain(data, NAME, registry=home.registry).ids[place])


def data_version(home: Home) -> str:
    with closing(hw.open(home.data)) as data:
        return data.version


def put(
    home: Home, made: dict[str, Any], *, name: str = "slim", seed: int = 0, parent: str | None = None
) -> ModelVersion:
    """Another model in force."""
    return home.registry.put(small_model(seed), name=name, made=made, parent=parent, switch=True)


def test_a_slim_model_in_force_is_named_before_anything_is_changed(home: Home) -> None:
    id = choose_id(home)
    put(home, {"by": "early ticket", "data": data_version(home)})
    with pytest.raises(
        ModelRefused,
        match=r"in force as slim was trained on these samples.* no head that a journal could make again: "
        r"train it again on what is left, and put that in force; or say --no-model",
    ):
        look_around(home.scene, Wish(ids=(id,)))
    assert set(look_around(home.scene, Wish(ids=(id,), models=False)).left) == {NAME, "slim"}


def test_older_slim_models_are_sealed_and_a_rollback_to_them_is_refused(home: Home) -> None:
    id = choose_id(home)
    saw = put(home, {"by": "early ticket", "data": data_version(home)})
    child = put(home, {"by": "early ticket"}, name="child", seed=1, parent=saw.digest)
    put(home, {"by": "push"}, seed=2)
    put(home, {"by": "push"}, name="child", seed=3)
    done = home.forget(Wish(ids=(id,)))
    assert {saw.digest, child.digest} < set(done.task.sealed)
    assert {saw.digest, child.digest} < home.registry.sealed()
    with pytest.raises(ModelRefused, match="is sealed"):
        home.registry.rollback("slim")


def test_of_versions_that_say_nothing_of_their_data_nobody_can_tell(home: Home) -> None:
    id = choose_id(home)
    silent = put(home, {"by": "early ticket"})
    other = put(home, {"by": "early ticket", "data": "f" * 32}, name="other", seed=1)
    layers = put(home, {"by": "quantise", "data": data_version(home)}, name="int8", parent=silent.digest)
    plain = home.registry.current("plain")
    expected = {version.digest: version.name for version in (silent, other, layers, plain)}
    assert look_around(home.scene, Wish(ids=(id,))).task.untold == expected
    assert look_around(home.scene, Wish(ids=(id,), models=False)).task.untold == expected
    done = home.forget(Wish(ids=(id,)))
    assert done.task.untold == expected
    assert not set(expected) & set(done.task.sealed)


def test_who_replaces_a_model_after_the_data_are_forgotten_can_forget_the_rest(home: Home) -> None:
    """The remedy that the error names: --no-model, train on what is left, and forget again."""
    id = choose_id(home)
    old, head = put(home, {"by": "early ticket", "data": data_version(home)}), home.registry.current(NAME)
    home.forget(Wish(ids=(id,), models=False))
    with pytest.raises(ModelRefused, match="in force as slim was trained on these samples"):
        look_around(home.scene, Wish(ids=(id,)))
    new = put(home, {"by": "early ticket", "data": data_version(home)}, seed=1)
    done = home.forget(Wish(ids=(id,)))
    assert set(done.task.sealed) == {old.digest, head.digest}
    assert new.digest not in done.task.untold
    assert home.registry.current("slim") == new
    assert home.registry.current(NAME) != head


def test_proxies_of_other_data_are_left_in_peace(home: Home) -> None:
    """All proxies have one name, whatever they were trained on."""
    id = choose_id(home)
    saw = put(home, {"by": PROXY, "run": "one", "data": data_version(home)}, name="proxy")
    other = put(home, {"by": PROXY, "run": "two", "data": "another dataset's"}, name="proxy", seed=1)
    done = home.forget(Wish(ids=(id,)))
    assert saw.digest in done.task.sealed
    assert other.digest not in done.task.sealed
    assert other.digest not in home.registry.sealed()
