"""Real stores and clients: TLS and mutual TLS, tokens that change, what leaks, and what will not start."""

from __future__ import annotations

import json
import shutil
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.flight as flight
import pytest

import headwater as hw
from headwater import cli
from headwater.errors import Refused, Unreachable, WrongUse
from headwater.store.client.link import Link
from headwater.store.client.status import status
from headwater.store.server.config import ServeConfig
from headwater.store.server.daemon import Daemon
from stores import Certificates, StoreProcess, make_certificates, running_daemon, write_tokens
from visitors import Visitor, ask

NAMES = ("trainer", "environment", "leaving", "old", "new", "wrong")
TRAINER, ENVIRONMENT, LEAVING, OLD, NEW, WRONG = (f"{name}-{'x' * 24}" for name in NAMES)
DEADLINE_SECONDS = 1.0
GRACE_SECONDS = 1.5


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@dataclass
class Fortress:
    """A store in a process of its own with everything on: tokens, mutual TLS, HTTP, an audit log."""

    store: StoreProcess
    certificates: Certificates
    tokens: Path
    audit: Path
    photos: Path

    @property
    def uri(self) -> str:
        return f"{self.store.address}/photos"

    def fetch(self, path: str) -> bytes:
        """A page over HTTPS."""
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        context.load_cert_chain(self.certificates.client_cert, self.certificates.client_key)
        status, body = ask(self.store.http, "GET", path, TRAINER, context=context)
        assert status == 200
        return body


@pytest.fixture(scope="module")
def fortress(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, photo_folder: Path
) -> Iterator[Fortress]:
    folder = tmp_path_factory.mktemp("fortress")
    tokens, audit = write_tokens(folder, trainer={"secret": TRAINER}), folder / "audit.jsonl"
    with StoreProcess(
        {"photos": photo_folder},
        environment={"HEADWATER_TOKEN": ENVIRONMENT},
        http="127.0.0.1:0",
        token_file=tokens,
        audit_log=audit,
        **certificates.serve_mutual,
    ) as store:
        yield Fortress(store, certificates, tokens, audit, photo_folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path) -> Iterator[tuple[str, Path]]:
    """A store without TLS in this process, and its token file."""
    folder = tmp_path_factory.mktemp("plain")
    tokens = write_tokens(
        folder, trainer={"secret": TRAINER}, leaving={"secret": LEAVING}, rotating={"secret": OLD}
    )
    with running_daemon({"photos": photo_folder}, token_file=tokens) as daemon:
        yield daemon.serving.address, tokens


def expect_unreachable(uri: str, link: Link) -> str:
    """Fails within the deadline, and says so."""
    begun = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        hw.open(uri, token=TRAINER, link=replace(link, deadline_seconds=DEADLINE_SECONDS))
    assert time.monotonic() - begun < DEADLINE_SECONDS + GRACE_SECONDS
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_mutual_tls_end_to_end(fortress: Fortress) -> None:
    local = hw.open(fortress.photos)
    with closing(hw.open(fortress.uri, token=TRAINER, link=fortress.certificates.link_mutual())) as remote:
        assert remote.version == local.version
        positions = np.arange(len(local))
        mine, theirs = local.store.read(positions), remote.store.read(positions)
        assert [bytes(file) for file in mine] == [bytes(file) for file in theirs]


def test_tls_alone_needs_no_certificate_of_the_client(
    certificates: Certificates, photo_folder: Path, tmp_path: Path
) -> None:
    tokens = write_tokens(tmp_path, trainer={"secret": TRAINER})
    with running_daemon({"photos": photo_folder}, token_file=tokens, **certificates.serve) as daemon:
        uri = f"{daemon.serving.address}/photos"
        assert uri.startswith("grpc+tls://")
        with closing(hw.open(uri, token=TRAINER, link=certificates.link())) as dataset:
            assert len(dataset.store.read(np.arange(3))) == 3
        with pytest.raises(Refused, match="token not accepted"):
            hw.open(uri, token=WRONG, link=certificates.link())
        assert "issuer certificate" in expect_unreachable(uri, Link(ca=certificates.other_ca))


