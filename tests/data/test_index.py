"""The index: ids, lookup, its file, its version."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.data.index import Index, Places, sample_ids
from headwater.errors import DatasetError, IdCollision, WrongUse


def make(count: int = 100, **changes: object) -> Index:
    keys = [f"class-{number % 3}/{number:05d}.jpg" for number in range(count)]
    columns: dict[str, object] = {"labels": np.arange(count) % 3, "classes": ("a", "b", "c")} | changes
    return Index.build(keys, np.arange(count) + 1000, **columns)  # type: ignore[arg-type]


@given(st.lists(st.text(max_size=40), max_size=20))
def test_ids_are_63_bits_of_blake2b(keys: list[str]) -> None:
    wanted = [
        int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
        for key in keys
        if _encodes(key)
    ]
    ids = sample_ids([key for key in keys if _encodes(key)])
    assert ids.tolist() == wanted
    assert (ids >= 0).all()


def _encodes(key: str) -> bool:
    return not any(0xD800 <= ord(letter) <= 0xDFFF for letter in key)


def test_an_id_stays_what_it_was_in_the_first_release() -> None:
    assert sample_ids(["n01440764/photo.jpg"]).tolist() == [2769513684751981617]


def test_more_keys_than_are_hashed_at_once() -> None:
    keys = [str(number) for number in range(70_000)]
    ids = sample_ids(keys)
    assert ids[65_535:65_538].tolist() == sample_ids(keys[65_535:65_538]).tolist()
    assert len(np.unique(ids)) == len(keys)


def test_position_of_is_the_way_back() -> None:
    index = make()
    positions = np.array([99, 0, 50, 50])
    assert index.position_of(index.ids[positions]).tolist() == positions.tolist()
    assert index.position_of(np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize("unknown", [0, -1, 2**63 - 1])
def test_an_unknown_id_is_named(unknown: int) -> None:
    index = make()
    with pytest.raises(WrongUse, match=str(unknown)):
        index.position_of(np.array([index.ids[0], unknown]))


def test_an_empty_index_knows_no_id() -> None:
    index = Index.build([], np.array([], np.int64))
    assert len(index) == 0
    with pytest.raises(WrongUse, match="no sample with id 7"):
        index.position_of(np.array([7]))


def test_two_keys_with_one_id_are_named() -> None:
    with pytest.raises(IdCollision, match=r"(?s)'b'.*'d'"):
        Index.build(["a", "b", "c", "d"], np.ones(4), ids=np.array([1, 2, 3, 2]))


def test_a_repeated_key_is_named() -> None:
    with pytest.raises(IdCollision, match="'x' occurs twice"):
        Index.build(["x", "y", "x"], np.ones(3))


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(WrongUse, match="'labels' has 2 rows"):
        Index.build(["a", "b", "c"], np.ones(3), labels=np.zeros(2))


def test_version_follows_ids_labels_and_sizes_and_nothing_else() -> None:
    index = make()
    assert make().version == index.version
    elsewhere = Places(("another",), np.zeros(100, np.int32), np.arange(100))
    assert make(places=elsewhere, columns={"extra": pa.array(range(100))}).version == index.version
    assert make(labels=np.zeros(100)).version != index.version
    assert make(ids=np.arange(100)).version != index.version
    assert Index.build(index.keys, index.sizes + 1, labels=index.labels).version != index.version


def test_file_round_trip(tmp_path: Path) -> None:
    columns = {"width": pa.array(range(100)), "camera": pa.array(["n", "s"] * 50).dictionary_encode()}
    index = make(columns=columns, exact_sizes=False)
    index.save(tmp_path / "index.arrow")
    loaded = Index.load(tmp_path / "index.arrow")
    for name in ("ids", "labels", "sizes", "shard", "offset", "order"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(index, name))
    assert loaded.keys.equals(index.keys)
    assert loaded.key(42) == "class-0/00042.jpg"
    assert loaded.classes == ("a", "b", "c")
    assert loaded.version == index.version
    assert not loaded.exact_sizes
    assert loaded.columns["camera"].to_pylist() == ["n", "s"] * 50
    assert [path.name for path in tmp_path.iterdir()] == ["index.arrow"]


def test_a_loaded_index_cannot_be_written_to(tmp_path: Path) -> None:
    make().save(tmp_path / "index.arrow")
    loaded = Index.load(tmp_path / "index.arrow")
    with pytest.raises(ValueError, match="read-only"):
        loaded.ids[0] = 1


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "index.arrow"
    make().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(DatasetError, match=r"index\.arrow"):
        Index.load(path)


def test_flipped_bits_never_load_as_other_ids(tmp_path: Path) -> None:
    path = tmp_path / "index.arrow"
    index = make()
    index.save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    refused = 0
    for place in rng.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.unlink()
        path.write_bytes(damaged)
        try:
            assert Index.load(path).ids.tolist() == index.ids.tolist()
        except DatasetError:
            refused += 1
    assert refused > 50


def test_any_flipped_bit_of_a_column_is_noticed(tmp_path: Path) -> None:
    """Offsets and keys too, which are no part of the version."""
    path = tmp_path / "index.arrow"
    columns = {
        "width": pa.array([None, *range(19)], pa.int16()),
        "camera": pa.array(["n", None] * 10).dictionary_encode(),
        "flag": pa.array([True, False] * 10),
    }
    make(20, columns=columns, labels=np.arange(20)).save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(3)
    places = value_places(path)
    assert len(places) > 20 * (8 * 5 + 4 + 15)
    for place in places[::3]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(DatasetError, match="cannot be used"):
            Index.load(path)


def value_places(path: Path) -> list[int]:
    """Where in its file the numbers and texts of an index lie."""
    content = pa.memory_map(str(path)).read_buffer()
    batch = pa.ipc.open_file(content).get_batch(0)
    places: list[int] = []
    for column in batch.columns:
        if pa.types.is_boolean(column.type):
            continue  # bits: the last byte has some that mean nothing
        values = column.indices if pa.types.is_dictionary(column.type) else column
        for buffer in values.buffers()[1:]:
            start = buffer.address - content.address
            places += range(start, start + buffer.size)
    return places


@pytest.mark.parametrize("text", [b'"exact_sizes":true', b'"shards":["place"]', b'"classes":["a","b","c"]'])
def test_a_changed_header_is_noticed(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "index.arrow"
    make(places=Places(("place",), np.zeros(100, np.int32), np.arange(100))).save(path)
    content = path.read_bytes()
    other = text.replace(b"true", b"null").replace(b"place", b"plane").replace(b'"b"', b'"d"')
    assert content.count(text) == 2  # the schema is written before the columns and again in the footer
    path.unlink()
    path.write_bytes(content.replace(text, other))
    with pytest.raises(DatasetError, match="digest"):
        Index.load(path)


def test_slices_and_odd_columns_come_back(tmp_path: Path) -> None:
    """The digest is of the values: a slice has other buffers in memory than in its file."""
    strings = pa.array(["", "é", None] * 40, pa.large_string())
    columns = {
        "text": strings.slice(7, 100),
        "short": strings.cast(pa.string()).slice(3, 100).dictionary_encode(),
        "flag": pa.array([True, None, False] * 40).slice(5, 100),
        "number": pa.array([1.5, None] * 60, pa.float32()).slice(1, 100),
        "nothing": pa.nulls(100),
        "list": pa.array([[1, 2], None] * 50),
    }
    keys = pa.array([str(number) for number in range(110)], pa.large_string()).slice(10)
    index = Index.build(keys, np.ones(100), columns=columns)
    index.save(tmp_path / "index.arrow")
    loaded = Index.load(tmp_path / "index.arrow")
    assert loaded.keys.to_pylist() == keys.to_pylist()
    assert {name: c.to_pylist() for name, c in loaded.columns.items()} == {
        name: c.to_pylist() for name, c in columns.items()
    }


def test_an_empty_index_comes_back(tmp_path: Path) -> None:
    columns = {"text": pa.array([], pa.string()), "number": pa.array([], pa.int8())}
    Index.build([], np.array([], np.int64), columns=columns).save(tmp_path / "index.arrow")
    assert len(Index.load(tmp_path / "index.arrow")) == 0


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index.arrow"
    make().save(path)
    monkeypatch.setattr("os.replace", _no_space)
    with pytest.raises(OSError, match="no space"):
        make(50).save(path)
    assert len(Index.load(path)) == 100
    assert [p.name for p in tmp_path.iterdir()] == ["index.arrow"]


def _no_space(*paths: object) -> None:
    raise OSError("no space left")


def test_under_150_bytes_a_sample() -> None:
    assert make(10_000).nbytes / 10_000 < 150
