"""Near-duplicates in a loader: found, dropped for one that counts for all, or served by what is held."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

import headwater as hw
from datasets import CLASSES, Photo, write_folder
from exports import MEAN, STD
from headwater import transforms as T
from headwater.errors import WrongUse
from headwater.select import Always, Medoids
from headwater.select.samples import Samples
from headwater.select.selection import Selection
from nets import SIZE, plain
from stores import StoreProcess, running_daemon

COUNT, COPIES = 24, 6


def draw(rng: np.random.Generator) -> bytes:
    """A picture with as much structure as a photo has: what is smooth looks like anything else."""
    file = io.BytesIO()
    spots = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
    spots.resize((160, 120), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, and copies of the first few at another size and quality, and a file that is no picture."""
    rng = np.random.default_rng(4)
    root = tmp_path_factory.mktemp("twins")
    photos = [Photo(number % 3, f"{number:03d}", "jpg", draw(rng)) for number in range(COUNT)]
    write_folder(root, photos)
    for photo in photos[:COPIES]:
        original = root / CLASSES[photo.label] / f"{photo.name}.jpg"
        with Image.open(original) as image:
            image.resize((120, 90)).save(original.with_name(f"{photo.name}-again.jpg"), quality=70)
    (root / CLASSES[0] / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    return root


@pytest.fixture(scope="module")
def data(folder: Path) -> hw.Dataset:
    whole = hw.open(folder)
    return whole.filter(where=lambda columns: columns["bytes"] > 100)


def keys_of(data: hw.Dataset, groups: np.ndarray) -> set[frozenset[str]]:
    keys = [data.index.key(int(position)) for position in data.positions()]
    return {
        frozenset(keys[place] for place in np.flatnonzero(groups == number))
        for number in np.unique(groups[groups >= 0])
    }


def expected(data: hw.Dataset) -> set[frozenset[str]]:
    keys = {data.index.key(int(position)) for position in data.positions()}
    copies = {key for key in keys if "-again" in key}
    return {frozenset({key, key.replace("-again", "")}) for key in copies}


def make(data: hw.Dataset, **options: Any) -> hw.DataLoader:
    given: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 1, "num_workers": 0, **options}
    return hw.DataLoader(data, [T.Resize((8, 8))], **given)


def ids_of(batches: Iterator[hw.Batch] | list[hw.Batch] | hw.DataLoader) -> list[int]:
    return [int(id) for batch in batches for id in batch.ids]


def test_copies_are_found_and_what_is_no_picture_is_named(folder: Path, data: hw.Dataset) -> None:
    found = hw.find_duplicates(hw.open(folder))
    assert keys_of(hw.open(folder), found.groups) == expected(data)
    assert (len(found), found.redundant) == (2 * COPIES, COPIES)
    (failed,) = found.failed
    assert hw.open(folder).index.key(failed.position).endswith("broken.jpg")


def test_a_store_finds_the_same_and_sends_little(folder: Path, data: hw.Dataset) -> None:
    with StoreProcess({"photos": folder}) as store:
        remote = hw.open(store.address, progress=False)
        found = hw.find_duplicates(remote)
        assert np.array_equal(found.groups, hw.find_duplicates(hw.open(folder)).groups)
        assert len(found.failed) == 1
        remote.close()


def test_one_of_a_group_is_visited_and_counts_for_all(data: hw.Dataset) -> None:
    duplicates = replace(hw.find_duplicates(data), mode="drop")
    loader = make(data, duplicates=duplicates)
    seen: list[set[int]] = []
    for _ in range(2):
        batches = list(loader)
        weights = {int(i): float(w) for b in batches for i, w in zip(b.ids, b.weights, strict=True)}
        assert len(weights) == len(data) - COPIES
        ratio = max(weights.values()) / min(weights.values())
        assert ratio == pytest.approx(2)
        seen.append(set(weights))
    assert len(seen[0] | seen[1]) == len(data)  # members take turns


@dataclass
class Afar:
    """Selects elsewhere, where nobody knows of near-duplicates: once, for the second epoch."""

    name = "afar"
    state: ClassVar = {"run": "early"}
    everything: list[int] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)

    def attach(self, ranks: Any) -> None:
        pass

    def resume(self, selection: Selection) -> None:
        pass

    def trained(self, seconds: float, *, whole: bool, visited: int, everything: int) -> None:
        self.visited.append(visited)
        self.everything.append(everything)

    def select_epoch(self, samples: Samples) -> Selection | None:
        if samples.epoch != 1:
            return None
        weights = np.linspace(0.5, 1.5, len(samples)).astype(np.float32)
        return Selection("afar", 1, np.arange(len(samples)), weights, "elsewhere")


