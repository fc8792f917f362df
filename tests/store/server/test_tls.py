from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.flight as flight
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from headwater.errors import HeadwaterError, Refused, WrongUse
from headwater.store.server.tls import TlsFiles, check_exposure, ends_of, is_local


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write_files(folder: Path, authority: trustme.CA, *, not_after: datetime | None = None) -> TlsFiles:
    issued = authority.issue_cert("localhost", "127.0.0.1", not_after=not_after)
    folder.mkdir(exist_ok=True)
    cert, key, client_ca = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
    cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key.touch(0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    client_ca.write_bytes(authority.cert_pem.bytes())
    return TlsFiles(cert, key, client_ca)


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> TlsFiles:
    return write_files(tmp_path, authority)


def test_no_certificate_is_no_tls() -> None:
    none = TlsFiles(None, None, None)
    none.check()
    assert not none
    assert none.flight_arguments() == {}
    assert none.ssl_context() is None


@pytest.mark.parametrize(
    ("cert", "key", "client_ca", "lacks"),
    [
        ("c", None, None, "without --tls-key"),
        (None, "k", None, "without --tls-cert"),
        (None, None, "a", "without --tls-cert and --tls-key"),
    ],
)
def test_half_of_the_files_is_a_mistake(
    cert: str | None, key: str | None, client_ca: str | None, lacks: str
) -> None:
    with pytest.raises(WrongUse, match=lacks):
        TlsFiles(*(Path(name) if name else None for name in (cert, key, client_ca)))


def test_good_files_are_good(files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    files.check()
    assert files
    assert caplog.records == []
    arguments = files.flight_arguments()
    assert arguments["verify_client"] is True
    assert arguments["root_certificates"].startswith(b"-----BEGIN CERTIFICATE")
    assert set(TlsFiles(files.cert, files.key).flight_arguments()) == {"tls_certificates"}


def test_flight_speaks_mutual_tls_with_these_arguments(files: TlsFiles, authority: trustme.CA) -> None:
    client = authority.issue_cert("client")
    root = authority.cert_pem.bytes()
    with flight.FlightServerBase("grpc+tls://127.0.0.1:0", **files.flight_arguments()) as server:
        uri = f"grpc+tls://127.0.0.1:{server.port}"
        chain = b"".join(pem.bytes() for pem in client.cert_chain_pems)
        known = {"cert_chain": chain, "private_key": client.private_key_pem.bytes()}
        options = flight.FlightCallOptions(timeout=5)
        with (
            flight.FlightClient(uri, tls_root_certs=root, **known) as friend,
            pytest.raises(NotImplementedError),  # what a bare server answers whom it lets in
        ):
            list(friend.list_flights(options=options))
        with (
            flight.FlightClient(uri, tls_root_certs=root) as stranger,
            pytest.raises(flight.FlightUnavailableError),
        ):
            list(stranger.list_flights(options=options))


@pytest.mark.parametrize("known", [True, False])
def test_the_context_asks_for_a_client_certificate(
    files: TlsFiles, authority: trustme.CA, known: bool
) -> None:
    client = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    if known:
        authority.issue_cert("client").configure_cert(client)
    server = files.ssl_context()
    assert server is not None
    assert greet(server, client) is known


def greet(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Whether the server completes the handshake."""
    ours, theirs = socket.socketpair()
    done = []

    def serve() -> None:
        try:
            with server.wrap_socket(ours, server_side=True) as wrapped:
                wrapped.sendall(b"!")
                done.append(True)
        except ssl.SSLError:
            ours.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(theirs, server_hostname="localhost") as wrapped:
            wrapped.recv(1)
    except OSError:
        theirs.close()
    thread.join()
    return bool(done)


def test_old_tls_is_not_spoken(files: TlsFiles) -> None:
    context = files.ssl_context()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o644, 0o660, 0o602])
def test_a_key_that_others_may_use_is_refused(files: TlsFiles, mode: int) -> None:
    assert files.key is not None
    files.key.chmod(mode)
    for use in (files.check, files.flight_arguments, files.ssl_context):
        with pytest.raises(Refused, match=f"mode {mode:03o}.*chmod 600"):
            use()


def test_a_group_may_read_the_key(files: TlsFiles) -> None:
    assert files.key is not None
    files.key.chmod(0o640)
    files.check()


@pytest.mark.parametrize("which", ["cert", "key", "client_ca"])
@pytest.mark.parametrize("content", [None, b"", b"not pem", b"\xff\x00" * 100])
def test_files_that_are_missing_or_no_pem_are_named(
    files: TlsFiles, which: str, content: bytes | None
) -> None:
    path: Path = getattr(files, which)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for use in (files.check, files.flight_arguments, files.ssl_context):
        with pytest.raises(WrongUse, match=path.name):
            use()


def test_a_folder_is_no_certificate(files: TlsFiles, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="is not a file"):
        TlsFiles(tmp_path, files.key).check()


def test_certificate_and_key_of_two_pairs_are_told_apart(
    files: TlsFiles, tmp_path: Path, authority: trustme.CA
) -> None:
    other = write_files(tmp_path / "other", authority)
    with pytest.raises(WrongUse, match="do not belong together"):
        TlsFiles(files.cert, other.key).check()


def test_an_encrypted_key_is_refused_instead_of_asked_about(files: TlsFiles) -> None:
    assert files.key is not None
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(WrongUse, match="is encrypted"):
        files.check()


END = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.mark.parametrize("end", [END, END.replace(year=2049), END.replace(year=2050), END.replace(year=2120)])
def test_the_end_of_a_certificate_is_read(tmp_path: Path, authority: trustme.CA, end: datetime) -> None:
    cert = write_files(tmp_path, authority, not_after=end).cert
    assert cert is not None
    assert ends_of(cert) == [end]


def test_a_chain_ends_with_its_first_certificate_to_end(tmp_path: Path, authority: trustme.CA) -> None:
    files = write_files(tmp_path, authority, not_after=END)
    sooner = write_files(tmp_path / "sooner", authority, not_after=END - timedelta(days=100))
    assert files.cert is not None
    assert sooner.cert is not None
    files.cert.write_bytes(files.cert.read_bytes() + sooner.cert.read_bytes())
    assert ends_of(files.cert) == [END, END - timedelta(days=100)]
    with pytest.raises(Refused, match="expired on 2031-01-26"):
        files.check(now=(END - timedelta(days=50)).timestamp())


@pytest.mark.parametrize(("days", "warned"), [(14.1, False), (13.9, True), (0.001, True)])
def test_a_certificate_that_ends_soon_is_warned_of(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture, days: float, warned: bool
) -> None:
    files = write_files(tmp_path, authority, not_after=END)
    files.check(now=(END - timedelta(days=days)).timestamp())
    assert ("expires on 2031-05-06 07:08 UTC" in caplog.text) is warned


def test_a_certificate_that_has_ended_is_refused(tmp_path: Path, authority: trustme.CA) -> None:
    files = write_files(tmp_path, authority, not_after=END)
    with pytest.raises(Refused, match="expired on 2031-05-06 07:08 UTC"):
        files.check(now=END.timestamp())


def test_a_truncated_certificate_never_breaks_the_reading(files: TlsFiles, tmp_path: Path) -> None:
    assert files.cert is not None
    first = files.cert.read_text().partition("-----END")[0]
    der = ssl.PEM_cert_to_DER_cert(first + "-----END CERTIFICATE-----")
    whole = ends_of(files.cert)
    path = tmp_path / "cut.pem"
    for length in range(0, len(der), 3):
        path.write_text(ssl.DER_cert_to_PEM_cert(der[:length]))
        try:
            assert ends_of(path) == whole
        except WrongUse:
            continue


LOCAL = ["127.0.0.1", "127.9.9.9", "127.1", "::1", "[::1]", "localhost", "unix:/run/x", "::ffff:127.0.0.1"]
BEYOND = ["0.0.0.0", "::", "[::]", "", "0", "192.0.2.1", "::ffff:192.0.2.1", "fe80::1", "126.255.255.255"]


@pytest.mark.parametrize("host", LOCAL)
def test_loopback_needs_nothing(host: str, caplog: pytest.LogCaptureFixture) -> None:
    assert is_local(host)
    check_exposure(host, tls=False, tokens=False, plaintext=False)
    assert caplog.records == []


@pytest.mark.parametrize("host", BEYOND)
@pytest.mark.parametrize(
    ("tls", "tokens", "lacks"),
    [(False, False, "a token and TLS"), (True, False, "a token"), (False, True, "TLS")],
)
def test_beyond_loopback_token_and_tls_are_needed(host: str, tls: bool, tokens: bool, lacks: str) -> None:
    assert not is_local(host)
    with pytest.raises(Refused, match=f"without {lacks}; give .*--plaintext") as caught:
        check_exposure(host, tls=tls, tokens=tokens, plaintext=False)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("plaintext", [True, False])
def test_token_and_tls_are_enough(caplog: pytest.LogCaptureFixture, plaintext: bool) -> None:
    check_exposure("0.0.0.0", tls=True, tokens=True, plaintext=plaintext)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("tokens", "danger"), [(True, "take the tokens"), (False, "read and change what it serves")]
)
def test_plaintext_is_a_choice_that_is_warned_of(
    caplog: pytest.LogCaptureFixture, tokens: bool, danger: str
) -> None:
    check_exposure("0.0.0.0", tls=False, tokens=tokens, plaintext=True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert danger in caplog.text


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 300, "bad host"])
def test_a_host_that_is_none_is_named(host: str) -> None:
    with pytest.raises(HeadwaterError, match="has no address here"):
        check_exposure(host, tls=False, tokens=False, plaintext=False)
