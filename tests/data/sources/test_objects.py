"""Buckets: how many requests, how many bytes, what goes wrong and how it is said."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import numpy as np
import pytest

from datasets import Photo, members_of, write_tar
from headwater.data.files import Span
from headwater.data.sources import SourceOptions, open_source
from headwater.data.sources.objects import LARGEST_REQUEST, S3Files, neighbours
from headwater.errors import DatasetError, DatasetNotFound, DatasetStale, ForkedUse, Unreachable
from seaweed import S3Server, count_traffic


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


class TestTraffic:
    def test_a_folder_opens_from_its_listing(self, s3: S3Server, photo_folder: Path, prefix: str) -> None:
        uri = s3.upload(photo_folder, prefix)
        with count_traffic(s3) as proxy:
            options = SourceOptions(storage={**s3.storage, "endpoint": proxy.endpoint})
            source = open_source(uri, options=options)
            assert len(source.index) == 36
            assert len(proxy.requests) == 1
            assert "list-type=2" in proxy.requests[0]
            open_source(uri, options=options).close()
            assert len(proxy.requests) == 2
            source.read(np.array([3, 4]))
            assert len(proxy.requests) == 4
            source.close()

    def test_a_tar_is_indexed_from_its_headers(self, s3: S3Server, tmp_path: Path, prefix: str) -> None:
        large = os.urandom(1 << 20)
        content = [(f"{n}.{e}", d) for n in range(20) for e, d in (("jpg", large), ("cls", b"1"))]
        write_tar(tmp_path / "x.tar", content)
        uri = s3.upload(tmp_path, prefix) + "/x.tar"
        with count_traffic(s3) as proxy:
            options = SourceOptions(storage={**s3.storage, "endpoint": proxy.endpoint})
            source = open_source(uri, options=options)
            assert source.index.labels.tolist() == [1] * 20
            assert proxy.received < (20 << 20) / 20
            assert bytes(source.read(np.array([7]))[0]) == large
            source.close()

    def test_many_named_shards_cost_one_listing(
        self, s3: S3Server, tmp_path: Path, photos: list[Photo], prefix: str
    ) -> None:
        for number, photo in enumerate(photos[:12]):
            write_tar(tmp_path / f"s-{number:02d}.tar", members_of(photo))
        uri = s3.upload(tmp_path, prefix)
        with count_traffic(s3) as proxy:
            options = SourceOptions(storage={**s3.storage, "endpoint": proxy.endpoint})
            open_source(f"{uri}/s-{{00..11}}.tar", options=options).close()
            assert sum("list-type=2" in request for request in proxy.requests) == 1
            assert not [request for request in proxy.requests if request.startswith("HEAD")]
            with pytest.raises(DatasetNotFound, match=r"s-12\.tar"):
                open_source(f"{uri}/s-{{00..12}}.tar", options=options)

    def test_neighbours_are_one_request(self, s3: S3Server, photo_tars: Path, prefix: str) -> None:
        uri = s3.upload(photo_tars, prefix)
        with count_traffic(s3) as proxy:
            options = SourceOptions(storage={**s3.storage, "endpoint": proxy.endpoint})
            source = open_source(uri, options=options)
            before = len(proxy.requests)
            source.read(np.arange(36))
            assert len(proxy.requests) - before <= 6
            source.close()


def test_neighbours_stay_within_bounds() -> None:
    rng = np.random.default_rng(3)
    spans = [
        Span(str(rng.integers(3)), int(rng.integers(0, 50 << 20)), int(rng.integers(1, 1 << 20)), 99)
        for _ in range(300)
    ]
    groups = neighbours(spans)
    assert sorted(place for group in groups for place in group) == list(range(300))
    for group in groups:
        assert len({spans[place].path for place in group}) == 1
        begin = spans[group[0]].start
        assert all(spans[place].start >= begin for place in group)
        end = max(spans[place].start + spans[place].length for place in group)
        assert len(group) == 1 or end - begin <= LARGEST_REQUEST
    assert len(groups) < 300


@pytest.mark.parametrize("name", ["a b+c%20#1.jpg", "ünï/日本.png", "q?x=1&y.jpg"])
def test_odd_names(s3: S3Server, prefix: str, name: str) -> None:
    s3.put(f"{prefix}/{name}", b"odd")
    source = open_source(f"s3://photos/{prefix}", options=SourceOptions(storage=s3.storage))
    assert source.index.key(0) == name
    assert [bytes(data) for data in source.read(np.array([0]))] == [b"odd"]
    source.close()


def test_environment_is_enough(s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put(f"{prefix}/a/1.jpg", b"photo")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.storage["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.storage["secret_access_key"])
    source = open_source(f"s3://photos/{prefix}")
    assert [bytes(data) for data in source.read(np.array([0]))] == [b"photo"]
    source.close()


def test_credentials_are_no_part_of_the_cache(s3: S3Server, prefix: str, private_cache: Path) -> None:
    s3.put(f"{prefix}/a/1.jpg", b"photo")
    open_source(f"s3://photos/{prefix}", options=SourceOptions(storage=s3.storage)).close()
    assert not [p for p in private_cache.rglob("*.arrow") if b"tester-secret" in p.read_bytes()]
    assert "tester-secret" not in repr(SourceOptions(storage=s3.storage))


class TestAppended:
    def test_new_objects_are_noticed(self, s3: S3Server, prefix: str) -> None:
        options = SourceOptions(storage=s3.storage)
        s3.put(f"{prefix}/a/1.jpg", b"1")
        assert len(open_source(f"s3://photos/{prefix}", options=options).index) == 1
        s3.put(f"{prefix}/b/2.jpg", b"2")
        index = open_source(f"s3://photos/{prefix}", options=options).index
        assert (len(index), index.classes) == (2, ("a", "b"))

    def test_stale(self, s3: S3Server, prefix: str) -> None:
        for name in ("1", "2", "3"):
            s3.put(f"{prefix}/{name}.jpg", b"x" * 100)
        source = open_source(f"s3://photos/{prefix}", options=SourceOptions(storage=s3.storage))
        s3.put(f"{prefix}/1.jpg", b"y" * 101)
        s3.put(f"{prefix}/2.jpg", b"z" * 99)
        s3.delete(f"{prefix}/3.jpg")
        for position, says in ((0, "has 101 bytes now"), (1, "has 99 bytes now"), (2, "is gone")):
            with pytest.raises(DatasetStale, match=says):
                source.read(np.array([position]))
        with pytest.raises(DatasetStale, match="bytes now"):
            source.read(np.array([0, 1]))
        source.close()

    def test_a_shard_cut_short_is_stale(self, s3: S3Server, photo_tars: Path, prefix: str) -> None:
        uri = s3.upload(photo_tars, prefix)
        source = open_source(uri, options=SourceOptions(storage=s3.storage))
        s3.put(f"{prefix}/shard-002.tar", b"x" * 700)
        with pytest.raises(DatasetStale, match=r"shard-002\.tar .* has 700 bytes now"):
            source.read(np.array([35]))
        source.close()


class TestErrors:
    def fails(self, uri: str, storage: dict[str, str], error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=says) as caught:
            open_source(uri, options=SourceOptions(storage=storage))
        assert type(caught.value) is error

    def test_no_bucket(self, s3: S3Server) -> None:
        self.fails("s3://nowhere/x", dict(s3.storage), DatasetNotFound, "s3://nowhere/x")

    @pytest.mark.parametrize("path", ["x", "x.tar"])
    def test_wrong_secret(self, s3: S3Server, path: str) -> None:
        storage = {**s3.storage, "secret_access_key": "wrong"}
        self.fails(f"s3://photos/{path}", storage, DatasetError, "AWS_SECRET_ACCESS_KEY")

    def test_no_credentials(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        storage = {k: v for k, v in s3.storage.items() if "key" not in k}
        # Without credentials a machine in a cloud would ask its host for some: let nobody answer here.
        storage["metadata_endpoint"] = "http://127.0.0.1:9"
        self.fails("s3://photos/x.tar", storage, DatasetError, "no credentials for")

    @pytest.mark.parametrize("path", ["x", "x.tar"])
    def test_dead_endpoint(self, s3: S3Server, path: str) -> None:
        storage = {**s3.storage, "endpoint": "http://127.0.0.1:9"}
        self.fails(f"s3://photos/{path}", storage, Unreachable, "127.0.0.1:9 does not answer")

    def test_a_setting_that_does_not_exist(self, s3: S3Server) -> None:
        self.fails("s3://photos/x", {**s3.storage, "colour": "blue"}, DatasetError, "photos cannot be set up")


def test_a_forked_child_is_told(s3: S3Server, photo_folder: Path, prefix: str) -> None:
    uri = s3.upload(photo_folder, prefix)
    source = open_source(uri, options=SourceOptions(storage=s3.storage))
    source.read(np.array([0]))
    for use in (lambda: source.read(np.array([1])), lambda: S3Files("photos", s3.storage)):
        assert in_child(use).startswith("ForkedUse: bucket photos was opened in process")
    source.close()


def in_child(use: object) -> str:
    """What a forked child got when it called `use`."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            use()  # type: ignore[operator]
            text = "nothing"
        except ForkedUse as error:
            text = f"ForkedUse: {error}"
        except BaseException as error:
            text = repr(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text