STRANGERS: dict[str, dict[str, str]] = {
    "no certificate": {"ca": "ca"},
    "another authority's certificate": {"ca": "ca", "cert": "other_cert", "key": "other_key"},
    "trust in another authority": {"ca": "other_ca", "cert": "client_cert", "key": "client_key"},
    "trust in the system's authorities": {"cert": "client_cert", "key": "client_key"},
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_mutual_tls_keeps_strangers_out(fortress: Fortress, stranger: str) -> None:
    files = {name: getattr(fortress.certificates, which) for name, which in STRANGERS[stranger].items()}
    text = expect_unreachable(fortress.uri, Link(**files))
    assert fortress.store.address in text
    assert "Link(ca=...) or --ca" in text


def test_plaintext_does_not_reach_a_store_with_tls(fortress: Fortress) -> None:
    assert "grpc+tls:// with TLS" in expect_unreachable(fortress.uri.replace("grpc+tls", "grpc"), Link())


def test_tls_does_not_reach_a_store_without(plain: tuple[str, Path], certificates: Certificates) -> None:
    uri = plain[0].replace("grpc://", "grpc+tls://") + "/photos"
    assert "grpc:// without" in expect_unreachable(uri, certificates.link())


def test_http_has_the_same_certificates(fortress: Fortress) -> None:
    """Whom it keeps out is in `test_every_door`."""
    assert json.loads(fortress.fetch("/health")) == {"status": "ok"}
    assert b"headwater_requests_total" in fortress.fetch("/metrics")


def test_without_a_certificate_a_giant_ticket_is_not_even_received(fortress: Fortress) -> None:
    store = psutil.Process(fortress.store.pid)
    before, read = store.memory_info().rss, store.io_counters().read_chars
    root = fortress.certificates.ca.read_bytes()
    with (
        Visitor(fortress.store.address, TRAINER, seconds=2.0, tls_root_certs=root) as visitor,
        pytest.raises((flight.FlightUnavailableError, flight.FlightTimedOutError)),
    ):
        visitor.get(bytes(64 << 20))
    assert store.memory_info().rss - before < 16 << 20
    assert store.io_counters().read_chars - read < 16 << 20
    assert status(fortress.store.address, token=TRAINER, link=fortress.certificates.link_mutual())


def run_cli(*words: object) -> int:
    return cli.run([str(word) for word in words])


CODES = {"no token": (None, 4), "wrong token": (WRONG, 4), "right token": (TRAINER, 0)}


@pytest.mark.parametrize("caller", CODES)
@pytest.mark.parametrize("verb", ["ls", "top"])
def test_exit_codes_of_the_command_line(
    plain: tuple[str, Path], verb: str, caller: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    token, code = CODES[caller]
    monkeypatch.delenv("HEADWATER_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("HEADWATER_TOKEN", token)
    words = ["ls", f"{plain[0]}/photos"] if verb == "ls" else ["top", plain[0], "--once"]
    assert run_cli(*words) == code
    said = capsys.readouterr()
    assert ("refuses" in said.err) == (code == 4)
    assert not token or token not in said.out + said.err


def test_top_takes_certificates_and_a_token_file(fortress: Fortress, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "token").write_text(f"{TRAINER}\n")
    files = fortress.certificates
    words = ["top", fortress.store.address, "--once", "--token-file", tmp_path / "token", "--ca", files.ca]
    assert run_cli(*words, "--cert", files.client_cert, "--key", files.client_key) == 0
    assert "photos: 36 samples" in capsys.readouterr().out


@dataclass(frozen=True)
class Exposure:
    """Where a store would listen with what, and whether it may."""

    listen: str
    token: bool = False
    tls: bool = False
    plaintext: bool = False
    http: str | None = None
    allowed: bool = False


EXPOSURES = [
    Exposure("0.0.0.0:0"),
    Exposure("0.0.0.0:0", token=True),
    Exposure("0.0.0.0:0", tls=True),
    Exposure("[::]:0"),
    Exposure("127.0.0.1:0", http="0.0.0.0:0"),
    Exposure("127.0.0.1:0", allowed=True),
    Exposure("[::1]:0", allowed=True),
    Exposure("0.0.0.0:0", token=True, tls=True, allowed=True),
    Exposure("0.0.0.0:0", plaintext=True, allowed=True),
    Exposure("0.0.0.0:0", token=True, plaintext=True, allowed=True),
]


@pytest.mark.parametrize("exposure", EXPOSURES, ids=str)
def test_where_a_store_may_listen(
    exposure: Exposure, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWATER_TOKEN", raising=False)
    token = write_tokens(tmp_path, trainer={"secret": TRAINER}) if exposure.token else None
    config = ServeConfig(
        listen=exposure.listen,
        http=exposure.http,
        token_file=token,
        plaintext=exposure.plaintext,
        **(certificates.serve if exposure.tls else {}),  # type: ignore[arg-type]
    )
    if exposure.allowed:
        Daemon(config)
    else:
        with pytest.raises(Refused, match="beyond loopback"):
            Daemon(config)


def test_serve_beyond_loopback_exits_with_4(photo_folder: Path, capsys: Any) -> None:
    assert run_cli("serve", photo_folder, "--listen", "0.0.0.0:0") == 4
    assert "--plaintext on a closed network" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_token_file_that_others_may_read_is_refused(
    photo_folder: Path, tmp_path: Path, mode: int, capsys: Any
) -> None:
    tokens = write_tokens(tmp_path, trainer={"secret": TRAINER})
    tokens.chmod(mode)
    assert run_cli("serve", photo_folder, "--listen", "127.0.0.1:0", "--token-file", tokens) == 4
    said = capsys.readouterr().err
    assert f"chmod 600 {tokens}" in said
    assert TRAINER not in said


def test_a_key_that_is_not_private_or_not_there_is_refused(
    photo_folder: Path, tmp_path: Path, certificates: Certificates, capsys: Any
) -> None:
    key = tmp_path / "key.pem"
    words = [
        "serve",
        photo_folder,
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        certificates.cert,
        "--tls-key",
        key,
    ]
    assert run_cli(*words) == WrongUse.exit_code
    assert "cannot be read" in capsys.readouterr().err
    shutil.copy(certificates.key, key)
    key.chmod(0o644)
    assert run_cli(*words) == 4
    assert f"chmod 600 {key}" in capsys.readouterr().err


def wait_until_refused(address: str, token: str) -> None:
    """The store looks at its file once a second."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            status(address, token=token)
        except Refused:
            return
    pytest.fail("the old token is still good")


def test_tokens_are_rotated_without_a_restart_and_a_run_goes_on(
    plain: tuple[str, Path], tmp_path: Path
) -> None:
    address, tokens = plain
    mine = tmp_path / "token"
    mine.write_text(OLD)
    with closing(hw.open(f"{address}/photos", token=mine)) as dataset:
        before = [bytes(file) for file in dataset.store.read(np.arange(3))]
        mine.write_text(NEW)
        kept = {"trainer": {"secret": TRAINER}, "leaving": {"secret": LEAVING}}
        write_tokens(tokens.parent, **kept, rotating={"secret": NEW})
        wait_until_refused(address, OLD)
        assert [bytes(file) for file in dataset.store.read(np.arange(3))] == before
    assert status(address, token=NEW)["status"] == "ok"
    with pytest.raises(Refused, match="token not accepted"):
        hw.open(f"{address}/photos", token=OLD)


def test_a_run_whose_token_was_taken_away_is_refused(plain: tuple[str, Path]) -> None:
    address, tokens = plain
    with closing(hw.open(f"{address}/photos", token=LEAVING)) as dataset:
        write_tokens(tokens.parent, trainer={"secret": TRAINER})
        wait_until_refused(address, LEAVING)
        with pytest.raises(Refused, match="token not accepted"):
            dataset.store.read(np.arange(3))


def test_the_token_of_the_environment(fortress: Fortress, monkeypatch: pytest.MonkeyPatch) -> None:
    link = fortress.certificates.link_mutual()
    monkeypatch.setenv("HEADWATER_TOKEN", ENVIRONMENT)
    with closing(hw.open(fortress.uri, link=link)) as dataset:
        assert len(dataset) == 36
    monkeypatch.delenv("HEADWATER_TOKEN")
    with pytest.raises(Refused, match="no token"):
        hw.open(fortress.uri, link=link)


def test_no_token_leaks(fortress: Fortress, capsys: Any, tmp_path: Path) -> None:
    """Neither from what the store says, nor from what the system shows of its processes."""
    link = fortress.certificates.link_mutual()
    with pytest.raises(Refused) as refusal:
        hw.open(fortress.uri, token=WRONG, link=link)
    said = json.dumps(status(fortress.store.address, token=TRAINER, link=link)).encode()
    said += fortress.fetch("/metrics") + fortress.fetch("/health")
    assert run_cli("serve", fortress.photos, "--token-file", fortress.tokens, "--show-config") == 0
    said += capsys.readouterr().out.encode()
    store = psutil.Process(fortress.store.pid)
    workers = store.children(recursive=True)
    assert workers
    for process in (store, *workers):
        said += Path(f"/proc/{process.pid}/cmdline").read_bytes()
    for worker in workers:
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
        assert b"PATH=" in environment
        assert b"HEADWATER_TOKEN" not in environment
        said += environment
    said += "".join([str(refusal.value), *getattr(refusal.value, "__notes__", [])]).encode()
    said += fortress.store.stderr.encode()
    ended = fortress.store.terminate()
    assert ended.code == 0
    said += ended.stderr.encode() + fortress.audit.read_bytes()
    assert b"trainer" in said, "the audit log names its callers"
    for secret in (TRAINER, ENVIRONMENT, WRONG):
        assert secret.encode() not in said
