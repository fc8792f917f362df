"""Addresses: braces, globs, lists, splits, and what a folder holds."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets import Photo, members_of, write_folder, write_parquet, write_tar, write_tars
from headwater.data.sources import SourceOptions, open_source
from headwater.data.sources.addresses import expand_braces
from headwater.errors import DatasetError, DatasetNotFound, WrongUse

PLAIN = st.text("abc-_./", max_size=6)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("plain.tar", ["plain.tar"]),
        ("s-{000..002}.tar", ["s-000.tar", "s-001.tar", "s-002.tar"]),
        ("s-{8..11}.tar", ["s-8.tar", "s-9.tar", "s-10.tar", "s-11.tar"]),
        ("s-{08..11}.tar", ["s-08.tar", "s-09.tar", "s-10.tar", "s-11.tar"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("{,x}y", ["y", "xy"]),
        ("{odd}.tar", ["{odd}.tar"]),
        ("{", ["{"]),
        ("}{", ["}{"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


CHOICES = st.lists(st.text("xyz", max_size=3), min_size=2, max_size=4)


@given(st.lists(st.tuples(PLAIN, CHOICES), max_size=4), PLAIN)
def test_braces_are_a_product(parts: list[tuple[str, list[str]]], tail: str) -> None:
    pattern = "".join(f"{text}{{{','.join(choices)}}}" for text, choices in parts) + tail
    fixed = [text for text, _ in parts]
    product = itertools.product(*(choices for _, choices in parts))
    wanted = ["".join(f"{t}{c}" for t, c in zip(fixed, chosen, strict=True)) + tail for chosen in product]
    assert expand_braces(pattern) == wanted


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 5))
def test_ranges_have_every_number_once(first: int, last: int, width: int) -> None:
    names = expand_braces(f"{{{first:0{width}d}..{last:0{width}d}}}")
    step = 1 if last >= first else -1
    assert [int(name) for name in names] == list(range(first, last + step, step))
    assert all(len(name) >= width for name in names)


@given(st.text("{}.,0a", max_size=20))
def test_anything_expands_or_is_refused(pattern: str) -> None:
    assert expand_braces(pattern)


@pytest.mark.parametrize("pattern", ["{0..1000000}", "{0..999}{0..999}{0..9}", "{0..99999999999999999999}"])
def test_too_many_names(pattern: str) -> None:
    with pytest.raises(WrongUse, match="names"):
        expand_braces(pattern)


def shards_of(uri: object, options: SourceOptions | None = None) -> tuple[str, ...]:
    return open_source(uri, options=options).index.places.shards  # type: ignore[arg-type]


def test_every_way_to_name_shards(photo_tars: Path) -> None:
    all_three = ("shard-000.tar", "shard-001.tar", "shard-002.tar")
    assert shards_of(photo_tars) == all_three
    assert shards_of(photo_tars / "shard-{000..002}.tar") == all_three
    assert shards_of(photo_tars / "*.tar") == all_three
    assert shards_of(f"file://{photo_tars}/shard-00[02].tar") == all_three[::2]
    assert shards_of([photo_tars / name for name in reversed(all_three)]) == all_three
    assert shards_of([photo_tars / all_three[1], photo_tars / "shard-{001..002}.tar"]) == all_three[1:]


def test_the_same_keys_however_the_shards_are_named(photo_tars: Path) -> None:
    versions = {
        open_source(uri).index.version
        for uri in (photo_tars, photo_tars / "*.tar", photo_tars / "shard-{000..002}.tar")
    }
    assert len(versions) == 1


def test_a_star_does_not_cross_folders(tmp_path: Path, photos: list[Photo]) -> None:
    write_tar(tmp_path / "a.tar", members_of(photos[0]))
    write_tar(tmp_path / "deep/b.tar", members_of(photos[1]))
    assert shards_of(tmp_path / "*.tar") == ("a.tar",)
    assert shards_of(tmp_path / "*/*.tar") == ("b.tar",)
    assert shards_of(tmp_path) == ("a.tar", "deep/b.tar")


def test_a_glob_that_matches_nothing(photo_tars: Path) -> None:
    with pytest.raises(DatasetNotFound, match=r"no \.tar or \.parquet file matches .*x\*"):
        open_source(photo_tars / "x*")


class TestOddNames:
    """What exists is what it is called, even if its name could be a pattern."""

    NAMES = pytest.mark.parametrize("name", ["pics [1]", "a*b", "what?", "{a,b}", "{0..3}"])

    @NAMES
    def test_a_folder_of_images(self, tmp_path: Path, photos: list[Photo], name: str) -> None:
        write_folder(tmp_path / name, photos[:3])
        write_folder(tmp_path / "pics 1", photos[:6])
        assert len(open_source(tmp_path / name).index) == 3

    @NAMES
    def test_a_folder_of_shards(self, tmp_path: Path, photos: list[Photo], name: str) -> None:
        write_tars(tmp_path / name, photos[:6])
        assert len(shards_of(tmp_path / name)) == 3
        assert shards_of(tmp_path / name / "shard-001.tar") == ("shard-001.tar",)

    @pytest.mark.parametrize("name", ["pics [1]", "a*b", "what?"])
    def test_a_pattern_below_one(self, tmp_path: Path, photos: list[Photo], name: str) -> None:
        write_tars(tmp_path / name, photos[:6])
        write_tars(tmp_path / "pics 1", photos[:6], shards=1)
        assert shards_of(tmp_path / name / "*-00[02].tar") == ("shard-000.tar", "shard-002.tar")
        assert shards_of(tmp_path / name / "shard-{000..001}.tar") == ("shard-000.tar", "shard-001.tar")

    def test_a_shard(self, tmp_path: Path, photos: list[Photo]) -> None:
        write_tar(tmp_path / "x[1].tar", members_of(photos[0]))
        write_tar(tmp_path / "x1.tar", members_of(photos[1]))
        assert shards_of(tmp_path / "x[1].tar") == ("x[1].tar",)
        (tmp_path / "x[1].tar").unlink()
        assert shards_of(tmp_path / "x[1].tar") == ("x1.tar",)


class TestSplit:
    @pytest.fixture
    def root(self, tmp_path: Path, photos: list[Photo]) -> Path:
        for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001", "training-0"):
            write_parquet(tmp_path / f"data/{name}.parquet", photos[:3])
        return tmp_path

    def test_files_whose_name_begins_with_it(self, root: Path) -> None:
        assert shards_of(root, SourceOptions(split="train")) == (
            "train-00000-of-00002.parquet",
            "train-00001-of-00002.parquet",
        )
        assert shards_of(root, SourceOptions(split="test")) == ("test-00000-of-00001.parquet",)

    def test_a_folder_of_that_name(self, root: Path, photos: list[Photo]) -> None:
        write_parquet(root / "data/val/0.parquet", photos[:3])
        assert shards_of(root, SourceOptions(split="val")) == ("0.parquet",)
        write_parquet(root / "val/1.parquet", photos[:3])
        assert shards_of(root, SourceOptions(split="val")) == ("1.parquet",)

    def test_unknown(self, root: Path) -> None:
        with pytest.raises(DatasetNotFound, match="'dev'"):
            open_source(root, options=SourceOptions(split="dev"))


def test_a_picture_beside_shards_does_not_make_a_folder(tmp_path: Path, photos: list[Photo]) -> None:
    write_tars(tmp_path, photos)
    (tmp_path / "logo.png").write_bytes(photos[0].data)
    assert type(open_source(tmp_path)).__name__ == "TarSource"


def test_a_tar_deep_among_images_does_not_make_shards(tmp_path: Path, photos: list[Photo]) -> None:
    write_folder(tmp_path, photos)
    write_tar(tmp_path / "zzz/backup.tar", members_of(photos[0]))
    assert len(open_source(tmp_path).index) == len(photos)


def test_two_kinds_of_shards_at_once(tmp_path: Path, photos: list[Photo]) -> None:
    tar = write_tar(tmp_path / "a.tar", members_of(photos[0]))
    parquet = write_parquet(tmp_path / "b.parquet", photos[:3])
    for uri in (tmp_path, [tar, parquet], tmp_path / "*"):
        with pytest.raises(WrongUse, match="at once; name one kind"):
            open_source(uri)
    assert len(open_source(tmp_path / "*.tar").index) == 1


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.TAR.zst"])
def test_compressed_tars_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    for uri in (tmp_path / name, tmp_path):
        with pytest.raises(DatasetError, match="decompress"):
            open_source(uri)


def test_two_folders_at_once(photo_folder: Path) -> None:
    with pytest.raises(WrongUse, match="open each"):
        open_source([photo_folder, photo_folder / "ant"])


def test_disk_and_bucket_at_once(photo_tars: Path) -> None:
    with pytest.raises(WrongUse, match="2 places at once"):
        open_source([photo_tars / "shard-000.tar", "s3://bucket/shard-001.tar"])