def test_what_is_selected_elsewhere_has_one_of_a_group_too(data: hw.Dataset) -> None:
    duplicates = replace(hw.find_duplicates(data), mode="drop")
    afar = Afar()
    loader = make(data, select=afar, duplicates=duplicates)
    assert len(ids_of(loader)) == len(data) - COPIES, "before there is a selection, too"
    found = loader.selection
    assert found is not None
    assert (found.epoch, len(found)) == (1, len(data) - COPIES)
    assert found.reason == f"elsewhere; {COPIES} near-duplicates left out"
    assert found.weights.mean() == pytest.approx(1)
    twice = duplicates.groups[found.places] >= 0
    own = np.linspace(0.5, 1.5, len(data))[found.places]
    ratios = found.weights / own
    assert ratios[twice] / ratios[~twice].mean() == pytest.approx(2)
    list(loader)
    list(loader)
    assert afar.visited == 3 * [len(data) - COPIES], "it is told how many were visited for all"
    assert afar.everything == afar.visited, "and that an epoch without a selection visits no more"
    everything = make(data, select=Afar(), cache=1 << 20, duplicates=replace(duplicates, mode="stand_in"))
    assert len(ids_of(everything)) == len(data), "who may stand in is not dropped"


def test_while_the_last_selection_stands_members_take_turns(data: hw.Dataset, tmp_path: Path) -> None:
    """Also in a run that goes on from a state, where what was left out of the selection is known still."""
    duplicates = replace(hw.find_duplicates(data), mode="drop")
    first = make(data, select=Afar(), duplicates=duplicates, signals=tmp_path)
    list(first)  # everything
    chosen = first.selection
    list(first)
    again = first.selection
    assert chosen is not None
    assert again is not None
    assert again.reason == f"as before; there is none that is newer; {COPIES} near-duplicates left out"
    assert len(chosen) == len(again) == len(data) - COPIES
    assert {*chosen.places.tolist(), *again.places.tolist()} == set(range(len(data)))
    own = (np.linspace(0.5, 1.5, len(data)) * np.where(duplicates.groups >= 0, 2, 1))[again.places]
    np.testing.assert_allclose(again.weights, own / own.mean(), rtol=1e-5)
    second = make(data, select=Afar(), duplicates=duplicates, signals=tmp_path)
    second.load_state_dict(first.state_dict())
    for loader in (first, second):
        list(loader)  # the third epoch
    assert first.selection is not None
    assert second.selection is not None
    assert first.selection.places.tolist() == second.selection.places.tolist() == chosen.places.tolist()
    assert first.selection.weights.tolist() == second.selection.weights.tolist() == chosen.weights.tolist()


def test_while_the_last_selection_stands_near_duplicates_follow_the_bottleneck(data: hw.Dataset) -> None:
    loader = make(data, select=Afar(), cache=1 << 20, duplicates=hw.find_duplicates(data))
    list(loader)
    list(loader)
    curator = loader._curator
    assert curator is not None
    sizes = [len(curator.begin(epoch, stalled=stalled)) for epoch, stalled in ((3, 0.9), (4, 0.0), (5, 0.9))]
    assert sizes == [len(data), len(data) - COPIES, len(data)]


@pytest.mark.slow
def test_what_a_store_selects_of_near_duplicates_is_what_is_selected_here(
    folder: Path, tmp_path: Path
) -> None:
    """A loop over a store, and one over the files: the same samples with the same weights, one of a group."""
    steps, model = T.Compose([T.CenterCrop(SIZE), T.Normalize(MEAN, STD)]), plain(classes=3)
    runs = []
    with running_daemon({"twins": folder}, state=tmp_path / "state") as daemon:
        for place in (folder, f"{daemon.serving.address}/twins"):
            with (
                closing(hw.open(place)) as found,
                closing(hw.Beside(Always(Medoids(0.6)), found, steps, precision="fp32")) as beside,
            ):
                duplicates = replace(hw.find_duplicates(found), mode="drop")
                loader = make(found, select=beside, duplicates=duplicates, epochs=40, on_error="skip")
                held = []
                for _ in range(3):
                    list(loader)
                    held.append(loader.selection)
                    beside.feed(model)
                    assert beside.rounds[-1].done.wait(120)
                assert len(duplicates) == 2 * COPIES
                runs.append(held)
    for here, there in zip(*runs, strict=True):
        assert here is not None
        assert there is not None
        np.testing.assert_array_equal(here.places, there.places)
        np.testing.assert_array_equal(here.weights, there.weights)
    last = runs[1][-1]
    assert last is not None
    assert "near-duplicates left out" in last.reason
    assert len(last) < len(runs[1][0]) < len(hw.open(folder)) - COPIES + 1


