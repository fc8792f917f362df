from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from headwater.cli import serve
from headwater.errors import WrongUse
from headwater.store.server.config import DatasetConfig, ServeConfig, load
from headwater.store.server.daemon import Serving

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
app.command("serve")(serve.serve)


def run(*words: object) -> None:
    app([str(word) for word in words], standalone_mode=False)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


FLAGS = {
    "listen": "0.0.0.0:0",
    "http": "[::1]:7078",
    "cores": "1.5",
    "memory": "2GiB",
    "token-file": "tokens.toml",
    "tls-cert": "a.crt",
    "tls-key": "a.key",
    "tls-client-ca": "ca.crt",
    "audit-log": "audit.jsonl",
    "state": "kept",
    "labels": "postgresql+psycopg://store@db/labels",
    "feature-bytes": "3GB",
}


def test_every_flag_arrives(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for name, value in FLAGS.items() for word in (f"--{name}", value)]
    run("photos", "named=s3://bucket/x", *words, "--plaintext", "--show-config")
    (place / "shown.toml").write_text(capsys.readouterr().out)
    assert load(place / "shown.toml", {}) == ServeConfig(
        listen="0.0.0.0:0",
        http="[::1]:7078",
        cores=1.5,
        memory=2 << 30,
        token_file=place / "tokens.toml",
        tls_cert=place / "a.crt",
        tls_key=place / "a.key",
        tls_client_ca=place / "ca.crt",
        plaintext=True,
        audit_log=place / "audit.jsonl",
        state=place / "kept",
        labels="postgresql+psycopg://store@db/labels",
        feature_bytes=3_000_000_000,
        datasets={"photos": DatasetConfig(str(place / "photos")), "named": DatasetConfig("s3://bucket/x")},
    )


def test_a_file_is_read_and_flags_win(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "store.toml").write_text("memory = '1GiB'\ncores = 1\nplaintext = true\n")
    run("--config", "store.toml", "--cores", 2, "--show-config", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["memory"], found["cores"], found["plaintext"]) == (1 << 30, 2.0, True)
    assert found["listen"] == "127.0.0.1:7077"


def test_without_data_nothing_is_served() -> None:
    with pytest.raises(WrongUse, match="nothing to serve"):
        run("--listen", "127.0.0.1:0")


def test_a_token_is_no_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="No such option") as caught:
        run("photos", "--token=verysecretvalue", "--show-config")
    assert "verysecretvalue" not in str(caught.value) + capsys.readouterr().out


LISTENING = Serving(
    "grpc+tls://127.0.0.1:7077", "https://127.0.0.1:7078", {"photos": (1234, "v1", 5_000_000)}, "/srv/state"
)


def test_what_listens_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    serve._print_json(LISTENING)
    assert json.loads(capsys.readouterr().out) == {
        "address": "grpc+tls://127.0.0.1:7077",
        "http": "https://127.0.0.1:7078",
        "state": "/srv/state",
        "datasets": {"photos": {"samples": 1234, "version": "v1", "bytes": 5_000_000}},
    }


def test_what_listens_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    serve._print(LISTENING)
    shown = capsys.readouterr().out
    assert "1,234" in shown
    assert "5.0 MB" in shown
    assert shown.endswith(
        "listening on grpc+tls://127.0.0.1:7077, health and metrics on https://127.0.0.1:7078, "
        "state in /srv/state\n"
    )
