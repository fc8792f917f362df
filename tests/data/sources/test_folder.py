"""Image folders: which files count, what is scanned again, what is stale."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from datasets import make_photo
from headwater.data.scans import Scan, Unit
from headwater.data.sources import SourceOptions, open_source
from headwater.data.sources.folder import FolderLayout
from headwater.errors import DatasetError, DatasetNotFound, DatasetStale, WrongUse


def write(root: Path, *names: str, data: bytes = b"photo") -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    age(root)
    return root


def age(root: Path) -> None:
    """As if nothing here had been touched for a while: what changed just now is scanned again to be sure."""
    for folder, _, _ in os.walk(root):
        status = os.stat(folder)
        os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns - 10**9))


def keys(root: Path, options: SourceOptions | None = None) -> list[str]:
    return open_source(root, options=options).index.keys.to_pylist()


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were scanned, as they happen."""
    names: list[str] = []
    real = FolderLayout.scan

    def scan(self: FolderLayout, units: Sequence[Unit]) -> Scan:
        names.extend(unit.name for unit in units)
        return real(self, units)

    monkeypatch.setattr(FolderLayout, "scan", scan)
    return names


def test_images_by_suffix_in_any_case(tmp_path: Path) -> None:
    images = ["a/1.jpg", "a/2.JPEG", "a/3.jpe", "a/4.Png", "a/5.webp"]
    write(tmp_path, *images, "a/6.gif", "a/readme.txt", "a/jpg", "a/.hidden.jpg", ".git/7.jpg")
    assert keys(tmp_path) == images


def test_classes_are_first_level_folders(tmp_path: Path) -> None:
    index = open_source(write(tmp_path, "b/1.jpg", "a/x/2.jpg", "a/3.jpg", "10/4.jpg", "9/5.jpg")).index
    assert index.classes == ("10", "9", "a", "b")
    labels = {index.key(p): index.classes[index.labels[p]] for p in range(len(index))}
    assert labels == {"b/1.jpg": "b", "a/x/2.jpg": "a", "a/3.jpg": "a", "10/4.jpg": "10", "9/5.jpg": "9"}


def test_images_in_the_root_have_no_label(tmp_path: Path) -> None:
    index = open_source(write(tmp_path, "1.jpg", "2.jpg")).index
    assert (index.classes, index.labels.tolist()) == ((), [-1, -1])


def test_split_is_a_sub_folder(tmp_path: Path) -> None:
    write(tmp_path, "train/a/1.jpg", "val/a/2.jpg")
    assert keys(tmp_path, SourceOptions(split="val")) == ["a/2.jpg"]


