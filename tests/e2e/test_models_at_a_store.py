"""Models at a real store: killed, altered, refused; in force is the old version or the new one, whole."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from graphs import change, make_model, make_tensors, new_head
from headwater.errors import HeadwaterError, ModelRefused, Refused
from headwater.models.delta import encode
from headwater.models.path import Part, cheapest
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion, digest_of, seal
from headwater.store.client.link import Link
from headwater.store.client.models import StoreModels, models_of
from headwater.store.pushing import push
from headwater.store.wire import messages
from headwater.store.wire.modelmessages import InForce, ModelOffer, ModelPart, ModelRollback, Shipment
from stores import NotStarted, StoreProcess, write_tokens
from visitors import Visitor, complaint_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRETS = {name: f"{name}-{'x' * 24}" for name in ("tuner", "reader")}
Start = Callable[[Path], StoreProcess]
KILLS = 20
_LONGEST_LIFE = 1.2  # seconds; taking a version in begins with loading onnx and its runtime
QUICK = Link(deadline_seconds=2.0, give_up_seconds=0.2)
"""Whoever speaks to a store that is being killed does not wait for it."""


class Tuner:
    """A registry with a base version of two heads, and more heads as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder)
        self.base = make_model(tensors=make_tensors(classes=40, features=64))
        self.first = self.put(self.base)
        self.second = self.put(new_head(self.base, 1))

    def put(self, model: Any) -> ModelVersion:
        return self.registry.put(model, name="birds", switch=True)

    def another(self, seed: int) -> ModelVersion:
        return self.put(new_head(self.base, seed))

    def part(self, version: ModelVersion, *held: ModelVersion) -> Part:
        (found,) = cheapest(self.registry, [each.digest for each in held], version.digest).parts
        return found


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a store without torch, which starts in half the time."""
    stub = tmp_path_factory.mktemp("without") / "torch"
    stub.mkdir()
    (stub / "__init__.py").write_text("raise ImportError('not installed')")
    return {"PYTHONPATH": os.pathsep.join([str(stub.parent), *sys.path])}


@pytest.fixture
def start(lean: dict[str, str], photo_folder: Path) -> Start:
    """Makes a store with its state in a folder."""
    return lambda state: StoreProcess({"photos": photo_folder}, state=state, environment=lean)


@pytest.fixture
def tuner(tmp_path: Path) -> Tuner:
    return Tuner(tmp_path / "tuner")


@pytest.fixture(scope="module")
def process(
    lean: dict[str, str], photo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreProcess]:
    folder = tmp_path_factory.mktemp("store")
    tokens = write_tokens(
        folder,
        tuner={"secret": SECRETS["tuner"], "scopes": ["models"]},
        reader={"secret": SECRETS["reader"], "scopes": ["read"]},
    )
    with StoreProcess(
        {"photos": photo_folder},
        environment=lean,
        state=folder / "state",
        token_file=tokens,
        audit_log=folder / "audit.jsonl",
    ) as store:
        yield store


@contextmanager
def at(store: StoreProcess, *, name: str = "tuner") -> Iterator[StoreModels]:
    with models_of(store.address, token=SECRETS[name]) as models:
        yield models


class Changing:
    """Switches as fast as it can between two versions until it is stopped; if `sending`, sends new ones too.

    `asked` and `answered` are the last version that a switch to was asked for, and answered; `sent` are the
    versions of which the store said that it has them.
    """

    def __init__(self, store: StoreProcess, tuner: Tuner, *, seed: int, sending: bool) -> None:
        self.known = {tuner.first.digest, tuner.second.digest}
        self.asked = self.answered = ""
        self.sent: set[str] = set()
        self.switches = 0
        self._store, self._tuner, self._seed = store, tuner, seed
        self._over = threading.Event()
        runs = (self._switch, self._send) if sending else (self._switch,)
        self._threads = [threading.Thread(target=run) for run in runs]

    def __enter__(self) -> Changing:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _switch(self) -> None:
        with models_of(self._store.address, link=QUICK) as models, suppress(HeadwaterError):
            while not self._over.is_set():
                for version in (self._tuner.first, self._tuner.second):
                    self.asked = version.digest
                    self.answered = models.switch("birds", self.asked).current
                    self.switches += 1

    def _send(self) -> None:
        with models_of(self._store.address, link=QUICK) as models, suppress(HeadwaterError):
            while not self._over.is_set():
                self._seed += 1
                version = self._tuner.another(self._seed)
                self.known.add(version.digest)
                models.send(self._tuner.part(version, self._tuner.first), switch=True)
                self.sent.add(version.digest)


def expect_whole(state: Path) -> set[str]:
    """Every version that is there verifies; which ones they are."""
    registry = Registry(state / "models")
    there = {path.stem for path in (registry.folder / "versions").glob("[!.]*.json")}
    for digest in there:
        version, model = registry.version(digest), registry.get(digest)
        assert (model.facts, model.check()) == (version.tensors, version.features)
    return there


def kill_again_and_again(seed: int, start: Start, state: Path, tuner: Tuner) -> None:
    """Every other time with versions on their way; in between, it is known what must be in force."""
    dice, switches, sent = random.Random(seed), 0, set[str]()
    with start(state) as store:
        push(tuner.registry, [store.address], tuner.first.digest)
        push(tuner.registry, [store.address], tuner.second.digest)
        for number in range(KILLS):
            before = Registry(state / "models").current("birds").digest
            sending = number % 2 == 0
            with Changing(store, tuner, seed=1000 * (number + 1), sending=sending) as changing:
                time.sleep(dice.uniform(0.0, _LONGEST_LIFE))
                store.kill()
            switches, sent = switches + changing.switches, sent | changing.sent
            assert sent <= expect_whole(state), "a version that was acknowledged is gone"
            in_force = Registry(state / "models").current("birds").digest
            allowed = {changing.answered or before, changing.asked or before}
            assert in_force in (changing.known | {before} if sending else allowed)
            store.restart()
            with models_of(store.address) as models:
                assert models.inventory().current["birds"][0] == in_force
                assert models.switch("birds", in_force).current == in_force, "it verifies there too"
    assert switches > 5 * KILLS, "the store was hardly ever asked to switch"
    assert sent, "no version was ever taken in meanwhile"


def test_a_kill_at_any_time_leaves_the_old_version_or_the_new_one(
    start: Start, tmp_path: Path, tuner: Tuner
) -> None:
    kill_again_and_again(0, start, tmp_path / "state", tuner)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 11))
def test_two_hundred_kills(seed: int, start: Start, tmp_path: Path, tuner: Tuner) -> None:
    kill_again_and_again(seed, start, tmp_path / "state", tuner)


def test_an_upload_goes_on_after_the_store_was_killed(start: Start, tmp_path: Path, tuner: Tuner) -> None:
    part = tuner.part(tuner.first)
    body = messages.encode(Shipment(dict(part.graphs), part.delta))
    offer = ModelOffer(part.version.to_json(), len(body), digest_of(body))
    half = len(body) // 2
    with start(tmp_path / "state") as store:
        with Visitor(store.address) as visitor:
            visitor.act("model_offer", messages.encode(offer))
            visitor.act("model_part", messages.encode(a_part(part.version.digest, offer, 0, body[:half])))
        store.restart()
        with models_of(store.address) as models:
            models.send(part, switch=True)
            assert models.sent < half + len(offer.manifest) + 4096
    assert Registry(tmp_path / "state" / "models").current("birds").digest == part.version.digest


def a_part(
    version: str, offer: ModelOffer, offset: int, data: bytes, *, checksum: int | None = None
) -> ModelPart:
    said = xxhash.xxh3_64_intdigest(data) if checksum is None else checksum
    return ModelPart(version, offer.digest, offset, data, said)


def test_a_store_that_was_away_is_caught_up_by_pushing_again(
    start: Start, tmp_path: Path, tuner: Tuner
) -> None:
    with start(tmp_path / "a") as a, start(tmp_path / "b") as b:
        both = push(tuner.registry, [a.address, b.address], tuner.first.digest)
        assert [each.kind for each in both] == ["whole"] * 2
        b.kill()
        there, gone = push(tuner.registry, [a.address, b.address], tuner.second.digest, link=QUICK)
        assert (there.kind, there.error, gone.away) == ("delta", None, True)
        b.restart()
        third = tuner.another(7)
        deliveries = push(tuner.registry, [a.address, b.address], third.digest)
        assert [(each.kind, each.error) for each in deliveries] == [("delta", None)] * 2
    for name in ("a", "b"):
        assert Registry(tmp_path / name / "models").current("birds").digest == third.digest


def test_two_stores_do_not_share_a_folder(start: Start, tmp_path: Path) -> None:
    with start(tmp_path) as store:
        with pytest.raises(NotStarted) as caught, start(tmp_path):
            pass
        assert caught.value.ended.code == 2
        assert "another store keeps its state in" in caught.value.ended.stderr
        assert store.serving["state"] == str(tmp_path)


class TestOverTheWire:
    """One store for all of these, with tokens."""

    def refuse(self, store: StoreProcess, part: Part) -> str:
        with at(store) as models, pytest.raises(ModelRefused) as caught:
            models.send(part, switch=True)
        with at(store) as models:
            assert part.version.digest not in {facts.digest for facts in models.inventory().versions}
        return str(caught.value)

    def test_a_tensor_of_another_digest(self, process: StoreProcess, tuner: Tuner) -> None:
        part = tuner.part(tuner.first)
        other = tuner.part(tuner.second)
        forged = Part(part.version, None, other.delta, part.graphs)
        assert "should have the digest" in self.refuse(process, forged)

    def test_a_graph_that_refers_to_a_file(self, process: StoreProcess) -> None:
        model = make_model()
        trunk = model.trunk.replace(b"registry", b"/etc/pwd")
        assert "/etc/pwd" in self.refuse(process, forged_part(model, trunk))

    def test_pickled_content(self, process: StoreProcess) -> None:
        assert "pickled content" in self.refuse(process, forged_part(make_model(), b"\x80\x04K\x01."))

    def test_an_operator_that_is_not_allowed(self, process: StoreProcess) -> None:
        trunk = make_model().trunk.replace(b"Relu", b"Loop")
        assert "operator 'Loop' is not allowed" in self.refuse(process, forged_part(make_model(), trunk))

    def test_another_architecture(self, process: StoreProcess) -> None:
        other = change(make_model(), **{"trunk_conv.bias": make_tensors(features=9)["trunk/conv.bias"]})
        assert "another architecture" in self.refuse(process, forged_part(other, other.trunk))

    def test_a_huge_header(self, process: StoreProcess, tuner: Tuner) -> None:
        part = tuner.part(tuner.first)
        body = b"HWDELTA1" + (0xFFFFFFF0).to_bytes(4, "little") + bytes(64)
        sealed = body + bytes.fromhex(digest_of(body))
        assert "its header has 4,294,967,280" in self.refuse(
            process, Part(part.version, None, sealed, part.graphs)
        )

    def test_altered_and_truncated_parts(self, process: StoreProcess, tuner: Tuner) -> None:
        part = tuner.part(tuner.first)
        body = messages.encode(Shipment(dict(part.graphs), part.delta))
        offer = ModelOffer(part.version.to_json(), len(body), digest_of(body))
        good = a_part(part.version.digest, offer, 0, body)
        bad = [bytes([body[0] ^ 1]) + body[1:], body[:-1], body + b"x"]
        with Visitor(process.address, SECRETS["tuner"]) as visitor:
            visitor.act("model_offer", messages.encode(offer))
            for data in bad:
                altered = a_part(part.version.digest, offer, 0, data, checksum=good.checksum)
                with pytest.raises(pa.ArrowException) as caught:
                    visitor.act("model_part", messages.encode(altered))
                assert complaint_of(caught.value).kind == "ModelRefused"
                assert "were altered; send them again" in complaint_of(caught.value).text
        with at(process) as models:
            assert models.send(part, switch=True).current == part.version.digest

    def test_a_token_that_may_read_looks_and_changes_nothing(
        self, process: StoreProcess, tuner: Tuner
    ) -> None:
        version = tuner.another(77)
        with at(process, name="reader") as models:
            before = models.inventory()
            for attempt in (
                lambda: models.send(tuner.part(version)),
                lambda: models.switch("birds", version.digest),
                lambda: models._ask("model_rollback", ModelRollback("birds", "0" * 32), InForce),
            ):
                with pytest.raises(Refused, match="'reader' lacks scope 'models'"):
                    attempt()
            assert models.inventory() == before

    def test_who_did_what_is_in_the_audit_log(self, process: StoreProcess, tuner: Tuner) -> None:
        versions = tuner.another(101), tuner.another(102)
        with at(process) as models:
            for version in versions:
                models.send(tuner.part(version), switch=True)
            models.rollback("birds")
        audit = Path(process._flags["audit_log"])  # type: ignore[arg-type]
        wanted = [
            {"action": "model_offer", "model": "birds", "version": versions[0].digest, "base": None},
            {"action": "model_take", "version": versions[0].digest, "switch": True},
            {"action": "model_rollback", "model": "birds", "version": versions[1].digest},
        ]
        end = time.monotonic() + 20
        while "model_part" not in audit.read_text() and time.monotonic() < end:
            time.sleep(0.1)
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        for facts in wanted:
            (line,) = [each for each in lines if facts.items() <= each.items()]
            assert (line["caller"], line["outcome"]) == ("tuner", "ok")
        parts = [line for line in lines if line["action"] == "model_part" and line["outcome"] == "ok"]
        assert sum(line["bytes"] for line in parts) > 0

    def test_a_full_disk_is_told_and_passes(self, process: StoreProcess, tuner: Tuner) -> None:
        version = tuner.another(201)
        process.fill()
        try:
            with at(process) as models, pytest.raises(HeadwaterError, match=r"File too large"):
                models.send(tuner.part(version), switch=True)
        finally:
            process.free()
        with at(process) as models:
            assert models.send(tuner.part(version), switch=True).current == version.digest


def forged_part(model: Any, trunk: bytes) -> Part:
    """All of a model with this for a trunk, and a manifest that fits."""
    version = ModelVersion(
        digest="",
        name="birds",
        parent=None,
        made={"by": "push"},
        graphs={"trunk": digest_of(trunk)},
        tensors=model.facts,
        classes=model.classes,
        steps=model.steps,
        features=4,
        time="2026-01-01T00:00:00+00:00",
    )
    return Part(seal(version), None, encode(None, model.tensors), {digest_of(trunk): trunk})


def test_a_store_that_was_drained_keeps_what_it_has(start: Start, tmp_path: Path, tuner: Tuner) -> None:
    with start(tmp_path / "state") as store:
        push(tuner.registry, [store.address], tuner.first.digest)
        assert store.terminate().code == 0
        (away,) = push(tuner.registry, [store.address], tuner.second.digest, link=QUICK)
        assert away.away
    assert Registry(tmp_path / "state" / "models").current("birds").digest == tuner.first.digest
