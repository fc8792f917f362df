"""Parquet: schemas, labels, row groups, nulls, and the cache of row groups."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets import CLASSES, Photo, write_parquet
from headwater.data.index import sample_ids
from headwater.data.sources import SourceOptions, open_source
from headwater.data.sources.rowgroups import GroupCache
from headwater.errors import DatasetError, DatasetStale, SampleCorrupt, WrongUse


def write(path: Path, columns: dict[str, object], **options: object) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def images(*data: bytes | None) -> pa.Array:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.array([{"bytes": one, "path": "x"} for one in data], kind)


class TestSchema:
    @pytest.mark.parametrize(
        "column",
        [
            images(b"one", b"two"),
            pa.array([b"one", b"two"], pa.binary()),
            pa.array([b"one", b"two"], pa.large_binary()),
        ],
    )
    @pytest.mark.parametrize("name", ["image", "img", "anything"])
    def test_image_column_is_found(self, tmp_path: Path, column: pa.Array, name: str) -> None:
        source = open_source(write(tmp_path / "x.parquet", {"other": [1, 2], name: column}))
        assert [bytes(data) for data in source.read(np.array([1, 0]))] == [b"two", b"one"]

    def test_image_column_can_be_named(self, tmp_path: Path) -> None:
        path = write(tmp_path / "x.parquet", {"image": images(b"1"), "mask": images(b"2")})
        source = open_source(path, options=SourceOptions(image="mask"))
        assert bytes(source.read(np.array([0]))[0]) == b"2"

    @pytest.mark.parametrize("options", [{"image": "nope"}, {"label": "nope"}, {"fields": ("nope",)}])
    def test_unknown_columns_are_named(self, photo_parquet: Path, options: dict[str, str]) -> None:
        with pytest.raises(WrongUse, match="no column 'nope'; the columns are image, label, number, camera"):
            open_source(photo_parquet, options=SourceOptions(**options))  # type: ignore[arg-type]

    def test_no_image_column(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="no image column among a, b"):
            open_source(write(tmp_path / "x.parquet", {"a": [1], "b": ["x"]}))

    @pytest.mark.parametrize("text", [b"rubbish", b"[]", b"[" * 10**5, b'{"info": {"features": [1]}}'])
    def test_metadata_that_is_not_what_it_should_be(self, tmp_path: Path, text: bytes) -> None:
        table = pa.table({"image": images(b"1")}).replace_schema_metadata({b"huggingface": text})
        pq.write_table(table, tmp_path / "x.parquet")
        assert len(open_source(tmp_path).index) == 1


class TestLabels:
    @pytest.mark.parametrize(
        ("column", "labels", "classes"),
        [
            (pa.array([7, None, 3], pa.int16()), [7, -1, 3], ()),
            (pa.array(["dog", "cat", None]), [1, 0, -1], ("cat", "dog")),
            (pa.array(["dog", "cat", "dog"]).dictionary_encode(), [1, 0, 1], ("cat", "dog")),
            (pa.array([True, False, True]), [1, 0, 1], ()),
        ],
    )
    def test_kinds(self, tmp_path: Path, column: pa.Array, labels: list[int], classes: tuple[str]) -> None:
        path = write(tmp_path / "x.parquet", {"image": images(b"", b"1", b"2"), "label": column})
        index = open_source(path).index
        assert (index.labels.tolist(), index.classes) == (labels, classes)

    def test_no_label(self, tmp_path: Path) -> None:
        source = open_source(write(tmp_path / "x.parquet", {"image": images(b"1")}))
        assert source.index.labels.tolist() == [-1]

    def test_a_list_is_no_label(self, tmp_path: Path) -> None:
        path = write(tmp_path / "x.parquet", {"image": images(b"1"), "label": [[1, 2]]})
        with pytest.raises(DatasetError, match="'label' is list"):
            open_source(path)

    def test_named_classes_keep_their_numbers_when_a_file_is_added(
        self, tmp_path: Path, photos: list[Photo]
    ) -> None:
        backwards = [photo._replace(label=2) for photo in photos[:3]]
        write_parquet(tmp_path / "0.parquet", backwards)
        assert open_source(tmp_path).index.labels.tolist() == [2, 2, 2]
        write_parquet(tmp_path / "1.parquet", photos[:2])
        index = open_source(tmp_path).index
        assert (index.labels.tolist(), index.classes) == ([2, 2, 2, 0, 1], CLASSES)

    def test_files_that_disagree_about_classes(self, tmp_path: Path, photos: list[Photo]) -> None:
        path = write_parquet(tmp_path / "0.parquet", photos[:3])
        table = pq.read_table(path)
        changed = {b"huggingface": table.schema.metadata[b"huggingface"].replace(b"bee", b"fly")}
        pq.write_table(table.replace_schema_metadata(changed), tmp_path / "1.parquet")
        with pytest.raises(DatasetError, match="name different classes"):
            open_source(tmp_path)


class TestColumns:
    def test_scalars_are_in_the_index(self, photo_parquet: Path) -> None:
        index = open_source(photo_parquet).index
        assert index.columns["number"].to_pylist() == list(range(36))
        assert index.columns["camera"].to_pylist() == ["north", "south"] * 18

    def test_long_texts_are_not(self, tmp_path: Path) -> None:
        captions = [f"{number} " + "long caption " * 10 for number in range(50)]
        columns = {"image": images(*[b"1"] * 50), "caption": captions, "w": range(50)}
        path = write(tmp_path / "x.parquet", columns)
        source = open_source(path, options=SourceOptions(fields=("caption",)))
        assert list(source.index.columns) == ["w"]
        assert source.read_fields(np.array([3, 0])) == {"caption": [captions[3], captions[0]]}

    def test_those_with_names_of_the_index_are_the_users(self, tmp_path: Path) -> None:
        """Fresh, from the cache, and when a file is added to what the cache knows."""
        own = {
            "id": [7, 7],
            "key": ["k", "k"],
            "size": ["S", "XL"],
            "offset": [0.5, None],
            "unit": ["cm", "kg"],
            "shard": [True, False],
            "order": [3, 4],
            "label": ["left", "right"],
            "column:id": [1, 2],
        }
        columns = {"image": images(b"1234", b"1234"), "kind": ["cat", "dog"], **own}
        options = SourceOptions(label="kind")
        for count in (1, 1, 2):
            write(tmp_path / f"{count}.parquet", columns)
            source = open_source(tmp_path, options=options)
            keys = [f"{number}/{row}" for number in range(1, count + 1) for row in (0, 1)]
            assert source.index.keys.to_pylist() == keys
            assert source.index.ids.tolist() == sample_ids(keys).tolist()
            assert (source.index.sizes > 0).all()
            assert source.index.labels.tolist() == [0, 1] * count
            found = {name: column.to_pylist() for name, column in source.index.columns.items()}
            assert found == {name: values * count for name, values in own.items()}
            assert [bytes(data) for data in source.read(np.arange(2))] == [b"1234"] * 2

    def test_keys_are_stem_and_row(self, photo_parquet: Path) -> None:
        index = open_source(photo_parquet).index
        assert index.key(0) == "train-00000-of-00002/0"
        assert index.key(35) == "train-00001-of-00002/17"


class TestRowGroups:
    def test_slices_share_the_row_groups_memory(self, photo_parquet: Path) -> None:
        source = open_source(photo_parquet)
        first, second = source.read(np.array([0, 1]))
        again = source.read(np.array([0]))[0]
        assert isinstance(first, np.ndarray)
        assert np.shares_memory(first, again)
        assert first.base is not None
        assert not first.flags.writeable
        assert second.ctypes.data == first.ctypes.data + len(first)

    def test_null_image_spoils_only_its_sample(self, tmp_path: Path) -> None:
        column = pa.array(
            [{"bytes": b"1"}, {"bytes": None}, None, {"bytes": b"4"}], pa.struct({"bytes": pa.binary()})
        )
        source = open_source(write(tmp_path / "x.parquet", {"image": column}))
        assert [bytes(data) for data in source.read(np.array([3, 0]))] == [b"4", b"1"]
        for position in (1, 2):
            with pytest.raises(SampleCorrupt, match=f"row {position} in row group 0 of .*has no image bytes"):
                source.read(np.array([position]))

    def test_empty_row_groups_and_files(self, tmp_path: Path) -> None:
        schema = pa.schema({"image": images().type, "label": pa.int64()})
        with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
            for count in (2, 0, 3):
                columns = {"image": images(*[b"x"] * count), "label": [1] * count}
                writer.write_table(pa.table(columns, schema=schema))
        pq.write_table(schema.empty_table(), tmp_path / "b.parquet")
        source = open_source(tmp_path)
        assert len(source.index) == 5
        assert len(source.read(np.arange(5))) == 5

    def test_a_file_of_another_size_is_stale(self, tmp_path: Path, photos: list[Photo]) -> None:
        path = write_parquet(tmp_path / "x.parquet", photos)
        source = open_source(path)
        source.read(np.array([0]))
        write_parquet(path, photos[:20])
        with pytest.raises(DatasetStale, match=r"x\.parquet had"):
            source.read(np.array([35]))
        path.unlink()
        with pytest.raises(DatasetStale, match="is gone"):
            source.read(np.array([35]))

    def test_a_damaged_row_group_spoils_its_samples(self, tmp_path: Path, photos: list[Photo]) -> None:
        path = write_parquet(tmp_path / "x.parquet", photos)
        source = open_source(path)
        start = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
        content = bytearray(path.read_bytes())
        content[start : start + 40] = b"\xff" * 40
        path.write_bytes(content)
        assert len(source.read(np.array([0]))) == 1
        with pytest.raises(SampleCorrupt, match=r"row group 1 of .*x\.parquet cannot be read"):
            source.read(np.array([5]))

    @pytest.mark.parametrize("content", [b"", b"PAR1", b"rubbish" * 100, b"PAR1" + b"\xff" * 100 + b"PAR1"])
    def test_what_is_not_parquet(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.parquet").write_bytes(content)
        with pytest.raises(DatasetError, match=r"x\.parquet cannot be read as Parquet"):
            open_source(tmp_path / "x.parquet")


class TestGroupCache:
    def test_threads_that_ask_at_once_share_one_load(self) -> None:
        cache: GroupCache[np.ndarray] = GroupCache(1 << 20)
        start, loads = threading.Barrier(8), []
        release = threading.Event()

        def load() -> np.ndarray:
            loads.append(1)
            release.wait(timeout=30)
            return np.ones(10)

        def ask(number: int) -> int:
            start.wait(timeout=30)
            if number == 0:
                release.set()
            return id(cache.get("key", load))

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(ask, range(8)))) == 1
        assert len(loads) == 1

    def test_the_least_recently_used_goes_first(self) -> None:
        cache: GroupCache[np.ndarray] = GroupCache(250)
        loads: list[str] = []

        def get(key: str, size: int = 100) -> None:
            cache.get(key, lambda: (loads.append(key), np.ones(size, np.uint8))[1])

        for key in ("a", "b", "a", "c", "a", "b"):
            get(key)
        assert loads == ["a", "b", "c", "b"]
        get("huge", 1000)
        get("huge", 1000)
        assert loads[-1] == "huge"
        assert loads.count("huge") == 1
        get("a")
        assert loads[-1] == "a"

    def test_a_failed_load_is_tried_again(self) -> None:
        cache: GroupCache[np.ndarray] = GroupCache(100)

        def fail() -> np.ndarray:
            raise OSError("disk")

        with pytest.raises(OSError, match="disk"):
            cache.get("a", fail)
        assert cache.get("a", lambda: np.ones(3)).sum() == 3

    def test_each_waiter_gets_an_error_of_its_own(self) -> None:
        """Whoever catches it writes the sample's id and key into it."""
        cache: GroupCache[np.ndarray] = GroupCache(100)
        blocked = Blocked(cache, SampleCorrupt("row group 3 is damaged"))

        def wait() -> SampleCorrupt:
            with pytest.raises(SampleCorrupt) as caught:
                cache.get("a", blocked.load)
            return caught.value

        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(wait) for _ in range(4)]
            blocked.release()
        errors = [future.result() for future in waiting]
        assert {error.reason for error in errors} == {"row group 3 is damaged"}
        assert len({id(error) for error in (*errors, blocked.raised())}) == 5

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    @pytest.mark.timeout(60)
    def test_a_forked_child_does_not_wait_for_its_parents_threads(self) -> None:
        cache: GroupCache[np.ndarray] = GroupCache(100)
        blocked = Blocked(cache, None)
        code = exit_code_of_child(lambda: cache.get("a", lambda: np.full(3, 7)).tolist() == [7, 7, 7])
        blocked.release()
        assert code == 0
        assert cache.get("a", blocked.load).tolist() == [1, 1, 1]

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    @pytest.mark.timeout(60)
    def test_a_forked_child_does_not_wait_for_its_parents_lock(self) -> None:
        cache: GroupCache[np.ndarray] = GroupCache(100)
        with cache._lock:
            assert exit_code_of_child(lambda: len(cache.get("a", lambda: np.ones(3))) == 3) == 0


def exit_code_of_child(is_right: Callable[[], bool]) -> int:
    """0 if a forked child finds it right, 1 if not, a negative signal if the child hangs."""
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the test runner's handler would raise instead
            signal.alarm(20)
            os._exit(0 if is_right() else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Blocked:
    """A load of "a" that is under way in another thread until it is released."""

    def __init__(self, cache: GroupCache[np.ndarray], error: Exception | None) -> None:
        self._error = error
        self._begun, self._release = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(cache.get, "a", self.load)
        assert self._begun.wait(timeout=30)

    def load(self) -> np.ndarray:
        self._begun.set()
        assert self._release.wait(timeout=30)
        if self._error is not None:
            raise self._error
        return np.ones(3)

    def release(self) -> None:
        self._release.set()
        self._pool.shutdown()

    def raised(self) -> BaseException | None:
        return self._future.exception()
