"""Near-duplicates found beside the data: a store answers with groups, shards with hashes, none with files."""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import headwater as hw
from datasets import CLASSES, Photo, write_folder
from headwater.engine.inference import Extraction
from headwater.errors import ModelError, Refused, WrongUse
from headwater.models.registry import Registry
from headwater.store.duplicates import groups_at
from headwater.store.selecting import selects_at
from headwater.store.server.daemon import Daemon
from headwater.store.server.workers import Workers
from headwater.store.wire.jobmessages import SelectionWish
from relabelling import small_model
from stores import running_daemon, write_tokens

COUNT, COPIES = 18, 5


def draw(rng: np.random.Generator) -> Image.Image:
    spots = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
    return spots.resize((160, 120), Image.Resampling.BICUBIC)


def write(root: Path, seed: int) -> Path:
    """Photos, smaller copies of the first few, and a file that is no picture."""
    rng = np.random.default_rng(seed)
    photos = []
    for number in range(COUNT):
        image, file = draw(rng), io.BytesIO()
        image.save(file, "JPEG", quality=90)
        photos.append(Photo(number % 3, f"{seed}-{number:03d}", "jpg", file.getvalue()))
        if number < COPIES:
            again = io.BytesIO()
            image.resize((120, 90)).save(again, "JPEG", quality=75)
            photos.append(Photo(number % 3, f"{seed}-{number:03d}-again", "jpg", again.getvalue()))
    write_folder(root, photos)
    (root / CLASSES[0] / f"{seed}-broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("photos"), 1)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    names = (*CLASSES, *(f"class {number}" for number in range(7)))[:7]
    model = replace(small_model(), classes=names)
    Registry(tmp_path / "state" / "models").put(model, name="small", switch=True)
    return tmp_path / "state"


@pytest.fixture
def store(photos: Path, state: Path) -> Iterator[Daemon]:
    with running_daemon({"photos": photos}, state=state) as daemon:
        yield daemon


def find(daemon: Daemon, **options: Any) -> hw.Duplicates:
    token = options.pop("token", None)
    with closing(hw.open(f"{daemon.serving.address}/photos", token=token)) as data:
        return hw.find_duplicates(data, **options)


def sent(daemon: Daemon) -> dict[str, float]:
    found: dict[str, float] = daemon._ledger.snapshot()["headwater_bytes_sent_total"]  # type: ignore[assignment]
    return {kind: count for kind, count in found.items() if count and kind != "index"}


def test_groups_come_and_neither_files_nor_thumbnails(store: Daemon, photos: Path) -> None:
    here = hw.find_duplicates(hw.open(photos))
    found = find(store)
    np.testing.assert_array_equal(found.groups, here.groups)
    assert len(found) == 2 * COPIES
    assert [one.id for one in found.failed] == [one.id for one in here.failed]
    assert [one.position for one in found.failed] == [one.position for one in here.failed]
    assert sent(store) == {"selection": 12 * 2 * COPIES}


def test_the_second_time_only_what_failed_is_decoded(store: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find(store)
    decoded: list[int] = []
    run = Workers.run

    def count(self: Workers, work: Any, files: Any) -> Any:
        decoded.extend(work.ids.tolist())
        return run(self, work, files)

    monkeypatch.setattr(Workers, "run", count)
    np.testing.assert_array_equal(find(store).groups, first.groups)
    assert decoded == [one.id for one in first.failed]


def test_a_selection_has_left_what_duplicates_are_found_by(
    store: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scoring and hashing share a decode: only the file that is no picture is tried once more."""
    with closing(hw.open(f"{store.serving.address}/photos")) as data:
        broken = [int(data.ids[at]) for at in range(len(data)) if "broken" in data.index.key(at)]
        selects_at(data.store).run("small", SelectionWish("uniform", {"share": 0.5}))
    decoded: list[int] = []
    run = Workers.run

    def count(self: Workers, work: Any, files: Any) -> Any:
        decoded.extend(work.ids.tolist())
        return run(self, work, files)

    monkeypatch.setattr(Workers, "run", count)
    assert len(find(store)) == 2 * COPIES
    assert decoded == broken


def test_a_part_of_what_is_served_has_its_members_only(store: Daemon, photos: Path) -> None:
    local = hw.open(photos)
    whole = hw.find_duplicates(local)
    lonely = [place for place in range(len(local)) if "000-again" not in local.index.key(place)]
    with closing(hw.open(f"{store.serving.address}/photos")) as data:
        found = hw.find_duplicates(data.select(data.ids[lonely]))
    assert len(found.groups) == len(lonely)
    assert len(found) == 2 * (COPIES - 1)
    pairs = {(a, b) for a in range(len(lonely)) for b in range(a) if found.groups[a] == found.groups[b] >= 0}
    assert all(whole.groups[lonely[a]] == whole.groups[lonely[b]] for a, b in pairs)
    firsts = [int(np.flatnonzero(found.groups == number)[0]) for number in range(COPIES - 1)]
    assert firsts == sorted(firsts), "groups are numbered by their first member"


def test_by_features_that_the_store_keeps(store: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time they are there, and only the file without any is tried again."""
    first = find(store, by="features", model="small", least=0.999)
    asked: list[int] = []
    run = Extraction.run

    def count(self: Extraction, positions: Any, ids: Any, **more: Any) -> Any:
        asked.extend(ids.tolist())
        return run(self, positions, ids, **more)

    monkeypatch.setattr(Extraction, "run", count)
    second = find(store, by="features", model="small", least=0.999)
    np.testing.assert_array_equal(second.groups, first.groups)
    assert asked == [one.id for one in first.failed]
    assert set(sent(store)) <= {"selection"}


def test_by_features_at_a_store_and_here(
    store: Daemon, photos: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_MODELS", str(state / "models"))
    found = find(store, by="features", model="small", least=0.9)
    here = hw.find_duplicates(hw.open(photos), by="features", model="small", least=0.9)
    np.testing.assert_array_equal(found.groups, here.groups)
    assert len(found), "pictures of noise have much in common to untrained layers"


def divide(photos: Path, folder: Path) -> list[Path]:
    """The same files in two folders: a picture and its copy come to lie in different ones."""
    roots = [folder / "even", folder / "odd"]
    for number, path in enumerate(sorted(photos.glob("*/*"))):
        for root in roots:  # both know all classes
            (root / path.parent.name).mkdir(parents=True, exist_ok=True)
        (roots[number % 2] / path.parent.name / path.name).write_bytes(path.read_bytes())
    return roots


def sets(data: hw.Dataset, found: hw.Duplicates) -> set[frozenset[str]]:
    """The groups, by keys."""
    members = [np.flatnonzero(found.groups == number) for number in range(found.groups.max(initial=-1) + 1)]
    return {frozenset(data.index.key(int(place)) for place in places) for places in members}


def test_shards_have_the_groups_of_the_whole(
    photos: Path, state: Path, tmp_path: Path, store: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pictures and of features: as of one store, and as of files."""
    monkeypatch.setenv("HEADWATER_MODELS", str(state / "models"))
    monkeypatch.setattr("headwater.store.wire.selectionpages.SELECTION_BYTES", 96 * 5)  # several pages
    features: dict[str, Any] = {"by": "features", "model": "small", "least": 0.9}
    local, shards = hw.open(photos), divide(photos, tmp_path)
    for number in range(2):
        shutil.copytree(state / "models", tmp_path / f"state {number}" / "models")
    with ExitStack() as stack:
        run = [
            stack.enter_context(running_daemon({"photos": root}, state=tmp_path / f"state {number}"))
            for number, root in enumerate(shards)
        ]
        fleet = stack.enter_context(closing(hw.open([f"{one.serving.address}/photos" for one in run])))
        one = stack.enter_context(closing(hw.open(f"{store.serving.address}/photos")))
        for options in ({}, features):
            here, across = hw.find_duplicates(local, **options), hw.find_duplicates(fleet, **options)
            whole = sets(local, here)
            assert sets(fleet, across) == sets(one, hw.find_duplicates(one, **options)) == whole
            assert len(whole) >= 3
            assert sorted(lost.id for lost in across.failed) == sorted(lost.id for lost in here.failed)
            firsts = [int(np.flatnonzero(across.groups == number)[0]) for number in range(len(whole))]
            assert firsts == sorted(firsts), "groups are numbered by their first member"
        moved = groups_at(fleet.store, model="", bound=18).bytes_moved
        assert (len(fleet) - 1) * 108 < moved < len(fleet) * 108 + 20_000, "hashes, and no pictures"
        assert set(sent(run[0])) == {"selection"}


def test_shards_with_different_models_of_a_name(photos: Path, tmp_path: Path) -> None:
    names = (*CLASSES, *(f"class {number}" for number in range(7)))[:7]
    with ExitStack() as stack:
        addresses = []
        for number, root in enumerate(divide(photos, tmp_path)):
            folder = tmp_path / f"state {number}"
            model = replace(small_model(number), classes=names)
            Registry(folder / "models").put(model, name="small", switch=True)
            daemon = stack.enter_context(running_daemon({"photos": root}, state=folder))
            addresses.append(f"{daemon.serving.address}/photos")
        data = stack.enter_context(closing(hw.open(addresses)))
        with pytest.raises(ModelError, match="different models 'small'"):
            hw.find_duplicates(data, by="features", model="small")


def test_a_store_without_jobs_sends_thumbnails_and_a_line_says_so(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_daemon({"photos": photos}) as daemon:
        with caplog.at_level(logging.WARNING, logger="headwater"):
            found = find(daemon)
        assert "looked for here" in caplog.text
        assert "--state" in caplog.text
        np.testing.assert_array_equal(found.groups, hw.find_duplicates(hw.open(photos)).groups)
        assert "selection" not in sent(daemon)
        with pytest.raises(WrongUse, match="--state"):
            find(daemon, by="features", model="small")


def test_a_token_without_the_scope_of_jobs_has_them_looked_for_here(
    photos: Path, state: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = f"reader-{'x' * 24}"
    tokens = write_tokens(tmp_path, reader={"secret": secret, "scopes": ["read"]})
    with running_daemon({"photos": photos}, state=state, token_file=tokens) as daemon:
        assert len(find(daemon, token=secret)) == 2 * COPIES
        assert "lacks scope 'jobs'" in caplog.text
        with pytest.raises(Refused, match="lacks scope 'jobs'"):
            find(daemon, by="features", model="small", token=secret)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "sound"}, "choose from pictures, features"),
        ({"by": "features"}, "model=NAME"),
        ({"model": "small"}, 'by="features"'),
        ({"most": 200}, "200 bits"),
        ({"by": "features", "model": "small", "least": 0.0}, "least cosine is 0.0"),
    ],
)
def test_what_cannot_be_asked_for(photos: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongUse, match=said):
        hw.find_duplicates(hw.open(photos), **options)
