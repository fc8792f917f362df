"""What was forgotten before is known however the places are spelled, in whatever order, and with whom."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from forgetting import NAME, Home, choose_ids, kill_at
from headwater.data.forgetting import Audit
from headwater.errors import ModelRefused, WrongUse
from headwater.models.registry import Registry
from headwater.tune.forget.past import Past
from headwater.tune.forget.places import AtStore, Here
from headwater.tune.forget.survey import Scene, Wish, look_around
from headwater.tune.forget.work import forget
from headwater.tune.relabel import Access
from relabelling import small_model


def put_slim(home: Home) -> None:
    """In force, without a journal: what it saw is known by the version of its data only."""
    with closing(hw.open(home.data)) as data:
        made = {"by": "early ticket", "data": data.version}
    home.registry.put(small_model(), name="slim", made=made, switch=True)


def copies(home: Home, *names: str) -> Scene:
    """The data, in places that have copies of it; the first is where they are read."""
    for name in names:
        if not (home.folder / name).exists():
            shutil.copytree(home.data, home.folder / name)
    places = tuple(Here(str(home.folder / name), home.registry, NAME) for name in names)
    return Scene(places, home.registry, lambda: hw.open(home.folder / names[0]))


@pytest.mark.parametrize("then", [("b", "a"), ("a",), ("b", "c")])
def test_models_that_saw_it_are_known_in_another_order_and_in_places_in_common(
    then: tuple[str, ...], home: Home
) -> None:
    put_slim(home)
    first, second = choose_ids(home)
    scene = copies(home, "a", "b")
    forget(scene, look_around(scene, Wish(ids=(first,), models=False)))
    if "c" in then:
        shutil.copytree(home.folder / "b", home.folder / "c")
    with pytest.raises(ModelRefused, match="in force as slim was trained on these samples"):
        look_around(copies(home, *then), Wish(ids=(second,)))
    with pytest.raises(ModelRefused, match="in force as slim was trained on these samples"):
        look_around(copies(home, *then[:1]), Wish(ids=(first,)))


@pytest.mark.parametrize("spelling", ["link", "file://", "slash"])
def test_local_data_are_one_place_by_any_name(spelling: str, home: Home) -> None:
    put_slim(home)
    first, second = choose_ids(home)
    home.forget(Wish(ids=(first,), models=False))
    os.symlink(home.data, home.folder / "link")
    name = {"link": str(home.folder / "link"), "file://": f"file://{home.data}", "slash": f"{home.data}/"}
    here = Here(name[spelling], home.registry, NAME)
    scene = replace(home.scene, places=(here,), open_data=lambda: hw.open(name[spelling]))
    for id in (first, second):
        with pytest.raises(ModelRefused, match="in force as slim was trained on these samples"):
            look_around(scene, Wish(ids=(id,)))
    assert look_around(scene, Wish(ids=(first,), models=False)).task.places == (str(home.data),)


def test_what_was_interrupted_is_found_by_another_name_and_bars_places_in_common(home: Home) -> None:
    ids = choose_ids(home)
    kill_at("bring", home, Wish(ids=ids))
    os.symlink(home.data, home.folder / "link")
    here = Here(str(home.folder / "link"), home.registry, NAME)
    scene = replace(home.scene, places=(here,))
    assert look_around(scene, Wish(ids=ids)).resumed
    both = replace(scene, places=(here, copies(home, "a").places[0]))
    with pytest.raises(WrongUse, match=rf"at {home.data} .* with `headwater forget {home.data} --resume`"):
        look_around(both, Wish(ids=ids))


def test_a_place_that_is_named_twice_is_refused(home: Home) -> None:
    os.symlink(home.data, home.folder / "link")
    places = tuple(Here(str(home.folder / name), home.registry, NAME) for name in ("colours", "link"))
    with pytest.raises(WrongUse, match="are not 2 places; name each place once"):
        look_around(replace(home.scene, places=places), Wish(ids=choose_ids(home)))


def test_a_store_is_one_place_by_any_name(tmp_path: Path) -> None:
    names = ("grpc://Store-A:7077/photos", "grpc://store-a/photos", "grpc://store-a:7077/photos/")
    registry = Registry(tmp_path)
    assert {AtStore(name, registry, Access()).identity for name in names} == {"grpc://store-a:7077/photos"}


def note(folder: Path, places: list[str], ids: list[int], before: str, after: str) -> None:
    hashes = Past(folder, places).hashes(ids)
    Audit(folder).note(hashes, {"places": places, "before": [before], "versions": [after]})


def test_the_past_is_that_of_places_in_common(tmp_path: Path) -> None:
    note(tmp_path, ["a", "b"], [1], "v0", "v1")
    note(tmp_path, ["b", "a"], [2], "v1", "v2")
    note(tmp_path, ["c"], [3], "w0", "w1")
    past, ids = Past(tmp_path, ["b"]), np.array([1, 2, 3, 4])
    assert past.know(ids).tolist() == [True, True, False, False]
    assert past.when(2) is not None
    assert past.when(3) is None
    assert past.divide(ids[:1], {"v2"}, gone=True) == ({"v0"}, {"v1", "v2"})
    assert past.divide(ids[:2], {"v2"}, gone=True) == ({"v0", "v1"}, {"v2"})
    assert past.divide(ids[3:], {"v2"}, gone=False) == ({"v0", "v1", "v2"}, set())
    assert Past(tmp_path, ["d"]).divide(ids[:1], {"v2"}, gone=False) == ({"v2"}, set())
