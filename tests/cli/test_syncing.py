"""`headwater models sync`, and list, show and rollback with `--at STORE`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs import change, make_int8, make_model, make_tensors, new_head
from headwater.cli import run, syncing
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.server.daemon import Daemon
from stores import Certificates, make_certificates, running_daemon, write_tokens

SECRETS = {"tuner": "t" * 32, "reader": "r" * 32}
NOWHERE = "grpc+tls://127.0.0.1:1"
Words = Callable[..., tuple[int, Any]]


@dataclass(frozen=True)
class Castle:
    """A store with tokens and mutual TLS, so that every option of a link is needed."""

    daemon: Daemon
    certificates: Certificates
    folder: Path

    def flags(self, name: str = "tuner") -> list[str]:
        files = {"--ca": "ca", "--cert": "client_cert", "--key": "client_key"}
        papers = [
            word for flag, file in files.items() for word in (flag, str(getattr(self.certificates, file)))
        ]
        return ["--token-file", str(self.folder / f"{name}.token"), *papers]


@pytest.fixture(scope="module")
def castle(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Castle]:
    folder = tmp_path_factory.mktemp("store")
    certificates = make_certificates(folder / "certificates")
    for name, secret in SECRETS.items():
        (folder / f"{name}.token").write_text(secret)
    tokens = write_tokens(
        folder,
        tuner={"secret": SECRETS["tuner"], "scopes": ["models"]},
        reader={"secret": SECRETS["reader"], "scopes": ["read"]},
    )
    settings = {"state": folder / "state", "token_file": tokens, **certificates.serve_mutual}
    with running_daemon({"photos": photo_folder}, **settings) as daemon:
        yield Castle(daemon, certificates, folder)


@pytest.fixture
def address(castle: Castle, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("HEADWATER_TOKEN", raising=False)
    monkeypatch.setattr(syncing, "_DEADLINE_SECONDS", 1.0)
    return castle.daemon.serving.address


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


@pytest.fixture
def headwater(registry: Registry, castle: Castle, capsys: pytest.CaptureFixture[str]) -> Words:
    """Run `headwater models WORDS... --json` as a caller; the exit code and the document."""

    def call(verb: str, *words: object, caller: str = "tuner") -> tuple[int, Any]:
        place = () if "--at" in words else ("--registry", registry.folder)
        link = castle.flags(caller) if "--at" in words or verb == "sync" else ()
        code = run(["models", verb, *map(str, (*words, *place, *link)), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def put(registry: Registry, model: Any, name: str, parent: ModelVersion | None = None) -> ModelVersion:
    return registry.put(model, name=name, parent=parent and parent.digest, switch=True)


def test_sync_list_show_and_rollback(headwater: Words, registry: Registry, address: str) -> None:
    model = make_model()
    first = put(registry, model, "birds")
    code, found = headwater("sync", address)
    (sent,) = found["deliveries"]
    assert (code, found["ok"], sent["kind"], sent["error"]) == (0, True, "whole", None)
    second = put(registry, new_head(model, 1), "birds", first)
    _, found = headwater("sync", address, "--name", "birds")
    (delivery,) = found["deliveries"]
    assert (delivery["kind"], delivery["version"], delivery["model"]) == ("delta", second.digest, "birds")
    assert 0 < delivery["sent_bytes"] < sent["sent_bytes"]
    assert delivery["whole_bytes"] == second.nbytes

    code, stock = headwater("list", "--at", address)
    assert (code, stock["registry"], stock["current"]["birds"]) == (0, address, second.digest)
    local = headwater("list")[1]["versions"]
    there = [each for each in stock["versions"] if each["name"] == "birds"]
    assert {each["digest"] for each in there} == {first.digest, second.digest}
    assert set(there[0]) == set(local[0])
    _, shown = headwater("show", "birds", "--at", address)
    assert (shown["digest"], shown["in_force"]) == (second.digest, ["birds"])
    assert shown == headwater("show", "birds")[1]
    assert headwater("show", first.digest[:10], "--at", address)[1]["digest"] == first.digest

    code, back = headwater("rollback", "birds", "--at", address)
    assert (code, back["digest"], back["in_force"]) == (0, first.digest, ["birds"])
    assert back["stopped_jobs"] == [], "nothing labelled with it"
    code, forth = headwater("rollback", "birds", "--to", second.digest[:10], "--at", address)
    assert (code, forth["digest"], forth["in_force"]) == (0, second.digest, ["birds"])
    code, failed = headwater("rollback", "cats", "--at", address)
    assert (code, failed["error"]["kind"]) == (1, "ModelError")


def test_all_models_that_are_in_force_go_and_one_that_is_named(
    headwater: Words, registry: Registry, address: str
) -> None:
    versions = {name: put(registry, make_model(seed), name) for name, seed in (("cats", 5), ("dogs", 6))}
    _, found = headwater("sync", address, "--name", "dogs")
    assert [each["model"] for each in found["deliveries"]] == ["dogs"]
    _, found = headwater("sync", address)
    assert [(each["model"], each["kind"]) for each in found["deliveries"]] == [
        ("cats", "delta"),
        ("dogs", "nothing"),
    ]
    current = headwater("list", "--at", address)[1]["current"]
    assert {name: current[name] for name in versions} == {name: v.digest for name, v in versions.items()}


def test_a_store_that_is_away_is_named_and_asked_once(
    headwater: Words, registry: Registry, address: str
) -> None:
    for name, seed in (("swans", 7), ("terns", 8)):
        put(registry, make_model(seed), name)
    code, found = headwater("sync", NOWHERE, address)
    assert (code, found["ok"]) == (3, False)
    by_store = {(each["model"], each["store"]): each for each in found["deliveries"]}
    for name in ("swans", "terns"):
        assert by_store[name, address]["error"] is None
        gone = by_store[name, NOWHERE]
        assert (gone["away"], gone["error"]["kind"], gone["error"]["exit_code"]) == (True, "Unreachable", 3)
    assert by_store["terns", NOWHERE]["seconds"] == by_store["swans", NOWHERE]["seconds"], "asked again"
    code, alone = headwater("sync", NOWHERE, "--wait", 1.5)
    assert (code, len(alone["deliveries"])) == (3, 2)
    assert alone["deliveries"][0]["seconds"] >= 1.5


def test_for_people_it_is_a_table(
    castle: Castle,
    registry: Registry,
    address: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    version = put(registry, make_model(9), "gulls")
    at, words = ["--at", address, *castle.flags()], ["--registry", str(registry.folder), *castle.flags()]
    assert run(["models", "sync", address, NOWHERE, *words]) == 3
    shown = capsys.readouterr()
    for word in ("gulls", version.digest[:12], address, "whole", "in force", "away"):
        assert word in shown.out
    assert shown.err.count(f"{NOWHERE}: {NOWHERE} does not answer") == 1
    assert run(["models", "list", *at]) == 0
    assert version.digest[:12] in capsys.readouterr().out
    assert run(["models", "show", "gulls", *at]) == 0
    assert "trunk/conv.weight" in capsys.readouterr().out
    second = put(registry, make_model(10), "gulls")
    run(["models", "sync", address, *words])
    capsys.readouterr()
    assert run(["models", "rollback", "gulls", *at]) == 0
    assert capsys.readouterr().out == f"{version.digest}\n"
    assert second.digest != version.digest


def test_an_approximation_says_what_it_costs_and_saves(
    headwater: Words,
    castle: Castle,
    registry: Registry,
    address: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    model = make_model(tensors=make_tensors(20, classes=30, features=400))
    first = put(registry, model, "finches")
    headwater("sync", address)
    weight = model.tensors["head/weight"]
    moved = (weight * (1 + 1e-4 * np.random.default_rng(0).normal(size=weight.shape))).astype(np.float32)
    second = put(registry, change(model, head_weight=moved), "finches", first)
    _, found = headwater("sync", address, "--approximate", "--name", "finches")
    (row,) = found["deliveries"]
    near = registry.version(row["version"])
    assert (near.made["of"], row["wanted"], row["kind"]) == (second.digest, second.digest, "delta")
    assert 0 < row["largest_error"] < 1e-3
    assert row["sent_bytes"] < row["exact_bytes"]
    words = ["--registry", str(registry.folder), *castle.flags()]
    assert run(["models", "sync", address, "--approximate", *words]) == 0
    shown = capsys.readouterr()
    assert "approximation in force" in shown.out
    assert f"{address}: finches is approximate, a weight is off by at most" in shown.err
    _, exact = headwater("sync", address)
    assert exact["deliveries"][0]["version"] == second.digest
    assert exact["deliveries"][0]["largest_error"] is None


MEASURED = {"by": "quantise", "agreement": 0.984, "images": 256, "bound": 0.97, "data": "5" * 32}


def test_int8_layers_that_nobody_measured_come_into_force_nowhere_unless_that_is_said(
    headwater: Words,
    castle: Castle,
    registry: Registry,
    address: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = registry.put(make_int8(13), name="shrikes", switch=True, unmeasured=True)
    put(registry, make_model(14), "thrushes")
    code, found = headwater("sync", address)
    shrikes, thrushes = found["deliveries"]
    assert (code, shrikes["error"]["kind"], thrushes["error"]) == (4, "ModelRefused", None)
    for word in ("'shrikes'", version.digest[:12], "95.0%", "`headwater models quantise`", "--unmeasured"):
        assert word in shrikes["error"]["message"]
    assert "shrikes" not in headwater("list", "--at", address)[1]["current"]
    code, found = headwater("sync", address, "--unmeasured", "--name", "shrikes")
    (row,) = found["deliveries"]
    assert (code, row["error"], set(row["int8"].values())) == (0, None, {None})
    assert headwater("list", "--at", address)[1]["current"]["shrikes"] == version.digest
    monkeypatch.setenv("COLUMNS", "300")
    words = ["--registry", str(registry.folder), *castle.flags()]
    assert run(["models", "sync", address, *words]) == 0, "what is in force there already may stay so"
    shown = capsys.readouterr()
    assert "in force, int8 unmeasured" in shown.out
    assert "shrikes is int8: nobody has measured whether labels stay" in shown.err


def test_back_to_int8_layers_that_nobody_measured_only_if_that_is_said(
    headwater: Words, registry: Registry, address: str
) -> None:
    odd = registry.put(make_int8(15), name="dippers", switch=True, unmeasured=True).digest
    headwater("sync", address, "--unmeasured", "--name", "dippers")
    put(registry, make_model(16), "dippers")
    headwater("sync", address, "--name", "dippers")
    for place in (("--at", address), ()):
        code, found = headwater("rollback", "dippers", "--to", odd, *place)
        assert (code, found["error"]["kind"]) == (4, "ModelRefused")
        code, found = headwater("rollback", "dippers", "--to", odd, "--unmeasured", *place)
        assert (code, found["digest"]) == (0, odd)


def test_of_int8_layers_from_elsewhere_it_is_said_where_they_were_measured(
    headwater: Words,
    castle: Castle,
    registry: Registry,
    address: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.put(make_int8(), name="wrens", made=MEASURED, switch=True)
    put(registry, make_model(11), "larks")
    code, found = headwater("sync", address)
    said = f"98.4% of 256 images of data {'5' * 12} keep the label of fp32, bound 97.0%"
    assert code == 0
    assert {row["model"]: row["int8"] for row in found["deliveries"]} == {
        "larks": None,
        "wrens": {"agreement": 0.984, "images": 256, "bound": 0.97, "data": "5" * 32, "said": said},
    }
    monkeypatch.setenv("COLUMNS", "300")
    run(["models", "sync", address, "--registry", str(registry.folder), *castle.flags()])
    shown = capsys.readouterr()
    larks, wrens = [line for line in shown.out.splitlines() if "larks" in line or "wrens" in line]
    assert "in force, int8 measured elsewhere" in wrens
    assert "int8" not in larks
    assert f"wrens is int8: {said}" in shown.err


def test_a_model_that_is_damaged_here_keeps_no_other_from_the_stores(
    headwater: Words, registry: Registry, address: str
) -> None:
    for name, seed in (("larks", 21), ("wrens", 22)):
        put(registry, make_model(seed), name)
    (registry.folder / "current" / "larks").write_bytes(b"{")
    code, found = headwater("sync", address)
    larks, wrens = found["deliveries"]
    assert (code, larks["error"]["kind"], wrens["error"]) == (4, "ModelRefused", None)
    assert headwater("list", "--at", address)[1]["current"]["wrens"] == wrens["version"]
    assert headwater("sync", address, "--name", "larks")[1]["error"]["kind"] == "ModelRefused"


def test_a_token_that_may_only_read_is_refused(headwater: Words, registry: Registry, address: str) -> None:
    put(registry, make_model(11), "owls")
    code, found = headwater("sync", address, caller="reader")
    assert (code, found["deliveries"][0]["error"]["kind"]) == (4, "Refused")
    assert headwater("sync", address)[0] == 0
    assert headwater("list", "--at", address, caller="reader")[0] == 0
    assert headwater("rollback", "owls", "--to", "owls", "--at", address, caller="reader")[0] == 4


def test_without_a_certificate_nothing_answers(registry: Registry, address: str) -> None:
    put(registry, make_model(12), "rails")
    assert run(["models", "list", "--at", address, "--json"]) == 3


def test_wrong_use(headwater: Words, registry: Registry, address: str) -> None:
    code, found = headwater("sync", address)
    assert (code, found["error"]["kind"]) == (2, "WrongUse")
    assert "no model is in force" in found["error"]["message"]
    put(registry, make_model(), "birds")
    for verb, words in (("list", ()), ("show", ("birds",)), ("rollback", ("birds",))):
        code, found = headwater(verb, *words, "--registry", registry.folder, "--at", address)
        assert (code, found["error"]["message"]) == (
            2,
            "--registry and --at name two places; give one of them",
        )
    assert headwater("sync", "http://somewhere")[0] == 2
    assert headwater("sync", address, address)[0] == 2
    assert headwater("sync", address, "--name", "nothing")[1]["error"]["kind"] == "ModelNotFound"


def test_bars_move_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with syncing._bars("birds", ["grpc://a:1", "grpc://b:2"]) as watch:
        watch("grpc://a:1", 500, 1000)
        watch("grpc://b:2", 0, 0)
    shown = capsys.readouterr().err
    assert "birds to grpc://a:1" in shown
    assert "birds to grpc://b:2" in shown
