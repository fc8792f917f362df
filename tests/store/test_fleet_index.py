"""The index of a fleet, and what follows from it: classes, columns, overlap, blocks, positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.data.index import Index
from headwater.errors import DatasetError, WrongUse
from headwater.store.fleet import ShardedStore
from headwater.store.local import LocalStore


def index_of(
    keys: Sequence[str], labels: Sequence[int], classes: Sequence[str] = (), **columns: pa.Array
) -> Index:
    sizes = np.arange(1, len(keys) + 1)
    return Index.build(keys, sizes, labels=np.array(labels, np.int64), classes=classes, columns=columns)


class Rows:
    """A source with an index and nothing behind it."""

    remote = False
    cached_bytes: int | None = None

    def __init__(
        self, index: Index, uri: str, *, starts: Sequence[int] | None = None, cached: int = 0
    ) -> None:
        self.index, self.uri = index, uri
        self._starts = starts
        self.cached_bytes = None if starts is None else cached

    def blocks(self) -> np.ndarray | None:
        return None if self._starts is None else np.array(self._starts, np.int64)

    def read(self, positions: np.ndarray) -> list[Any]:
        return [self.index.key(position).encode() for position in positions.tolist()]

    def read_heads(self, positions: np.ndarray, length: int) -> list[Any]:
        return [data[:length] for data in self.read(positions)]

    def read_fields(self, positions: np.ndarray) -> dict[str, list[object]]:
        return {}

    def close(self) -> None:
        self.closed = True


def join(*indexes: Index) -> ShardedStore:
    return ShardedStore([LocalStore(Rows(index, f"store-{n}")) for n, index in enumerate(indexes)])


def labels_by_key(index: Index) -> dict[str, str | None]:
    names = [index.classes[label] if label >= 0 else None for label in index.labels.tolist()]
    return dict(zip(index.keys.to_pylist(), names, strict=True))


def test_classes_that_some_stores_lack() -> None:
    first = index_of(["a", "b", "c"], [1, 0, -1], ["dog", "ant"])
    second = index_of(["d", "e"], [0, 1], ["cat", "dog"])
    union = join(first, second).index
    assert union.classes == ("ant", "cat", "dog")
    assert labels_by_key(union) == {"a": "ant", "b": "dog", "c": None, "d": "cat", "e": "dog"}


def test_equal_classes_keep_their_order_and_numbers_stay_numbers() -> None:
    named = join(index_of(["a"], [1], ["z", "b"]), index_of(["c"], [0], ["z", "b"])).index
    assert named.classes == ("z", "b")
    assert labels_by_key(named) == {"a": "b", "c": "z"}
    bare = join(index_of(["a"], [70]), index_of(["c"], [-5])).index
    assert bare.classes == ()
    assert dict(zip(bare.keys.to_pylist(), bare.labels.tolist(), strict=True)) == {"a": 70, "c": -5}


def test_classes_at_some_stores_only_are_refused() -> None:
    with pytest.raises(DatasetError, match=r"store-0 names its classes and store store-1 has bare numbers"):
        join(index_of(["a"], [0], ["ant"]), index_of(["b"], [0]))


@pytest.mark.parametrize("label", [2, -2])
def test_a_label_without_a_class_cannot_be_renumbered(label: int) -> None:
    with pytest.raises(DatasetError, match=f"store-0 has label {label} and 2 classes"):
        join(index_of(["a"], [label], ["ant", "bee"]), index_of(["b"], [0], ["cat"]))


def test_a_store_without_samples_takes_nothing_away() -> None:
    held = index_of(["a", "b"], [0, 1], ["ant", "bee"], shade=pa.array([3, 4]))
    for order in ((held, index_of([], [])), (index_of([], []), held)):
        store = join(*order)
        assert store.index.version == held.version
        assert store.index.classes == held.classes
        assert list(store.index.columns) == ["shade"]
        assert list(store.read(np.array([1, 0]))) == [b"b", b"a"]


def test_columns_that_all_have_with_one_type(caplog: pytest.LogCaptureFixture) -> None:
    first = index_of(
        ["a", "b"],
        [0, 0],
        shade=pa.array([1, 2]),
        camera=pa.array(["n", "s"]).dictionary_encode(),
        x=pa.array([1, 2]),
    )
    second = index_of(
        ["c"],
        [0],
        shade=pa.array([3]),
        camera=pa.array(["w"]).dictionary_encode(),
        x=pa.array([0.5]),
        y=pa.array([1]),
    )
    union = join(first, second).index
    assert sorted(union.columns) == ["camera", "shade"]
    assert not caplog.text
    rows = zip(
        union.keys.to_pylist(),
        union.columns["camera"].to_pylist(),
        union.columns["shade"].to_pylist(),
        strict=True,
    )
    assert sorted(rows) == [("a", "n", 1), ("b", "s", 2), ("c", "w", 3)]


def test_a_column_that_cannot_be_joined_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    small = pa.dictionary(pa.int8(), pa.string())
    texts = [pa.array([f"{n} {k}" for k in range(100)]).dictionary_encode().cast(small) for n in range(2)]
    halves = [index_of([f"{n}/{k}" for k in range(100)], [0] * 100, text=texts[n]) for n in range(2)]
    assert not join(*halves).index.columns
    assert "'text' cannot be joined" in caplog.text


def test_sizes_are_exact_only_if_all_are() -> None:
    exact = index_of(["a", "b"], [0, 0])
    mean = Index.build(["c"], np.array([500]), labels=np.zeros(1, np.int64), exact_sizes=False)
    store = join(exact, mean)
    assert join(exact).index.exact_sizes
    assert not store.index.exact_sizes
    sizes = dict(zip(store.index.keys.to_pylist(), store.sizes(np.arange(3)).tolist(), strict=True))
    assert sizes == {"a": 1, "b": 2, "c": 0}


def test_overlap_is_counted_between_the_two_stores() -> None:
    one, two = index_of(["a", "b", "c", "d"], [0] * 4), index_of(["c", "d", "e"], [0] * 3)
    with pytest.raises(DatasetError, match=r"share 2 of their [34] and [34] samples, such as '[cd]'"):
        join(one, two, index_of(["f"], [0]))
    with pytest.raises(DatasetError, match="share 4 of their 4 and 4"):
        join(one, one)
    with pytest.raises(WrongUse, match="no stores"):
        ShardedStore([])


def test_blocks_and_caches_if_all_have_them() -> None:
    one, two = index_of(["a", "b", "c"], [0] * 3), index_of(["d", "e"], [0] * 2)
    stores = {
        one.version: LocalStore(Rows(one, "one", starts=[0, 2], cached=10)),
        two.version: LocalStore(Rows(two, "two", starts=[0, 1], cached=5)),
    }
    store = ShardedStore(list(stores.values()))
    expected = [0, 2, 3, 4] if one.version < two.version else [0, 1, 2, 4]
    blocks = store.blocks()
    assert blocks is not None
    assert blocks.tolist() == expected
    assert store.cached_bytes == 15
    mixed = ShardedStore([stores[one.version], LocalStore(Rows(two, "two"))])
    assert mixed.blocks() is None
    assert mixed.cached_bytes is None


def test_readers_of_all_stores_up_to_a_bound() -> None:
    many = [LocalStore(Rows(index_of([str(n)], [0]), f"store-{n}")) for n in range(40)]
    assert ShardedStore(many[:2]).readers == 2 * many[0].readers
    assert ShardedStore(many).readers == 32
    assert not ShardedStore(many).remote


def test_close_closes_every_store_and_reading_afterwards_is_refused() -> None:
    sources = [Rows(index_of([key], [0]), key) for key in "ab"]
    store = ShardedStore([LocalStore(source) for source in sources])
    assert sorted(store.read(np.arange(2))) == [b"a", b"b"]
    store.close()
    assert all(source.closed for source in sources)
    with pytest.raises(WrongUse, match="this dataset was closed"):
        store.read(np.arange(2))


@pytest.mark.parametrize("position", [-1, 3])
def test_positions_outside_are_refused(position: int) -> None:
    store = join(index_of(["a", "b"], [0, 0]), index_of(["c"], [0]))
    with pytest.raises(IndexError, match=f"position {position} is outside an index of 3"):
        store.read(np.array([0, position]))
