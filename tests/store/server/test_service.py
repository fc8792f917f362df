"""What a token opens and what it does not tell: datasets, verbs of HTTP, guessing, the audit log.

That no door opens to those who do not belong is in `tests/e2e/test_every_door.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow.flight as flight
import pytest

import headwater as hw
from headwater.errors import DatasetNotFound, HeadwaterError, Refused
from headwater.store.client.status import status
from headwater.store.server.daemon import Daemon
from headwater.store.server.guard import FAILURES
from headwater.store.wire import messages
from headwater.store.wire.messages import BlocksRequest, IndexRequest, ReadRequest, Request
from held import keep_selection, make_state
from stores import running_daemon, write_tokens
from visitors import BODIES, INTERNALS, Visitor, ask, make_requests, routes, text_of

SECRETS = {
    name: f"{name}-{'x' * 24}" for name in ("trainer", "expired", "labeller", "elsewhere", "late", "stranger")
}
TOKENS: dict[str, dict[str, object]] = {
    "trainer": {"scopes": ["read", "admin"]},
    "expired": {"scopes": ["read", "admin"], "expires": "2020-01-01T00:00:00Z"},
    "labeller": {"scopes": ["labels", "jobs", "models"]},
    "elsewhere": {"scopes": ["read"], "datasets": ["others"]},
    "late": {"scopes": ["read"]},
}
UNKNOWN_CALLERS = {"no token": None, "wrong token": SECRETS["stranger"], "expired": SECRETS["expired"]}
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")


def write_all_tokens(folder: Path) -> Path:
    entries: dict[str, dict[str, object]] = {
        name: {"secret": SECRETS[name], **token} for name, token in TOKENS.items()
    }
    path = write_tokens(folder, **entries)
    # a time has no quotes in TOML
    path.write_text(path.read_text().replace('"2020-01-01T00:00:00Z"', "2020-01-01T00:00:00Z"))
    return path


@dataclass
class Door:
    """A store with two datasets, and requests that the trainer's token opens."""

    daemon: Daemon
    requests: dict[type, Request]
    audit: Path
    damaged: Path

    @property
    def http(self) -> str:
        return self.daemon.serving.http or ""

    def visit(self, token: str | None) -> Visitor:
        return Visitor(self.daemon.serving.address, token)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path, photo_tars: Path) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    settings = {
        "token_file": write_all_tokens(folder),
        "audit_log": folder / "audit.jsonl",
        "state": make_state(folder / "state"),
    }
    damaged = folder / "secret-place" / "photos"
    shutil.copytree(photo_folder, damaged)
    datasets = {"photos": photo_folder, "others": photo_tars, "damaged": damaged}
    index = hw.open(photo_folder).index
    ids = index.ids[:2].tobytes()
    keep_selection(folder / "state", index.version)
    with running_daemon(datasets, http="127.0.0.1:0", **settings) as daemon:
        # Known before strangers use up what this address may get wrong.
        for name in ("trainer", "labeller", "elsewhere"):
            with Visitor(daemon.serving.address, SECRETS[name]) as visitor:
                visitor.act("health")
        yield Door(daemon, make_requests(daemon, "photos", ids), settings["audit_log"], damaged)


def test_what_a_token_cannot_read_is_not_among_the_datasets(door: Door) -> None:
    for name, visible in (
        ("trainer", {"photos", "others", "damaged"}),
        ("elsewhere", {"others"}),
        ("labeller", set()),
    ):
        with door.visit(SECRETS[name]) as visitor:
            welcome = messages.decode(messages.Welcome, visitor.act("hello", BODIES["hello"]))
            assert set(welcome.datasets) == visible
            if name != "labeller":
                assert set(msgspec.json.decode(visitor.act("status"))["datasets"]) == visible


@pytest.mark.parametrize("caller", UNKNOWN_CALLERS)
@pytest.mark.parametrize("path", [*(path for _, path in routes()), "/", "/nothing", "/metrics/..%2fhealth"])
def test_no_route_answers_an_unknown_caller(door: Door, path: str, caller: str) -> None:
    for verb in VERBS:
        code, body = ask(door.http, verb, path, UNKNOWN_CALLERS[caller])
        assert code == 401 or (verb == "CONNECT" and code == 400), (verb, code, body)
        assert b"headwater_" not in body
        assert not [word for word in INTERNALS if word.encode() in body]