@pytest.mark.parametrize("name", ["a b+c%20#1.jpg", "ünï/日本.png", "-/--.jpg", "'/\".jpg"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    source = open_source(write(tmp_path, name, data=b"odd"))
    assert source.index.key(0) == name
    assert source.read(np.array([0])) == [b"odd"]


def test_a_name_that_is_not_text_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "a/1.jpg")
    (tmp_path / "a" / os.fsdecode(b"\xff.jpg")).write_bytes(b"x")
    assert keys(tmp_path) == ["a/1.jpg"]
    assert "1 files whose names are not UTF-8" in caplog.text


class TestLinks:
    def test_those_that_leave_are_left_out_and_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        outside = write(tmp_path / "outside", "secret.jpg")
        root = write(tmp_path / "root", "a/1.jpg")
        (root / "a/out.jpg").symlink_to(outside / "secret.jpg")
        (root / "out").symlink_to(outside)
        (root / "a/nowhere.jpg").symlink_to("nothing.jpg")
        with caplog.at_level(logging.WARNING):
            assert keys(root) == ["a/1.jpg"]
        assert "2 links that leave the folder" in caplog.text
        assert "1 links that lead nowhere" in caplog.text

    def test_a_sibling_with_the_same_beginning_is_outside(self, tmp_path: Path) -> None:
        write(tmp_path / "root-other", "x.jpg")
        root = write(tmp_path / "root", "a/1.jpg")
        (root / "a/out.jpg").symlink_to(tmp_path / "root-other/x.jpg")
        assert keys(root) == ["a/1.jpg"]

    def test_those_that_stay_are_followed(self, tmp_path: Path) -> None:
        root = write(tmp_path, "a/1.jpg")
        (root / "a/2.jpg").symlink_to("1.jpg")
        (root / "b").symlink_to("a")
        assert keys(root) == ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"]

    def test_loops_end(self, tmp_path: Path) -> None:
        root = write(tmp_path, "a/1.jpg", "b/2.jpg")
        (root / "a/up").symlink_to("..")
        (root / "b/self").symlink_to(".")
        (root / "c").symlink_to("b")
        assert len(keys(root)) < 20


class TestCache:
    def test_an_unchanged_folder_looks_at_directories_only(self, tmp_path: Path, scanned: list[str]) -> None:
        write(tmp_path, "a/1.jpg", "a/x/2.jpg", "b/3.jpg")
        first = open_source(tmp_path).index
        assert sorted(scanned) == ["", "a", "a/x", "b"]
        scanned.clear()
        # A size that changed behind the index's back shows that no file was looked at.
        (tmp_path / "b/3.jpg").write_bytes(b"longer than before")
        assert open_source(tmp_path).index.sizes.tolist() == first.sizes.tolist()
        assert scanned == []

    def test_only_folders_that_changed_are_scanned(self, tmp_path: Path, scanned: list[str]) -> None:
        write(tmp_path, "a/1.jpg", "b/2.jpg", "c/3.jpg")
        open_source(tmp_path)
        scanned.clear()
        (tmp_path / "b/new.jpg").write_bytes(b"x")
        (tmp_path / "c/3.jpg").unlink()
        assert keys(tmp_path) == ["a/1.jpg", "b/2.jpg", "b/new.jpg"]
        assert sorted(scanned) == ["b", "c"]

    def test_a_new_class_changes_labels_of_the_others(self, tmp_path: Path, scanned: list[str]) -> None:
        write(tmp_path, "b/1.jpg", "c/2.jpg")
        open_source(tmp_path)
        scanned.clear()
        (tmp_path / "a/x").mkdir(parents=True)
        (tmp_path / "a/x/0.jpg").write_bytes(b"x")
        index = open_source(tmp_path).index
        assert (index.classes, index.labels.tolist()) == (("a", "b", "c"), [0, 1, 2])
        assert sorted(scanned) == ["", "a", "a/x"]

    def test_a_folder_changed_a_moment_ago_is_scanned_again(self, tmp_path: Path, scanned: list[str]) -> None:
        """A second change within the same tick of the clock would leave the mtime as it is."""
        write(tmp_path, "a/1.jpg", "b/2.jpg")
        ahead = (tmp_path / "a").stat().st_mtime_ns + 60 * 10**9
        os.utime(tmp_path / "a", ns=(ahead, ahead))
        open_source(tmp_path)
        (tmp_path / "a/2.jpg").write_bytes(b"x")
        os.utime(tmp_path / "a", ns=(ahead, ahead))
        scanned.clear()
        assert keys(tmp_path) == ["a/1.jpg", "a/2.jpg", "b/2.jpg"]
        assert scanned == ["a"]

    def test_an_interrupted_build_keeps_the_directories_that_were_done(
        self, tmp_path: Path, scanned: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten classes are few directories, and may be a million files."""
        write(tmp_path, *(f"class-{number}/1.jpg" for number in range(10)))
        counting = FolderLayout.scan

        def interrupted(self: FolderLayout, units: Sequence[Unit]) -> Scan:
            if units[0].name == "class-7":
                raise KeyboardInterrupt
            return counting(self, units)

        with monkeypatch.context() as patch:
            patch.setattr(FolderLayout, "scan", interrupted)
            with pytest.raises(KeyboardInterrupt):
                open_source(tmp_path)
        before = list(scanned)
        assert before[:8] == ["", *(f"class-{number}" for number in range(7))]
        scanned.clear()
        assert len(keys(tmp_path)) == 10
        assert sorted([*before, *scanned]) == ["", *(f"class-{number}" for number in range(10))]

    def test_nothing_is_written_beside_the_data(self, tmp_path: Path) -> None:
        write(tmp_path, "a/1.jpg")
        open_source(tmp_path)
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["1.jpg", "a"]


class TestStale:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        photo = make_photo(np.random.default_rng(0), 20, 20)
        return write(tmp_path, "a/1.jpg", "a/2.jpg", data=photo)

    def test_another_size(self, root: Path) -> None:
        source = open_source(root)
        (root / "a/2.jpg").write_bytes(b"short")
        assert len(source.read(np.array([0]))) == 1
        for read in (source.read, lambda positions: source.read_heads(positions, 3)):
            with pytest.raises(DatasetStale, match=r"a/2\.jpg had \d+ bytes .* has 5 bytes now; open the"):
                read(np.array([0, 1]))

    def test_refresh_is_the_remedy_that_it_names(self, root: Path) -> None:
        """Opening again is not: a file overwritten in place leaves its folder's time as it was."""
        open_source(root)
        (root / "a/2.jpg").write_bytes(b"short")
        with pytest.raises(DatasetStale, match="open the dataset again with refresh=True"):
            open_source(root).read(np.array([1]))
        open_source(root, options=SourceOptions(refresh=True))
        assert open_source(root).read(np.array([1])) == [b"short"]

    def test_gone(self, root: Path) -> None:
        source = open_source(root)
        shutil.rmtree(root / "a")
        with pytest.raises(DatasetStale, match=r"a/1\.jpg .* is gone"):
            source.read(np.array([0]))


@pytest.mark.parametrize("options", [{"fields": ("caption",)}, {"image": "png"}, {"label": "cls"}])
def test_what_names_columns_is_refused(photo_folder: Path, options: dict[str, str]) -> None:
    ((name, value),) = options.items()
    says = re.escape(f"{name}={value!r} for the image folder {photo_folder}; these are for tars and Parquet")
    with pytest.raises(WrongUse, match=says):
        open_source(photo_folder, options=SourceOptions(**options))  # type: ignore[arg-type]


def test_a_folder_without_images(tmp_path: Path) -> None:
    write(tmp_path, "a/readme.txt")
    with pytest.raises(DatasetNotFound, match=r"no image below .*\.webp"):
        open_source(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    write(tmp_path, "photo.jpg")
    with pytest.raises(DatasetError, match="is no folder"):
        open_source(tmp_path / "photo.jpg")
