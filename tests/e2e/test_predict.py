"""Online inference at a real store: over HTTP with tokens and TLS, many at once, and through kills."""

from __future__ import annotations

import gc
import http.client
import json
import random
import select
import socket
import ssl
import threading
import time
import urllib.request
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import headwater as hw
from datasets import make_photo
from headwater.errors import (
    DatasetNotFound,
    DatasetStale,
    InboxFull,
    ModelNotFound,
    Refused,
    SampleCorrupt,
    SampleTooLarge,
    StoreLost,
    Unreachable,
    WrongUse,
)
from headwater.models.registry import Registry
from headwater.store.client.address import Secret
from headwater.store.client.link import Link
from headwater.store.client.predictions import Inquiry, Place, PredictClient, find_place
from headwater.store.labels import open_labels
from headwater.store.local import LocalStore
from headwater.store.server.daemon import Daemon
from headwater.store.server.http import HEADER_BYTES
from headwater.store.server.posting import MOST_AT_ONCE
from headwater.store.wire.messages import Prediction
from headwater.tune.predict import Predicted, predict_at, predict_here, seal_at
from headwater.tune.relabel import Access, Wish, relabel_at
from relabelling import nudged, small_model, write_photos
from stores import Certificates, StoreProcess, make_certificates, running_daemon, write_tokens

COUNT, FURTHER = 60, 8
SCOPES = {
    "asker": ["read"],
    "keeper": ["read", "labels"],
    "labeller": ["labels", "jobs", "models"],
    "admin": ["admin"],
}
SECRETS = {name: f"{name}-{'x' * 24}" for name in (*SCOPES, "elsewhere", "stranger")}
HURRIED = Link(deadline_seconds=5, give_up_seconds=2)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), COUNT)


def make_state(folder: Path) -> Path:
    Registry(folder / "models").put(small_model(), name="small", switch=True)
    return folder


@dataclass(frozen=True)
class Store:
    """A store with tokens, and where it is."""

    daemon: Daemon
    state: Path
    audit: Path

    @property
    def address(self) -> str:
        return self.daemon.serving.address

    @property
    def place(self) -> Place:
        parts = urlsplit(str(self.daemon.serving.http))
        return Place("http", str(parts.hostname), int(parts.port or 0), "photos")

    def client(self, name: str = "keeper", link: Link = HURRIED) -> PredictClient:
        return PredictClient(self.place, Secret(SECRETS[name]), link)


@pytest.fixture(scope="module")
def store(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("store")
    tokens = {name: {"secret": SECRETS[name], "scopes": scopes} for name, scopes in SCOPES.items()}
    tokens["elsewhere"] = {
        "secret": SECRETS["elsewhere"],
        "scopes": ["read", "labels"],
        "datasets": ["others"],
    }
    settings = {
        "token_file": write_tokens(folder, **tokens),
        "audit_log": folder / "audit.jsonl",
        "state": make_state(folder / "state"),
        "http": "127.0.0.1:0",
        "predict_milliseconds": 20_000.0,
    }
    with running_daemon({"photos": photos, "others": photos}, **settings) as daemon:
        yield Store(daemon, folder / "state", folder / "audit.jsonl")


@pytest.fixture(scope="module")
def truth(photos: Path, store: Store) -> dict[str, Prediction]:
    """What the offline engine says of each file, in this process."""
    found = predict_here(files_of(photos), Registry(store.state / "models"))
    return {one.image: one.prediction for one in found if one.prediction is not None}


def files_of(photos: Path) -> list[str]:
    return sorted(map(str, photos.iterdir()))


def said(found: Sequence[Predicted]) -> list[Prediction]:
    errors = [one.error for one in found if one.error is not None]
    assert not errors
    return [one.prediction for one in found if one.prediction is not None]


Answer = tuple[int, dict[str, str], Any]


def post(
    place: Place,
    path: str,
    body: Any,
    *,
    token: str | None = "keeper",
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """A request by hand: status, headers and JSON."""
    if context is None:
        connection = http.client.HTTPConnection(place.host, place.port, timeout=20)
    else:
        connection = http.client.HTTPSConnection(place.host, place.port, timeout=20, context=context)
    given = {} if token is None else {"Authorization": f"Bearer {SECRETS[token]}"}
    given |= {"Content-Type": "image/jpeg"} | (headers or {})
    with closing(connection):
        connection.request("POST", path, body, given)
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, names, json.loads(answer.read())


@pytest.fixture(scope="module")
def photo() -> bytes:
    return make_photo(np.random.default_rng(8), 24, 32)


def test_concurrent_clients_get_what_the_offline_engine_says(
    photos: Path, store: Store, truth: dict[str, Prediction]
) -> None:
    client, files = store.client("asker"), files_of(photos)
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda file: client.predict(Path(file).read_bytes(), Inquiry("photos")), files))
    expected = [truth[file] for file in files]
    assert [one.label for one in found] == [one.label for one in expected]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], rtol=1e-3)
    assert {one.version for one in found} == {expected[0].version}
    metrics = store.daemon._ledger.snapshot()
    made, batches = metrics["headwater_predictions_total"], metrics["headwater_predict_batches_total"]
    assert isinstance(made, dict)
    assert isinstance(batches, int | float)
    assert batches < made["made"] / 1.5, "they were answered together"


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_an_answer_is_json(store: Store, suffix: str) -> None:
    image = make_photo(np.random.default_rng(3), 30, 40, suffix)
    kind = {"Content-Type": f"image/{suffix.replace('jpg', 'jpeg')}; charset=binary"}
    status, headers, answer = post(
        store.place, "/predict?dataset=photos&top=2&model=small", image, headers=kind
    )
    assert (status, headers["content-type"], headers["connection"]) == (200, "application/json", "close")
    assert set(answer) == {"label", "score", "margin", "model", "version", "top", "id", "key"}
    assert (answer["model"], answer["id"], len(answer["top"])) == ("small", None, 2)
    assert 0 < answer["score"] <= 1
    assert answer["margin"] >= 0


