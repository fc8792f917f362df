"""Samples that are forgotten: not in the index, not in its cache, and not back when something is lost."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from datasets import Photo, write_folder
from headwater.data.forgetting import Audit, Plans
from headwater.data.forgotten import Forgotten
from headwater.data.index import sample_ids
from headwater.data.indexcache import drop_indexes
from headwater.data.sources import Source, SourceOptions, open_source
from headwater.data.sources.tar import TarLayout
from headwater.errors import DatasetError, WrongUse
from killing import choose, find_points, kill_at


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def open_without(data: Path, folder: Path, name: str = "photos") -> Source:
    return open_source(data, options=SourceOptions(forgotten=Forgotten(folder, name)))


@pytest.fixture(params=["photo_folder", "photo_tars", "photo_parquet"])
def data(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


def test_every_layout_leaves_them_out_and_reads_the_others(data: Path, cache: Path, tmp_path: Path) -> None:
    whole = open_without(data, tmp_path / "list")
    gone = whole.index.ids[[4, 17]]
    assert Forgotten(tmp_path / "list", "photos").add(gone.tolist()) == 2
    for _ in range(2):  # made, and from the cache
        left = open_without(data, tmp_path / "list")
        assert left.index.version != whole.index.version
        assert sorted(left.index.ids) == sorted(np.setdiff1d(whole.index.ids, gone))
        at = whole.index.position_of(left.index.ids)
        read = zip(left.read(np.arange(len(at))), whole.read(at), strict=True)
        assert all(bytes(mine) == bytes(theirs) for mine, theirs in read)
    other = open_without(data, tmp_path / "list", "others")
    assert other.index.version == whole.index.version, "a list is of one dataset"


def test_nothing_that_is_cached_knows_of_them(photo_folder: Path, cache: Path, tmp_path: Path) -> None:
    whole = open_without(photo_folder, tmp_path / "list").index
    id, key = int(whole.ids[4]), whole.key(4).encode()
    Forgotten(tmp_path / "list", "photos").add([id])
    open_without(photo_folder, tmp_path / "list")
    assert drop_indexes(np.array([id]), cache) == 1
    content = [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
    assert len(content) == 1, "that of the others is kept"
    assert key not in content[0]
    assert id.to_bytes(8, "little") not in content[0]
    assert key not in b"".join(path.read_bytes() for path in (tmp_path / "list").rglob("*") if path.is_file())


def test_the_index_from_before_is_used_and_no_file_is_looked_at_again(
    photo_tars: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_without(photo_tars, tmp_path / "list").index
    Forgotten(tmp_path / "list", "photos").add([int(whole.ids[0])])
    monkeypatch.setattr(TarLayout, "scan", lambda layout, units: pytest.fail("a shard was scanned again"))
    assert len(open_without(photo_tars, tmp_path / "list").index) == len(whole) - 1


def test_a_new_version_is_that_of_the_data_without_the_files(
    photos: list[Photo], cache: Path, tmp_path: Path
) -> None:
    """Also where a class goes with its last sample."""
    data = write_folder(tmp_path / "data", photos)
    classes = sorted(path.name for path in data.iterdir())
    shutil.copytree(data, tmp_path / "copy")
    keys = [str(path.relative_to(data)) for path in (data / classes[0]).iterdir()]
    Forgotten(tmp_path / "list", "photos").add(sample_ids(keys).tolist())
    shutil.rmtree(tmp_path / "copy" / classes[0])
    forgot, deleted = open_without(data, tmp_path / "list").index, hw.open(tmp_path / "copy").index
    assert forgot.classes == deleted.classes == tuple(classes[1:])
    assert forgot.version == deleted.version


def test_a_list_is_keyed_hashes_and_the_key_is_the_owners(tmp_path: Path) -> None:
    forgotten = Forgotten(tmp_path, "photos")
    assert not forgotten
    assert forgotten.digest == forgotten.mark == ""
    assert forgotten.add([7, 8]) == 2
    assert forgotten.add([8, 9]) == 1
    key = (tmp_path / "key").read_bytes()
    assert (len(key), (tmp_path / "key").stat().st_mode & 0o777) == (32, 0o600)
    assert forgotten.hash(7) == hmac.digest(key, b"photos\n7", hashlib.sha256).hex()
    again = Forgotten(tmp_path, "photos")
    assert again.among(np.array([6, 7, 8, 9])).tolist() == [False, True, True, True]
    assert (again.digest, again.mark, len(again)) == (forgotten.digest, forgotten.mark, 3)
    assert Forgotten(tmp_path, "others").hash(7) != again.hash(7), "datasets cannot be compared"


@pytest.mark.parametrize("lost", ["key", "key cut short", "list"])
def test_what_is_lost_is_an_error_and_not_an_empty_list(
    lost: str, photo_folder: Path, tmp_path: Path
) -> None:
    Forgotten(tmp_path, "photos").add([7])
    (path,) = (tmp_path / "lists").iterdir()
    if lost == "key":
        (tmp_path / "key").unlink()
    elif lost == "list":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(DatasetError, match="bring it back from a backup, because without it"):
        open_without(photo_folder, tmp_path)


def test_killed_at_any_point_a_list_has_the_old_ones_or_the_new_ones(tmp_path: Path) -> None:
    Forgotten(tmp_path / "whole", "photos").add([7])
    shutil.copytree(tmp_path / "whole", tmp_path / "probe")
    points = find_points(lambda: Forgotten(tmp_path / "probe", "photos").add([8]))
    for point in choose(points, 10):
        folder = tmp_path / f"killed-{point}"
        shutil.copytree(tmp_path / "whole", folder)
        kill_at(point, lambda folder=folder: Forgotten(folder, "photos").add([8]))
        found = Forgotten(folder, "photos")
        assert found.among(np.array([7])).all()
        found.add([8])
        assert found.hash(7) == Forgotten(tmp_path / "whole", "photos").hash(7), "the key stays the same"
        assert Forgotten(folder, "photos").among(np.array([7, 8])).all()


def test_killed_at_any_point_there_is_one_key(tmp_path: Path) -> None:
    points = find_points(lambda: Forgotten(tmp_path / "probe", "photos").add([8]))
    for point in choose(points, 10):
        folder = tmp_path / f"killed-{point}"
        kill_at(point, lambda folder=folder: Forgotten(folder, "photos").add([8]))
        Forgotten(folder, "photos").add([8])
        assert Forgotten(folder, "photos").among(np.array([8, 9])).tolist() == [True, False]


def test_the_audit_has_each_sample_once_also_after_a_torn_line(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    assert not list(audit.lines())
    assert audit.note(["a", "b"], {"dataset": "photos"})
    assert not audit.note(["b"], {"dataset": "photos"})
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"time": "half of a li')
    assert audit.note(["c"], {"dataset": "photos"})
    assert [line["hashes"] for line in audit.lines()] == [["a", "b"], ["c"]]


def test_the_audit_has_a_second_line_for_what_a_second_request_seals(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    assert audit.note(["a"], {"sealed": []})
    assert audit.note(["b"], {"sealed": ["v"]})
    assert audit.note(["a"], {"sealed": ["v"]}), "that of another sample does not count"
    assert not audit.note(["a"], {"sealed": ["v"]})
    assert not audit.note(["a"], {"sealed": []})
    assert [line["sealed"] for line in audit.lines()] == [[], ["v"], ["v"]]


def test_plans_are_there_until_they_are_dropped(tmp_path: Path) -> None:
    plans = Plans(tmp_path)
    assert plans.load("a", list[int]) is None
    plans.keep("a", [1, 2])
    assert plans.load("a", list[int]) == [1, 2]
    assert plans.load("b", list[int]) is None
    plans.drop("a")
    plans.drop("a")
    assert plans.load("a", list[int]) is None
    assert not list((tmp_path / "plans").iterdir())
    (tmp_path / "plans" / hashlib.blake2b(b"a", digest_size=16).hexdigest()).write_bytes(b"[1,")
    with pytest.raises(DatasetError, match=r"cannot be read: .*; delete it, and forget again"):
        plans.load("a", list[int])


def test_files_are_deleted_from_a_folder_only(
    photos: list[Photo], photo_tars: Path, photo_parquet: Path, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "data", photos)
    with closing(open_source(folder)) as source:
        key = source.index.key(3)
        assert source.delete([key]) == 1
        assert not (folder / key).exists()
        assert source.delete([key]) == 0, "again"
    for place, what in ((photo_tars, "a member of a tar"), (photo_parquet, "a row of a Parquet file")):
        with closing(open_source(place)) as source:
            for refused in (source.check_deletable, source.delete):
                with pytest.raises(WrongUse, match=f"{what}.* write the file anew"):
                    refused([])


def test_files_that_may_not_be_deleted_are_told_before(
    photos: list[Photo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "data", photos)
    with closing(open_source(folder)) as source:
        key = source.index.key(3)
        source.check_deletable([key, "gone/long-ago.jpg"])
        monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str((folder / key).parent))
        with pytest.raises(DatasetError, match=r"may not be written to; .* or forget without deleting files"):
            source.check_deletable([key])
    assert (folder / key).exists()