def test_stand_ins_of_an_epoch_are_not_those_of_a_later_one_without_any(
    data: hw.Dataset, tmp_path: Path
) -> None:
    duplicates = replace(hw.find_duplicates(data), mode="stand_in", patience=1)
    options = {"duplicates": duplicates, "cache": int(data.sizes.sum()) // 2, "signals": tmp_path}
    first = make(data, **options)
    list(first)
    list(first)
    assert first._curator is not None
    assert first.selection is not None
    assert first.signals.has("stand_in")
    first._curator._hold(replace(first.selection, stand_ins=None))
    running = iter(first)
    next(running)
    second = make(data, **options)
    second.load_state_dict(first.state_dict())
    assert ids_of(second) == ids_of(list(running))


def test_what_is_held_stands_in_for_what_is_not(data: hw.Dataset) -> None:
    duplicates = replace(hw.find_duplicates(data), mode="stand_in", patience=2)
    members = data.index.ids[data.positions(np.flatnonzero(duplicates.groups >= 0))]
    some = int(data.sizes.sum()) // 2
    loader = make(data, duplicates=duplicates, cache=some)
    assert sorted(ids_of(loader)) == sorted(data.ids.tolist())
    served: list[list[int]] = [ids_of(loader) for _ in range(6)]
    stood = [len(ids) - len(set(ids)) for ids in served]
    assert all(len(ids) == len(data) for ids in served)
    assert max(stood) > 0
    assert loader.stats().stand_ins == sum(len(set(data.ids.tolist()) - set(ids)) for ids in served)
    missing = [set(data.ids.tolist()) - set(ids) for ids in served]
    assert all(gone <= set(members.tolist()) for gone in missing)
    assert not thrice(missing), "each sample is itself read again after two epochs, as the patience says"
    patient = make(data, duplicates=replace(duplicates, patience=9), cache=some)
    assert thrice([set(data.ids.tolist()) - set(ids_of(patient)) for _ in range(7)])


def thrice(missing: list[set[int]]) -> set[int]:
    """What is missing in three epochs that follow each other."""
    return set().union(*(one & two & three for one, two, three in zip(missing, missing[1:], missing[2:])))  # noqa: B905


def test_stand_ins_stay_when_a_run_goes_on(data: hw.Dataset, tmp_path: Path) -> None:
    duplicates = replace(hw.find_duplicates(data), mode="stand_in")
    options = {"duplicates": duplicates, "cache": int(data.sizes.sum()) // 2, "signals": tmp_path}
    first = make(data, **options)
    list(first)
    running = iter(first)
    next(running)
    assert first.selection is not None
    assert first.selection.stand_ins is not None
    assert (first.selection.stand_ins >= 0).any()
    state = first.state_dict()
    second = make(data, **options)
    second.load_state_dict(state)
    assert ids_of(second) == ids_of(list(running))


def test_what_cannot_be_is_said(data: hw.Dataset) -> None:
    groups = np.full(len(data), -1, np.int32)
    with pytest.raises(WrongUse, match="pass cache="):
        make(data, duplicates=hw.Duplicates(groups, "stand_in"))
    with pytest.raises(WrongUse, match="groups for 3 samples"):
        make(data, duplicates=hw.Duplicates(groups[:3]))
    with pytest.raises(WrongUse, match="mode is 'both'"):
        hw.Duplicates(groups, "both")
    with pytest.raises(WrongUse, match="patience is -1"):
        hw.Duplicates(groups, patience=-1)


def test_auto_follows_the_bottleneck(data: hw.Dataset) -> None:
    duplicates = hw.find_duplicates(data)
    assert duplicates.serves(0.5, cached=True)
    assert not duplicates.serves(0.5, cached=False)
    assert not duplicates.serves(0.01, cached=True)
    assert len(ids_of(make(data, duplicates=duplicates))) == len(data) - COPIES


def test_nothing_alike_changes_nothing(data: hw.Dataset) -> None:
    alone = hw.Duplicates(np.full(len(data), -1, np.int32))
    assert sorted(ids_of(make(data, duplicates=alone))) == sorted(data.ids.tolist())