BAD: dict[str, tuple[int, str]] = {
    "text": (422, "SampleCorrupt"),
    "truncated": (422, "SampleCorrupt"),
    "giant picture": (413, "SampleTooLarge"),
    "gif": (422, "SampleCorrupt"),
    "zeros": (422, "SampleCorrupt"),
    "damaged": (422, "SampleCorrupt"),
}


def make_bad(kind: str) -> bytes:
    photo = make_photo(np.random.default_rng(0), 24, 32)
    giant = bytearray(photo)
    at = giant.index(b"\xff\xc0") + 5
    giant[at : at + 4] = b"\xff\xff\xff\xff"
    png = bytearray(make_photo(np.random.default_rng(0), 24, 32, "png"))
    png[len(png) // 2] ^= 0xFF
    return {
        "text": b"not an image",
        "truncated": photo[:300],
        "giant picture": bytes(giant),
        "gif": b"GIF89a" + bytes(100),
        "zeros": bytes(5000),
        "damaged": bytes(png),
    }[kind]


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("keep", [0, 1])
def test_a_bad_image_is_a_clean_error_and_not_kept(store: Store, kind: str, keep: int) -> None:
    before = store.daemon._keeper.unsealed_bytes
    status, _, answer = post(store.place, f"/predict?dataset=photos&keep={keep}", make_bad(kind))
    assert (status, answer["kind"]) == BAD[kind]
    assert str(store.state) not in answer["error"]
    assert "Traceback" not in answer["error"]
    assert store.daemon._keeper.unsealed_bytes == before


WRONG: dict[str, tuple[str, dict[str, str], int]] = {
    "another type": ("dataset=photos", {"Content-Type": "text/html"}, 415),
    "no type": ("dataset=photos", {"Content-Type": ""}, 415),
    "no dataset": ("", {}, 400),
    "no such dataset": ("dataset=scans", {}, 404),
    "a path": ("dataset=../photos", {}, 404),
    "no such model": ("dataset=photos&model=strange", {}, 404),
    "a path as a model": ("dataset=photos&model=../../etc/passwd", {}, 404),
    "no number": ("dataset=photos&top=many", {}, 400),
    "top 0": ("dataset=photos&top=0", {}, 400),
    "top 101": ("dataset=photos&top=101", {}, 400),
    "a number of another script": ("dataset=photos&top=%D9%A3", {}, 400),
    "keep perhaps": ("dataset=photos&keep=perhaps", {}, 400),
    "twice": ("dataset=photos&dataset=others", {}, 400),
    "something else": ("dataset=photos&colour=red", {}, 400),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_question_that_is_none(store: Store, photo: bytes, what: str) -> None:
    query, headers, status = WRONG[what]
    found, _, answer = post(store.place, f"/predict?{query}", photo, headers=headers)
    assert found == status, answer
    assert len(answer["error"]) > 10
    assert str(store.state) not in answer["error"]


def test_a_body_has_a_length_that_is_said_and_kept_to(store: Store, photo: bytes) -> None:
    chunked = post(store.place, "/predict?dataset=photos", iter([photo]))
    assert chunked[0] == 411
    assert post(store.place, "/predict?dataset=photos", b"")[0] == 411
    most = store.daemon._predictor.most_bytes
    status, _, answer = post(store.place, "/predict?dataset=photos", bytes(most + 1))
    assert (status, answer["kind"]) == (413, "SampleTooLarge")


def raw(store: Store, data: bytes) -> bytes:
    with socket.create_connection((store.place.host, store.place.port), timeout=15) as link:
        link.sendall(data)
        found = b""
        while part := link.recv(1 << 16):
            found += part
    return found


def test_a_giant_length_is_refused_before_a_byte_is_read(store: Store) -> None:
    head = f"POST /predict?dataset=photos HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRETS['asker']}\r\n"
    with socket.create_connection((store.place.host, store.place.port), timeout=15) as link:
        link.sendall(f"{head}Content-Type: image/jpeg\r\nContent-Length: 99999999999999\r\n\r\n".encode())
        assert link.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
    with socket.create_connection((store.place.host, store.place.port), timeout=15) as link:
        link.sendall(f"{head}Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n".encode())
        assert link.recv(1 << 16).startswith(b"HTTP/1.1 415 "), "without a word about going on"


def test_giant_headers_and_no_http(store: Store, photo: bytes) -> None:
    line = b"POST /predict?dataset=photos HTTP/1.1\r\nHost: x\r\n"
    for data in (line + b"X: " + b"a" * (2 * HEADER_BYTES), b"\x16\x03\x01\x02\x00\x01\r\n\r\n"):
        found = raw(store, data + b"\r\n\r\n")
        assert found == b"" or found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 401 "))
    assert post(store.place, "/predict?dataset=photos", photo)[0] == 200


def test_a_body_that_does_not_come_ends_with_its_connection(store: Store, photo: bytes) -> None:
    head = (
        f"POST /predict?dataset=photos&keep=1 HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\n"
        f"Authorization: Bearer {SECRETS['keeper']}\r\nContent-Length: {len(photo)}\r\n\r\n"
    ).encode()
    before = store.daemon._keeper.unsealed_bytes
    with socket.create_connection((store.place.host, store.place.port), timeout=15) as link:
        link.sendall(head + photo[: len(photo) // 2])
        link.shutdown(socket.SHUT_WR)
        assert b"HTTP/1.1 200" not in link.recv(1 << 16)
    assert store.daemon._keeper.unsealed_bytes == before
    assert post(store.place, "/predict?dataset=photos", photo)[0] == 200
    end = time.monotonic() + 10
    while len(store.daemon._predictor._batches):  # the answer comes before its place is given back
        assert time.monotonic() < end, "a place is held for somebody who is gone"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("token", "keep", "status", "told"),
    [
        (None, 0, 401, "no token"),
        ("stranger", 0, 401, "not accepted"),
        ("labeller", 0, 403, "lacks scope 'read'"),
        ("labeller", 1, 403, "lacks scope 'read'"),
        ("asker", 1, 403, "lacks scope 'labels'"),
        ("admin", 0, 403, "lacks scope 'read'"),
        ("elsewhere", 0, 403, "not good for dataset 'photos'"),
        ("elsewhere", 1, 403, "not good for dataset 'photos'"),
    ],
)
def test_who_may_not(
    store: Store, photo: bytes, token: str | None, keep: int, status: int, told: str
) -> None:
    before = store.daemon._keeper.unsealed_bytes
    found, _, answer = post(store.place, f"/predict?dataset=photos&keep={keep}", photo, token=token)
    assert found == status
    assert told in answer["error"]
    assert store.daemon._keeper.unsealed_bytes == before


def test_only_an_admin_seals(store: Store) -> None:
    for name in ("asker", "keeper", "labeller", "elsewhere"):
        with pytest.raises(Refused, match="lacks scope 'admin'"):
            seal_at(store.address, "photos", Access(SECRETS[name], HURRIED))
    with pytest.raises(DatasetNotFound):
        seal_at(store.address, "scans", Access(SECRETS["admin"], HURRIED))
    assert seal_at(store.address, "others", Access(SECRETS["admin"], HURRIED)).version == ""


def test_the_audit_log_says_who_asked_kept_and_sealed(store: Store, photo: bytes) -> None:
    assert post(store.place, "/predict?dataset=photos", photo, token="asker")[0] == 200
    assert post(store.place, "/predict?dataset=others&keep=1", photo)[0] == 200
    seal_at(store.address, "others", Access(SECRETS["admin"], HURRIED))
    store.daemon.tick()
    lines = [json.loads(line) for line in store.audit.read_text().splitlines()]
    told = {(line["action"], line["caller"], line["dataset"], line["outcome"]) for line in lines}
    assert ("predict", "asker", "photos", "ok") in told
    assert ("keep", "keeper", "others", "ok") in told
    (sealed,) = [line for line in lines if line["action"] == "inbox_seal" and line["outcome"] == "ok"][-1:]
    assert (sealed["caller"], sealed["of"]) == ("admin", "others")


def test_the_client_raises_what_the_store_says(store: Store, photo: bytes) -> None:
    client = store.client()
    for image, error in ((b"text", SampleCorrupt), (make_bad("giant picture"), SampleTooLarge)):
        with pytest.raises(error):
            client.predict(image, Inquiry("photos"))
    with pytest.raises(ModelNotFound):
        client.predict(photo, Inquiry("photos", "strange"))
    with pytest.raises(DatasetNotFound):
        client.predict(photo, Inquiry("scans"))
    with pytest.raises(WrongUse):
        client.predict(photo, Inquiry("photos", top=500))
    with pytest.raises(Refused, match="lacks scope"):
        store.client("asker").predict(photo, Inquiry("photos", keep=True))


def test_the_address_of_the_store_leads_to_its_http(store: Store, photos: Path) -> None:
    access = Access(SECRETS["keeper"], HURRIED)
    place = find_place(f"{store.address}/photos", Secret(SECRETS["keeper"]), HURRIED)
    assert place == store.place
    assert find_place("https://[::1]:8080/photos", Secret(), HURRIED) == Place("https", "::1", 8080, "photos")
    assert said(predict_at(f"{store.address}/photos", files_of(photos)[:2], Inquiry(), access))
    assert said(predict_at(str(store.place) + "/photos", files_of(photos)[:2], Inquiry(), access))
    for uri in ("ftp://a", "http://", "https://a:x", "photos/", "http://user@a"):
        with pytest.raises(WrongUse):
            find_place(uri, Secret(), HURRIED)


def test_kept_and_sealed_is_served_at_once_and_after_a_restart(photos: Path, tmp_path: Path) -> None:
    state = make_state(tmp_path / "state")
    settings = {"state": state, "http": "127.0.0.1:0"}
    files = files_of(photos)
    with running_daemon({"photos": photos}, **settings) as daemon:
        address = daemon.serving.address
        first = said(predict_at(address, files[:10], Inquiry(keep=True), Access()))
        sealed = seal_at(address, "photos", Access())
        with closing(hw.open(f"{address}/photos-inbox")) as data:
            assert data.version == sealed.version
            assert set(data.ids.tolist()) == {one.id for one in first}
            more = said(predict_at(address, files[10:15], Inquiry(keep=True), Access()))
            again = seal_at(address, "photos", Access())
            assert again.samples == 15
            with pytest.raises(DatasetStale):
                data.store.read(np.arange(3))
        (job,) = relabel_at([f"{address}/photos-inbox"], Wish(model="small"))
        assert job.job is not None
        assert job.job.counts.get("labelled", 0) == 0, "every image has its row already"
        Registry(state / "models").put(nudged(small_model(), 3.0), name="small", switch=True)
        (job,) = relabel_at([f"{address}/photos-inbox"], Wish(model="small"))
        assert job.job is not None
        assert job.job.counts["changed"] + job.job.counts["unchanged"] == 15
    with (
        running_daemon({"photos": photos}, state=state) as daemon,
        closing(hw.open(f"{daemon.serving.address}/photos-inbox")) as data,
    ):
        with pytest.raises(Unreachable, match="--http"):
            predict_at(daemon.serving.address, files[:1], Inquiry(), Access())
        assert data.version == again.version
        contents = {Path(file).read_bytes() for file in files[:15]}
        assert {bytes(one) for one in data.store.read(np.arange(15))} == contents
        assert set(data.ids.tolist()) == {one.id for one in [*first, *more]}
    inbox = tmp_path / "photos-inbox"
    inbox.symlink_to(photos)
    with (
        pytest.raises(WrongUse, match="photos-inbox"),
        running_daemon({"photos": photos, "photos-inbox": inbox}, **settings),
    ):
        pass


def test_without_state_nothing_is_predicted_and_a_store_that_drains_turns_away(
    photos: Path, photo: bytes
) -> None:
    with running_daemon({"photos": photos}, http="127.0.0.1:0") as daemon:
        place = Place("http", "127.0.0.1", int(urlsplit(str(daemon.serving.http)).port or 0))
        status, _, answer = post(place, "/predict", photo, token=None)
        assert (status, answer["kind"]) == (501, "ModelError")
        assert "--state" in answer["error"]
        with pytest.raises(WrongUse, match="--state"):
            seal_at(daemon.serving.address, "photos", Access(link=HURRIED))
        daemon.drain()
        status, headers, answer = post(place, "/predict", photo, token=None)
        assert (status, "retry-after" in headers) == (503, True)
        assert "draining" in answer["error"]
        with pytest.raises(StoreLost, match="draining"):
            PredictClient(place, Secret(), Link(give_up_seconds=0.5)).predict(photo, Inquiry())


def test_a_store_that_cannot_keep_up_turns_away_with_a_time_to_come_back(
    photos: Path, tmp_path: Path, photo: bytes
) -> None:
    """Most are told 503 at once; those that are let in are answered rightly; the client's patience wins."""
    state = make_state(tmp_path / "state")
    settings = {"state": state, "http": "127.0.0.1:0", "cores": 0.3, "predict_milliseconds": 20.0}
    with running_daemon({"photos": photos}, **settings) as daemon:
        port = int(urlsplit(str(daemon.serving.http)).port or 0)
        place = Place("http", "127.0.0.1", port)
        label = post(place, "/predict", photo, token=None)[2]["label"]
        with ThreadPoolExecutor(40) as pool:
            found = list(pool.map(lambda _: post(place, "/predict", photo, token=None), range(80)))
        statuses = [status for status, _, _ in found]
        assert set(statuses) == {200, 503}
        assert statuses.count(503) > 20
        assert all(int(headers["retry-after"]) >= 1 for status, headers, _ in found if status == 503)
        assert {answer["label"] for status, _, answer in found if status == 200} == {label}
        patient = PredictClient(place, Secret(), Link(give_up_seconds=60))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: patient.predict(photo, Inquiry()), range(8)))
        assert {answer.label for answer in answers} == {label}


def test_a_version_of_the_inbox_goes_when_nobody_reads_it(photos: Path, tmp_path: Path) -> None:
    settings = {"state": make_state(tmp_path / "state"), "http": "127.0.0.1:0"}
    files = files_of(photos)
    with running_daemon({"photos": photos}, **settings) as daemon:

        def seal(some: Sequence[str]) -> weakref.ref[LocalStore]:
            said(predict_at(daemon.serving.address, some, Inquiry(keep=True), Access()))
            seal_at(daemon.serving.address, "photos", Access())
            return weakref.ref(daemon._stores["photos-inbox"])

        first = seal(files[:2])
        reader = first()
        second = seal(files[2:4])
        assert reader is not None
        contents = {bytes(one) for one in reader.read(np.arange(2))}
        assert contents == {Path(file).read_bytes() for file in files[:2]}, "who reads from it goes on"
        del reader
        gc.collect()
        assert first() is None
        assert second() is not None


def test_an_inbox_has_an_end(photos: Path, tmp_path: Path, photo: bytes) -> None:
    settings = {"state": make_state(tmp_path / "state"), "http": "127.0.0.1:0", "inbox_bytes": 1}
    with running_daemon({"photos": photos}, **settings) as daemon:
        place = Place("http", "127.0.0.1", int(urlsplit(str(daemon.serving.http)).port or 0))
        assert post(place, "/predict", photo, token=None)[0] == 200
        status, _, answer = post(place, "/predict?keep=1", photo, token=None)
        assert (status, answer["kind"]) == (507, "InboxFull")
        assert daemon._keeper.unsealed_bytes == 0
        with pytest.raises(InboxFull, match="raise inbox_bytes"):
            PredictClient(place, Secret(), HURRIED).predict(photo, Inquiry(keep=True))


def test_uploads_that_do_not_come_keep_nobody_from_the_stores_health(
    photos: Path, tmp_path: Path, photo: bytes
) -> None:
    """As many as are let in, as many again that are turned away and heard out, and some that are not."""
    settings = {
        "state": make_state(tmp_path / "state"),
        "http": "127.0.0.1:0",
        "predict_milliseconds": 20_000.0,
    }
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: 5000\r\n\r\n"
    with running_daemon({"photos": photos}, **settings) as daemon:
        url = str(daemon.serving.http)
        place = Place("http", "127.0.0.1", int(urlsplit(url).port or 0))
        with ExitStack() as idle:
            links = [
                idle.enter_context(socket.create_connection((place.host, place.port), timeout=15))
                for _ in range(2 * MOST_AT_ONCE + FURTHER)
            ]
            for link in links:
                link.sendall(head)
            answers = [link.recv(1 << 16) for link in wait_for_answers(links, FURTHER)]
            assert {answer[:13] for answer in answers} == {b"HTTP/1.1 503 "}
            assert all(b"retry-after: " in answer.lower() for answer in answers)
            for path in ("/health", "/metrics"):
                with urllib.request.urlopen(f"{url}{path}", timeout=10) as page:
                    assert page.status == 200
            status, headers, _ = post(place, "/predict", photo, token=None)
            assert (status, "retry-after" in headers) == (503, True)
        end = time.monotonic() + 10
        while post(place, "/predict", photo, token=None)[0] != 200:
            assert time.monotonic() < end, "places are held for those who are gone"
            time.sleep(0.02)


def wait_for_answers(links: Sequence[socket.socket], count: int) -> list[socket.socket]:
    """So many of them, once they are answered."""
    end = time.monotonic() + 9
    while time.monotonic() < end:
        answered, _, _ = select.select(links, [], [], 0.1)
        if len(answered) >= count:
            return answered[:count]
    raise AssertionError(f"fewer than {count} were answered")


def test_a_label_database_that_is_away_is_waited_for(photos: Path, tmp_path: Path, photo: bytes) -> None:
    """Predictions need no labels; no image is acknowledged without its row. Where labels lie is not told."""
    settings = {"state": make_state(tmp_path / "state"), "http": "127.0.0.1:0"}
    away = "postgresql+psycopg://nobody@127.0.0.1:9/secret-place?connect_timeout=2"
    with running_daemon({"photos": photos}, labels=away, **settings) as daemon:
        place = Place("http", "127.0.0.1", int(urlsplit(str(daemon.serving.http)).port or 0))
        assert post(place, "/predict", photo, token=None)[0] == 200
        status, headers, answer = post(place, "/predict?keep=1", photo, token=None)
        assert (status, "retry-after" in headers) == (503, True)
        assert "secret-place" not in answer["error"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_over_tls_with_both_certificates(
    photos: Path, tmp_path: Path, photo: bytes, certificates: Certificates
) -> None:
    tokens = write_tokens(tmp_path, keeper={"secret": SECRETS["keeper"], "scopes": ["read", "labels"]})
    settings = {"state": make_state(tmp_path / "state"), "http": "127.0.0.1:0", "token_file": tokens}
    with running_daemon({"photos": photos}, **settings, **certificates.serve_mutual) as daemon:
        right = certificates.link_mutual(give_up_seconds=3.0)
        token = SECRETS["keeper"]
        found = said(
            predict_at(daemon.serving.address, files_of(photos)[:3], Inquiry(keep=True), Access(token, right))
        )
        assert all(one.id for one in found)
        place = find_place(daemon.serving.address, Secret(token), right)
        assert place.scheme == "https"
        stranger = Link(ca=certificates.other_ca, give_up_seconds=1.0)
        with pytest.raises(Unreachable, match="not trusted"):
            PredictClient(place, Secret(token), stranger).predict(photo, Inquiry())
        with pytest.raises(StoreLost):
            PredictClient(place, Secret(token), certificates.link(give_up_seconds=1.0)).predict(
                photo, Inquiry()
            )
        with pytest.raises(WrongUse, match="--ca"):
            PredictClient(place, Secret(token), Link(ca=tmp_path / "none.pem"))


def test_the_server_of_somebody_else_is_told_apart(photo: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_once, args=(listener, b"HTTP/1.0 404 Not Found\r\n\r\n<html>"))
        thread.start()
        client = PredictClient(Place("http", "127.0.0.1", listener.getsockname()[1]), Secret(), HURRIED)
        with pytest.raises(Exception, match="is it the HTTP of a store"):
            client.predict(photo, Inquiry())
        thread.join()


def serve_once(listener: socket.socket, answer: bytes) -> None:
    link, _ = listener.accept()
    with link:
        link.recv(1 << 16)
        link.sendall(answer)
        link.shutdown(socket.SHUT_WR)
        while link.recv(1 << 16):  # what is closed with bytes unread is reset, and the answer lost
            pass


KILLS = pytest.mark.parametrize(
    "kills", [2, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["2", "50"]
)


@pytest.mark.slow
@KILLS
def test_what_was_acknowledged_is_there_after_any_kill(tmp_path: Path, kills: int) -> None:
    """SIGKILL in the midst of uploads from several clients; some of them ask again and some do not."""
    photos = write_photos(tmp_path / "photos", 5)
    state = make_state(tmp_path / "state")
    with StoreProcess({"photos": photos}, state=state, http="127.0.0.1:0", cores=1) as store:
        senders = [Sender(store.http, number, patient=number % 2 == 0) for number in range(6)]
        for sender in senders:
            sender.start()
        dice = random.Random(kills)
        for _ in range(kills):
            wait_for_progress(senders)
            time.sleep(dice.uniform(0.0, 0.3))
            store.kill()
            store.restart()
            for sender in senders:
                sender.port = int(urlsplit(store.http).port or 0)
        wait_for_progress(senders)
        for sender in senders:
            sender.over.set()
        for sender in senders:
            sender.join()
        sealed = seal_at(store.address, "photos", Access())
        with closing(hw.open(f"{store.address}/photos-inbox")) as data:
            assert data.version == sealed.version
            ids, found = data.ids.tolist(), data.store.read(np.arange(len(data)))
            there = {id: bytes(file) for id, file in zip(ids, found, strict=True)}
    acknowledged = {one.id: (image, one) for sender in senders for image, one in sender.acknowledged}
    assert len(acknowledged) >= 6 * (kills + 1)
    assert len(set(there.values())) == len(there), "none is there twice"
    for id, (image, _) in acknowledged.items():
        assert there[id or 0] == image
    sent = {image for sender in senders for image in sender.sent}
    assert set(there.values()) <= sent
    unanswered = [image for sender in senders if sender.patient for image in sender.sent]
    assert set(unanswered) <= {image for image, _ in acknowledged.values()}, "who asked again was answered"
    check_rows(state, {id or 0: one for id, (_, one) in acknowledged.items()})


def check_rows(state: Path, acknowledged: dict[int, Prediction]) -> None:
    with closing(open_labels(state / "labels.db")) as labels:
        names = labels.classes("photos-inbox").names
        rows = labels.get("photos-inbox", list(acknowledged))
        assert {int(id): names[label] for id, label in zip(rows.samples, rows.labels, strict=True)} == {
            id: one.label for id, one in acknowledged.items()
        }


def wait_for_progress(senders: Sequence[Sender]) -> None:
    """Until each has been acknowledged at least one more."""
    before = [len(sender.acknowledged) for sender in senders]
    end = time.monotonic() + 60
    while any(len(sender.acknowledged) <= count for sender, count in zip(senders, before, strict=True)):
        assert time.monotonic() < end, "the senders do not come forward"
        assert all(sender.is_alive() for sender in senders)
        time.sleep(0.005)


class Sender(threading.Thread):
    """Uploads one new image after the other; a patient one asks again until each is acknowledged."""

    def __init__(self, url: str, number: int, *, patient: bool) -> None:
        super().__init__(daemon=True)
        self.port, self.patient = int(urlsplit(url).port or 0), patient
        self.rng = np.random.default_rng(1000 + number)
        self.over = threading.Event()
        self.sent: list[bytes] = []
        self.acknowledged: list[tuple[bytes, Prediction]] = []

    def run(self) -> None:
        while not self.over.is_set():
            image = make_photo(self.rng, 24, 32)
            self.sent.append(image)
            while not self._send(image) and self.patient:
                time.sleep(0.02)

    def _send(self, image: bytes) -> bool:
        link = Link(deadline_seconds=5, give_up_seconds=0.01)
        client = PredictClient(Place("http", "127.0.0.1", self.port), Secret(), link)
        try:
            found = client.predict(image, Inquiry("photos", keep=True))
        except StoreLost:
            return False
        self.acknowledged.append((image, found))
        return True
