"""The verb of an operator: quarantined samples are seen and let out, by those who may."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.store.server.daemon import Daemon
from stores import running_daemon, write_tokens

SECRETS = {name: f"{name}-{'x' * 24}" for name in ("operator", "reader")}


@pytest.fixture
def daemon(photo_folder: Path, tmp_path: Path) -> Iterator[Daemon]:
    """With two samples in quarantine, and one that no dataset holds any more."""
    scopes = {"operator": ["admin"], "reader": ["read"]}
    entries = {name: {"secret": secret, "scopes": scopes[name]} for name, secret in SECRETS.items()}
    for name, secret in SECRETS.items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(secret)
    with running_daemon({"photos": photo_folder}, token_file=write_tokens(tmp_path, **entries)) as made:
        ids = made._talk._desk.datasets["photos"].index.ids
        made._workers._quarantine |= {int(id): b"digest" for id in (*ids[:2], 7)}
        yield made


def test_who_may_sees_them_and_lets_them_out(
    daemon: Daemon, headwater_json: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    def ask(verb: str, *words: object, by: str = "operator") -> Any:
        address = daemon.serving.address
        return headwater_json(verb, address, *words, "--token-file", tmp_path / by)

    held = sorted(daemon._workers.quarantined)
    assert ask("top")["quarantined"] == held
    assert ask("top", by="reader")["quarantined"] == [id for id in held if id != 7], "nor that one"
    assert ask("release", held[1], 12345) == {"released": [held[1]]}
    assert ask("top")["quarantined"] == [held[0], held[2]]
    assert ask("release") == {"released": [held[0], held[2]]}
    assert not daemon._workers.quarantined


def test_others_may_not_let_them_out(daemon: Daemon, headwater: Callable[..., Any], tmp_path: Path) -> None:
    done = headwater("release", daemon.serving.address, "--token-file", tmp_path / "reader", "--json")
    assert done.returncode == 4
    assert "lacks scope 'admin'" in json.loads(done.stdout)["error"]["message"]
    assert len(daemon._workers.quarantined) == 3


def test_for_people(daemon: Daemon, headwater: Callable[..., Any], tmp_path: Path) -> None:
    words = ("release", daemon.serving.address, 7, "--token-file", tmp_path / "operator")
    assert headwater(*words).stdout == "released:\n7\n"
    assert headwater(*words).stdout == "none of them is in quarantine\n"