@pytest.mark.parametrize("path", [path for verb, path in routes() if verb == "GET"])
def test_a_page_names_no_dataset(door: Door, path: str) -> None:
    for token in (SECRETS["trainer"], SECRETS["elsewhere"]):
        assert ask(door.http, "GET", path, token)[0] == 200
        assert b"photos" not in ask(door.http, "GET", path, token)[1]


@pytest.mark.parametrize(("own", "path"), routes())
def test_a_route_answers_one_verb(door: Door, own: str, path: str) -> None:
    for verb in VERBS[2 if own == "GET" else 0 :]:
        if verb != own:
            assert ask(door.http, verb, path, SECRETS["trainer"])[0] in (400, 404, 405), verb


@pytest.mark.parametrize("caller", UNKNOWN_CALLERS)
def test_the_client_says_refused(door: Door, caller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWATER_TOKEN", raising=False)
    address, token = door.daemon.serving.address, UNKNOWN_CALLERS[caller]
    for attempt in (lambda: hw.open(f"{address}/photos", token=token), lambda: status(address, token=token)):
        with pytest.raises(Refused) as caught:
            attempt()
        assert caught.value.exit_code == 4
        assert str(token) not in str(caught.value)


def test_the_client_cannot_tell_a_forbidden_dataset_from_one_that_is_not_there(door: Door) -> None:
    said = []
    for name in ("photos", "nothing"):
        with pytest.raises(DatasetNotFound) as caught:
            hw.open(f"{door.daemon.serving.address}/{name}", token=SECRETS["elsewhere"])
        said.append(str(caught.value).replace(name, "NAME"))
    assert said[0] == said[1]
    with pytest.raises(DatasetNotFound, match="this token may read none"):
        hw.open(f"{door.daemon.serving.address}/photos", token=SECRETS["labeller"])


def test_errors_of_samples_do_not_say_where_the_data_lies(door: Door) -> None:
    dataset = hw.open(f"{door.daemon.serving.address}/damaged", token=SECRETS["trainer"])
    gone, short = (door.damaged / dataset.index.key(position) for position in (0, 1))
    gone.unlink()
    short.write_bytes(short.read_bytes()[:50])
    for position in (0, 1):
        with pytest.raises(HeadwaterError) as caught:
            dataset.store.read(dataset.positions(slice(position, position + 1)))
        said = "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert dataset.index.key(position) in said
        assert door.damaged.parent.name not in said
    dataset.close()


class Broken:
    """A source in which the unforeseen happens, in what it is asked for."""

    def __init__(self, source: Any, broken: str) -> None:
        self._source, self._broken = source, broken

    def __getattr__(self, name: str) -> Any:
        if name == self._broken:
            fail_unforeseen()
        return getattr(self._source, name)


def fail_unforeseen() -> float:
    raise RuntimeError("open sesame: /secret-place/photos")


@pytest.mark.parametrize(
    ("broken", "kind"), [("index", IndexRequest), ("blocks", BlocksRequest), ("read", ReadRequest)]
)
def test_what_nobody_foresaw_is_not_told_to_whoever_asks_for_a_stream(
    photo_folder: Path, broken: str, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the index and the blocks before the stream begins, of samples within it."""
    with running_daemon({"photos": photo_folder}) as daemon:
        store = daemon._talk._desk.datasets["photos"]
        requests = make_requests(daemon, "photos", store.index.ids[:2].tobytes())
        store.source = Broken(store.source, broken)
        with Visitor(daemon.serving.address) as visitor, pytest.raises(flight.FlightError) as caught:
            visitor.get(requests[kind])
    expect_nothing_told(text_of(caught.value), caplog.text)


def test_what_nobody_foresaw_is_not_told_to_whoever_asks_for_an_action(
    photo_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_daemon({"photos": photo_folder}) as daemon:
        daemon._ledger.watch("headwater_clients", fail_unforeseen)
        with Visitor(daemon.serving.address) as visitor, pytest.raises(flight.FlightError) as caught:
            visitor.act("status")
    expect_nothing_told(text_of(caught.value), caplog.text)


def expect_nothing_told(told: str, log: str) -> None:
    assert "the store failed; its log says why" in told
    assert not [word for word in (*INTERNALS, "RuntimeError", "sesame", "secret-place") if word in told]
    assert "open sesame: /secret-place/photos" in log, "the store's own log must hold it"


def test_guessing_is_slowed_down_and_runs_that_are_known_go_on(door: Door) -> None:
    for number in range(FAILURES):
        with door.visit(f"guess-{number:020d}") as guesser, pytest.raises(flight.FlightUnauthenticatedError):
            guesser.act("health")
    too_many = pytest.raises(flight.FlightUnauthenticatedError, match="too many failed attempts")
    with door.visit(SECRETS["late"]) as late, too_many:
        late.act("health")
    with pytest.raises(Refused, match=r"too many failed attempts from 127\.0\.0\.1; try again in \d s"):
        hw.open(f"{door.daemon.serving.address}/photos", token=SECRETS["late"])
    with door.visit(SECRETS["trainer"]) as known:
        assert json.loads(known.act("health")) == {"status": "ok"}


def test_refusals_are_in_the_audit_log_without_their_tokens(door: Door) -> None:
    with ExitStack() as stack, pytest.raises(flight.FlightUnauthorizedError):
        stack.enter_context(door.visit(SECRETS["elsewhere"])).get(door.requests[get_args(Request)[0]])
    door.daemon.tick()
    written = door.audit.read_text()
    lines: list[dict[str, Any]] = [json.loads(line) for line in written.splitlines()]
    assert {"connect", "refused"} <= {line["action"] for line in lines}
    assert any(line["caller"] == "elsewhere" and line["outcome"] == "dataset" for line in lines)
    assert not [secret for secret in SECRETS.values() if secret in written]


def lines_of(door: Door) -> list[dict[str, Any]]:
    door.daemon.tick()
    return [json.loads(line) for line in door.audit.read_text().splitlines()]


def test_every_download_and_what_an_operator_did_is_in_the_audit_log(door: Door) -> None:
    with door.visit(SECRETS["trainer"]) as visitor:
        for request in door.requests.values():
            visitor.get(request)
        visitor.act("status")
        visitor.act("release", messages.encode(messages.Release([3, 77])))
        visitor.act("release", messages.encode(messages.Release()))
        with pytest.raises(flight.FlightError):
            visitor.act("release", b"\xc1")
        with pytest.raises(flight.FlightError):
            visitor.get(messages.IndexRequest("photos", "another version", "c"))
    found = [line for line in lines_of(door) if line["caller"] == "trainer"]
    for action in ("read", "index", "blocks", "features"):
        wanted = {"action": action, "dataset": "photos", "outcome": "ok"}
        (line, *_) = [each for each in found if wanted.items() <= each.items()]
        assert line["bytes"] > 0 or action == "blocks"
    assert any(line["action"] == "index" and line["outcome"] == "DatasetStale" for line in found)
    assert any(line["action"] == "status" and line["requests"] for line in found)
    releases = [(line["ids"], line["outcome"]) for line in found if line["action"] == "release"]
    assert {("3,77", "ok"), ("all", "ok"), ("unreadable", "HeadwaterError")} <= set(releases)


def test_blocks_count_among_the_bytes_that_were_sent(photo_parquet: Path) -> None:
    def sent() -> int:
        counted: Any = status(daemon.serving.address)["metrics"]
        return int(counted["headwater_bytes_sent_total"]["index"])

    with (
        running_daemon({"photos": photo_parquet}) as daemon,
        closing(hw.open(daemon.serving.address, progress=False)) as data,
    ):
        before, blocks = sent(), data.store.blocks()
        assert blocks is not None
        assert sent() - before == blocks.nbytes > 0


def test_a_stream_that_is_never_begun_or_refused_is_not_under_way(door: Door) -> None:
    with door.visit(SECRETS["trainer"]) as visitor, pytest.raises(flight.FlightError):
        visitor.get(messages.IndexRequest("photos", "another version", "c"))
    assert door.daemon._talk._idle.wait_for(lambda: not door.daemon._talk._under_way, 0)
