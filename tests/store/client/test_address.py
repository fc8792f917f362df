"""Addresses are read as people write them; tokens come from three places and are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import WrongUse
from headwater.store.client.address import PORT, Address, Secret, is_store


@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("grpc://host:1234/photos", Address("grpc", "host", 1234, "photos")),
        ("grpc+tls://stor-a.example.org/photos", Address("grpc+tls", "stor-a.example.org", PORT, "photos")),
        ("GRPC+TLS://Host:9/a.b-c_d", Address("grpc+tls", "host", 9, "a.b-c_d")),
        ("grpc://[::1]:7/x", Address("grpc", "::1", 7, "x")),
        ("grpc://10.0.0.1", Address("grpc", "10.0.0.1", PORT)),
        ("grpc://10.0.0.1:5/", Address("grpc", "10.0.0.1", 5)),
    ],
)
def test_addresses(uri: str, wanted: Address) -> None:
    assert is_store(uri)
    assert Address.parse(uri) == wanted
    assert Address.parse(str(wanted)) == wanted


def test_how_an_address_is_written() -> None:
    address = Address.parse("grpc+tls://[fe80::1]:7/x")
    assert (address.place, address.location) == ("[fe80::1]:7", "grpc+tls://[fe80::1]:7")
    assert str(address) == "grpc+tls://[fe80::1]:7/x"
    assert str(Address.parse("grpc://h")) == f"grpc://h:{PORT}"


@pytest.mark.parametrize(
    "uri",
    [
        "grpc://",
        "grpc:///photos",
        "http://host/photos",
        "host:7077/photos",
        "",
        "grpc://host:99999/x",
        "grpc://host:port/x",
        "grpc://[::1/x",
        "grpc://host/a/b",
        "grpc://host/../etc",
        "grpc://host/%2e%2e%2fetc",
        "grpc://host/a%2fb",
        "grpc://host/-x",
        "grpc://host/x%00",
        "grpc://host/" + "x" * 65,
        "grpc://host/x?token=1",
        "grpc://host/x#y",
    ],
)
def test_what_is_no_address(uri: str) -> None:
    with pytest.raises(WrongUse):
        Address.parse(uri)


def test_a_secret_in_an_address_is_refused_and_not_repeated() -> None:
    for uri in ("grpc://user:hunter2@host/x", "grpc://hunter2@host/x"):
        with pytest.raises(WrongUse, match="pass the token as token=") as caught:
            Address.parse(uri)
        assert "hunter2" not in str(caught.value)
        assert "host" in str(caught.value)


@pytest.mark.parametrize("uri", ["photos/", "s3://bucket/x", "grpcs://host/x", 7, None, Path("grpc:")])
def test_what_is_data_is_no_store(uri: object) -> None:
    assert not is_store(uri)


def test_a_token_given_in_a_file_or_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-file\n")
    named = {"HEADWATER_TOKEN": "of-name", "HEADWATER_TOKEN_FILE": str(file)}

    def header(secret: Secret) -> str:
        ((name, value),) = secret.headers
        assert name == b"authorization"
        return value.decode()

    assert header(Secret(" given ", named)) == "Bearer given"
    assert header(Secret(file, named)) == "Bearer of-file"
    assert header(Secret(None, named)) == "Bearer of-name"
    assert header(Secret(None, {"HEADWATER_TOKEN_FILE": str(file)})) == "Bearer of-file"
    assert Secret(None, {}).headers == []
    assert Secret(None, {"HEADWATER_TOKEN": ""}).headers == []


@pytest.mark.parametrize("text", ["", " ", "two words", "two\nlines", "umläut", "nul\0", "a\r\nx-admin: 1"])
def test_a_token_that_is_none(text: str, tmp_path: Path) -> None:
    file = _written(tmp_path, text)
    for given in (text, file):
        with pytest.raises(WrongUse) as caught:
            Secret(given, {})
        assert not text.strip() or text not in str(caught.value)


def _written(folder: Path, text: str) -> Path:
    file = folder / "token"
    file.write_text(text, "utf-8")
    return file


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="cannot be read as a token"):
        Secret(tmp_path / "nothing", {})


def test_a_file_is_read_again(tmp_path: Path) -> None:
    file = _written(tmp_path, "old")
    secret = Secret(file, {})
    assert not secret.renew()
    file.write_text("new")
    assert secret.renew()
    assert not secret.renew()
    assert secret.headers == [(b"authorization", b"Bearer new")]


@pytest.mark.parametrize(
    "spoil", [lambda f: f.unlink(), lambda f: f.write_text(""), lambda f: f.write_bytes(b"\xff")]
)
def test_a_file_that_is_spoilt_later_leaves_the_token_as_it_was(spoil: object, tmp_path: Path) -> None:
    """Whoever rotates a token may write the file in two strokes."""
    file = _written(tmp_path, "old")
    secret = Secret(file, {})
    assert callable(spoil)
    spoil(file)
    assert not secret.renew()
    assert secret.headers == [(b"authorization", b"Bearer old")]
    file.write_text("new")
    assert secret.renew()


def test_a_token_that_was_given_stays() -> None:
    assert not Secret("given", {}).renew()


def test_a_token_is_not_shown() -> None:
    assert repr(Secret("hunter2", {})) == str(Secret("hunter2", {})) == "Secret(set)"
    assert repr(Secret(None, {})) == "Secret(none)"
