"""`headwater models quantise`: at stores, on local data, and what it says where fp32 stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exports import as_they_are, fitted
from headwater.cli import run
from headwater.models.registry import Registry
from headwater.models.runtime import precision_of
from headwater.store.server.daemon import Daemon
from nets import SIZE
from stores import running_daemon, write_tokens
from tunings import write_colours

SECRETS = {"operator": "o" * 32, "worker": "w" * 32}
NOWHERE = "grpc://127.0.0.1:1"
Call = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("quantise")
    write_colours(made / "colours", 60, size=SIZE)
    write_colours(made / "few", 5, size=SIZE)
    Registry(made / "state" / "models").put(as_they_are(fitted()), name="plain", switch=True)
    for name, secret in SECRETS.items():
        (made / f"{name}.token").write_text(secret)
    return made


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    tokens = write_tokens(
        folder,
        operator={"secret": SECRETS["operator"], "scopes": ["jobs", "models", "read"]},
        worker={"secret": SECRETS["worker"], "scopes": ["jobs", "labels", "read"]},
    )
    data = {"colours": folder / "colours", "few": folder / "few"}
    with running_daemon(data, state=folder / "state", token_file=tokens) as made:
        yield made


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `headwater models quantise WORDS... --json` and parse; `code` is what it must exit with."""
    monkeypatch.delenv("HEADWATER_TOKEN", raising=False)

    def found(*words: object, code: int = 0, caller: str = "operator") -> dict[str, Any]:
        flags = ["--token-file", str(folder / f"{caller}.token"), "--json"]
        assert run(["models", "quantise", *map(str, words), *flags]) == code
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return found


def test_at_a_store_on_its_own_data(
    daemon: Daemon, folder: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, address = Registry(folder / "state" / "models"), daemon.serving.address
    version = registry.current("plain")
    refused = call("plain", f"{address}/colours", code=4, caller="worker")
    assert "token 'worker' lacks scope 'models'" in refused["stores"][0]["error"]["message"]

    (few,) = call("plain", address, "--dataset", "few")["stores"]
    assert (few["state"], few["accepted"], few["version"], few["agreement"]) == ("done", False, None, None)
    assert few["reason"] == "fp32: 7 images are left to compare on, at least 32 are needed"
    assert registry.current("plain") == version

    (held,) = call("plain", f"{address}/colours", "--hold", "--bound", 0.9)["stores"]
    assert (held["accepted"], held["bound"], registry.current("plain")) == (True, 0.9, version)

    found = call("plain", f"{address}/colours")
    (done,) = found["stores"]
    assert found["ok"]
    assert (done["model"], done["error"]) == (version.digest, None)
    assert done["agreement"] >= done["bound"] == 0.95
    assert done["speedup"] > 0
    assert (registry.current("plain").digest, registry.current("plain").parent) == (
        done["version"],
        version.digest,
    )
    assert precision_of(registry.get("plain")) == "int8"

    flags = ["--token-file", str(folder / "operator.token")]
    assert run(["models", "quantise", "plain", f"{address}/colours", *flags]) == 1
    assert "int8 already; quantise the version that it was made of" in capsys.readouterr().err
    registry.rollback("plain")


def test_a_version_that_a_store_does_not_hold(daemon: Daemon, call: Call) -> None:
    found = call("strange", daemon.serving.address, "--dataset", "few", code=1)
    (store,) = found["stores"]
    assert (found["ok"], store["state"], store["error"]["kind"]) == (False, None, "ModelNotFound")


def test_local_data(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    registry = Registry(tmp_path / "models")
    version = registry.put(as_they_are(fitted()), name="plain", switch=True)
    words = [str(folder / "colours"), "--registry", str(registry.folder)]
    assert run(["models", "quantise", "plain", *words]) == 0
    shown = capsys.readouterr()
    made = registry.current("plain")
    for word in (version.digest[:12], made.digest[:12], "95.0%", "colours"):
        assert word in shown.out
    assert "int8: int8 gives the label of fp32 for" in shown.err
    assert made.parent == version.digest
    assert call("plain", *words, code=2)["error"]["kind"] == "WrongUse"
    (few,) = call(version.digest[:10], folder / "few", "--registry", registry.folder)["stores"]
    assert (few["accepted"], few["dataset"]) == (False, "few")


@pytest.mark.parametrize(
    "words",
    [
        (NOWHERE, "photos/"),
        ("photos/", "others/"),
        (NOWHERE, "--registry", "x"),
        (NOWHERE, NOWHERE),
        (NOWHERE, "--bound", "1.5"),
    ],
)
def test_words_that_do_not_go_together(call: Call, words: tuple[str, ...]) -> None:
    assert call("plain", *words, code=2)["error"]["kind"] == "WrongUse"
