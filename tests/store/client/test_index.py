"""The index of a remote dataset is fetched once, kept by its digest, and never taken from a damaged file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headwater.data.index import Index
from headwater.errors import DatasetError, StoreLost
from headwater.store.client.index import open_index
from headwater.store.client.link import Link
from headwater.store.client.remote import Remote, RemoteStore
from headwater.store.client.replicas import Replicas
from headwater.store.wire import pages
from headwater.store.wire.messages import DatasetFacts, IndexRequest, Request, Welcome
from understudy import Understudy, be_gone, playing

INDEX = Index.build(
    [f"photo-{number}.jpg" for number in range(20)],
    np.arange(20) * 100 + 1,
    labels=np.arange(20) % 2,
    classes=("ant", "bee"),
)
FACTS = DatasetFacts(20, int(INDEX.sizes.sum()), INDEX.version, pages.content_of(INDEX))


def send_page(server: Understudy, request: Request, index: Index = INDEX) -> list[Any]:
    """Seven rows at a time: a store may send fewer than it was asked for."""
    assert isinstance(request, IndexRequest)
    schema = pages.index_schema(index, first=not request.start)
    return [pages.index_page(index, request.start, 7, schema)]


@pytest.fixture
def server() -> Iterator[Understudy]:
    with playing(send_page) as made:
        yield made


@pytest.fixture
def replicas(server: Understudy) -> Iterator[Replicas]:
    made = Replicas([server.connect(Link(deadline_seconds=5, give_up_seconds=5))])
    yield made
    made.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fetch(replicas: Replicas, facts: DatasetFacts = FACTS) -> Index:
    return open_index(replicas, "photos", facts, progress=False)


def assert_same(got: Index) -> None:
    assert got.ids.tolist() == INDEX.ids.tolist()
    assert got.labels.tolist() == INDEX.labels.tolist()
    assert got.sizes.tolist() == INDEX.sizes.tolist()
    assert (got.classes, got.version, got.key(19)) == (INDEX.classes, INDEX.version, "photo-19.jpg")


def test_it_is_fetched_in_pages(server: Understudy, replicas: Replicas, cache: Path) -> None:
    assert_same(fetch(replicas))
    assert [request.start for request in server.asked] == [0, 7, 14]


def test_it_is_fetched_once(server: Understudy, replicas: Replicas, cache: Path) -> None:
    fetch(replicas)
    server.asked.clear()
    server.usual = be_gone
    assert_same(fetch(replicas))
    assert not server.asked


def test_a_loss_names_store_dataset_and_position(server: Understudy, cache: Path) -> None:
    replicas = Replicas([server.connect(Link(deadline_seconds=5, give_up_seconds=0.2))])
    server.script.append(send_page)
    server.usual = be_gone
    with pytest.raises(StoreLost, match=r"'photos', position 7, fetching the index\); check") as caught:
        fetch(replicas)
    found = caught.value
    assert (found.store, found.dataset, found.position) == (replicas.names, "photos", 7)
    replicas.close()


def test_a_loss_of_blocks_does_too(server: Understudy) -> None:
    replicas = Replicas([server.connect(Link(deadline_seconds=5, give_up_seconds=0.2))])
    facts = msgspec.structs.replace(FACTS, blocks=True)
    welcome = Welcome(1, "0.1", {}, {}, [], {"photos": facts}, 1 << 20, 100)
    store = RemoteStore(replicas, Remote("photos", facts, {"store": welcome}, INDEX))
    server.usual = be_gone
    with pytest.raises(StoreLost, match=r"'photos', position 0, fetching the blocks\); check") as caught:
        store.blocks()
    assert (caught.value.store, caught.value.dataset, caught.value.position) == (replicas.names, "photos", 0)
    store.close()


def test_another_content_is_another_file(server: Understudy, replicas: Replicas, cache: Path) -> None:
    fetch(replicas)
    server.asked.clear()
    renamed = Index.build(INDEX.keys, INDEX.sizes, labels=INDEX.labels, classes=("bee", "ant"))
    server.usual = lambda server, request: send_page(server, request, renamed)
    facts = msgspec.structs.replace(FACTS, content=pages.content_of(renamed))
    assert fetch(replicas, facts).classes == ("bee", "ant")
    assert fetch(replicas).classes == ("ant", "bee")
    assert len(server.asked) == 3


@pytest.mark.parametrize("spoil", ["truncate", "flip", "empty", "other"])
def test_a_damaged_file_is_fetched_again(
    spoil: str, server: Understudy, replicas: Replicas, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fetch(replicas)
    (file,) = cache.glob("remote-*.arrow")
    content = bytearray(file.read_bytes())
    if spoil == "other":
        Index.build(["x"], np.array([1])).save(file)
    else:
        place = content.index(INDEX.sizes.astype("<i8").tobytes())
        content[place] ^= 1
        file.write_bytes({"truncate": content[:300], "flip": bytes(content), "empty": b""}[spoil])
    server.asked.clear()
    with caplog.at_level(logging.WARNING, logger="headwater"):
        assert_same(fetch(replicas))
    assert len(server.asked) == 3
    assert spoil == "other" or "fetching it again" in caplog.text
    server.asked.clear()
    assert_same(fetch(replicas))
    assert not server.asked  # the file was mended


def test_a_cache_that_cannot_be_written_to(
    server: Understudy,
    replicas: Replicas,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        with caplog.at_level(logging.WARNING, logger="headwater"):
            assert_same(fetch(replicas))
    assert len(server.asked) == 6
    assert "it will be fetched again" in caplog.text


def test_a_tampered_page_is_asked_for_again(server: Understudy, replicas: Replicas, cache: Path) -> None:
    def tamper(server: Understudy, request: Request) -> list[Any]:
        ((batch, digest),) = send_page(server, request)
        return [(batch.set_column(2, batch.schema.field(2), batch.column(1)), digest)]

    def unsigned(server: Understudy, request: Request) -> list[Any]:
        return [send_page(server, request)[0][0]]

    def twice(server: Understudy, request: Request) -> list[Any]:
        return send_page(server, request) * 2

    def from_elsewhere(server: Understudy, request: Request) -> list[Any]:
        assert isinstance(request, IndexRequest)
        return send_page(server, msgspec.structs.replace(request, start=14))

    def nothing(server: Understudy, request: Request) -> list[Any]:
        assert isinstance(request, IndexRequest)
        return send_page(server, msgspec.structs.replace(request, start=20))

    server.script.extend([tamper, unsigned, twice, from_elsewhere, nothing])
    assert_same(fetch(replicas))
    assert [request.start for request in server.asked] == [0] * 6 + [7, 14]


@pytest.mark.parametrize("change", [{"version": "another"}, {"content": "another"}])
def test_an_index_that_is_not_what_was_said(
    change: dict[str, str], server: Understudy, replicas: Replicas, cache: Path
) -> None:
    with pytest.raises(DatasetError, match="is not what"):
        fetch(replicas, msgspec.structs.replace(FACTS, **change))
    assert not list(cache.glob("remote-*"))
