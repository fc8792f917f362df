"""What the system does not allow is said with the file and the remedy, and a request can be taken back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forgetting import NAME, STEPS, Home, choose_ids, kill_at
from fulldisk import files_no_larger_than
from headwater.data.forgotten import forgotten_folder
from headwater.errors import DatasetError, HeadwaterError
from headwater.tune.forget.survey import Wish, look_around

KEY = "red/0007.png"
QUICK = ("record", f"keep {NAME}", "bring", "forget", "caches")


def plans() -> list[Path]:
    folder = forgotten_folder() / "plans"
    return list(folder.iterdir()) if folder.exists() else []


def read_only(at: str) -> Callable[[str], None]:
    """What a step finds whose first file may not be written."""

    def watch(step: str) -> None:
        if step == at:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/some/file")

    return watch


@pytest.mark.parametrize(
    "step",
    [step if step in QUICK else pytest.param(step, marks=pytest.mark.slow) for step in STEPS],
)
def test_every_step_says_what_may_not_be_written_and_can_be_repeated(step: str, home: Home) -> None:
    ids = choose_ids(home)
    marks = [home.marks(id) for id in ids]
    with pytest.raises(DatasetError, match=r"^/some/file: Read-only file system; .*writ"):
        home.forget(Wish(ids=ids), watch=read_only(step))
    dropped = step in ("record", f"keep {NAME}", f"note {NAME}")
    assert bool(plans()) != dropped
    assert home.forget(Wish(ids=ids)).resumed != dropped
    assert not plans()
    assert not [trace for mark in marks for trace in home.traces(mark)]
    assert NAME in home.registry.in_force()
    assert len(home.registry.sealed()) == 1


def test_a_registry_that_cannot_be_written_leaves_no_request_behind(home: Home) -> None:
    """Others can be made, and the same without models."""
    first, second = choose_ids(home)
    before = home.registry.in_force()
    with files_no_larger_than(6000), pytest.raises(HeadwaterError):
        home.forget(Wish(ids=(first,)))
    assert not plans()
    assert home.registry.in_force() == before
    assert not home.forget(Wish(ids=(first,), models=False)).resumed
    home.forget(Wish(ids=(second,)))


def test_without_models_the_registry_need_not_be_written(home: Home) -> None:
    """A folder where the lock should be can be opened by nobody, whoever he is."""
    ids = choose_ids(home)
    (home.registry.folder / "forgetting.lock").mkdir()
    with pytest.raises(DatasetError, match=r"cannot be locked, so nothing is forgotten: .* --no-model"):
        home.forget(Wish(ids=ids))
    assert not plans()
    assert home.forget(Wish(ids=ids, models=False)).task.left


@pytest.mark.parametrize("killed", ["replay", "bring", pytest.param("relabel", marks=pytest.mark.slow)])
def test_models_can_be_left_out_until_the_samples_go(killed: str, home: Home) -> None:
    ids, old = choose_ids(home), home.registry.in_force()
    kill_at(killed, home, Wish(ids=ids))
    done = home.forget(Wish(ids=ids, models=False))
    assert done.resumed == (killed == "relabel")
    assert (home.registry.in_force() == old) == (killed != "relabel")
    assert not plans()


def test_files_that_may_not_be_deleted_are_told_before_anything_is_changed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = home.data / "red"
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(red))
    wish = Wish(paths=(KEY,), delete_files=True)
    with pytest.raises(DatasetError, match=f"cannot delete files in {red}: it may not be written to"):
        look_around(home.scene, wish)
    assert not plans()


def test_a_file_that_cannot_be_deleted_keeps_nothing_else(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files go last, and a repeat without the option takes them out of the request."""
    path, unlink = home.data / KEY, os.unlink
    (id,) = Wish(paths=(KEY,)).named.tolist()
    marks = home.marks(id)

    def refuse(wanted: str | Path) -> None:
        if str(wanted) == str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(wanted))
        unlink(wanted)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(DatasetError, match=f"cannot delete {path}: Read-only .* without deleting files"):
            home.forget(Wish(paths=(KEY,), delete_files=True))
        assert {trace.path.parent.name for trace in home.traces(marks)} == {"plans"}
        done = home.forget(Wish(paths=(KEY,)))
    assert done.resumed
    assert path.exists()
    assert not plans()
    assert not home.traces(marks)


def test_files_are_deleted_as_was_said_last(home: Home) -> None:
    ids = np.array(choose_ids(home))
    kill_at("caches", home, Wish(ids=tuple(ids.tolist())))
    count = len(list(home.data.rglob("*.png")))
    done = home.forget(Wish(ids=tuple(ids.tolist()), delete_files=True))
    assert next(iter(done.found.values())).found["files"] == 2
    assert len(list(home.data.rglob("*.png"))) == count - 2


def test_a_cache_that_cannot_be_written_is_named_with_another_way(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.folder / "file").write_text("")
    ids, cache = choose_ids(home), home.folder / "cache"
    monkeypatch.setenv("HEADWATER_CACHE", str(home.folder / "file" / "cache"))
    with pytest.raises(DatasetError, match=r"file/cache.*: Not a directory; what was done stays done"):
        home.forget(Wish(ids=ids))
    monkeypatch.setenv("HEADWATER_CACHE", str(cache))
    assert home.forget(Wish(ids=ids)).resumed
    assert not plans()
