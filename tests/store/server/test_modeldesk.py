"""What a store answers about models, without a wire: idempotent, verified, refused by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from onnx import helper

from graphs import change, make_int8, make_model, make_tensors, new_head, trunk_file, trunk_nodes
from headwater import transforms as T
from headwater.engine.budget import Busy
from headwater.errors import ModelError, ModelNotFound, ModelRefused, WrongUse
from headwater.models.delta import MAGIC, encode
from headwater.models.graph import split_tensors
from headwater.models.model import Model
from headwater.models.path import Part, cheapest
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion, TensorFacts, digest_of, seal
from headwater.store.server import modeldesk
from headwater.store.server.guard import Caller
from headwater.store.server.ledger import Ledger
from headwater.store.server.modeldesk import ModelDesk
from headwater.store.server.state import State
from headwater.store.wire import messages
from headwater.store.wire.modelmessages import (
    Arrived,
    InForce,
    Inventory,
    ModelOffer,
    ModelPart,
    ModelQuery,
    ModelRollback,
    ModelSwitch,
    ModelTake,
    Shipment,
)
from held import NAME, fill, held_versions

TUNER = Caller("tuner", "ipv4:10.0.0.1:5", frozenset({"models"}))
OTHER = Caller("other", "ipv4:10.0.0.2:5", frozenset({"models"}))
OLD, NEW = held_versions()
PICKLE = b"\x80\x04\x95\x0b\x00\x00\x00"


@dataclass
class Store:
    """A desk, its state, and a caller."""

    desk: ModelDesk
    state: State
    ledger: Ledger

    def ask(self, action: str, message: messages.Message, kind: type[Any], caller: Caller = TUNER) -> Any:
        return messages.decode(kind, self.desk.answers[action](messages.encode(message), caller))

    def offer(self, part: Part, **other: Any) -> tuple[Arrived, ModelOffer, bytes]:
        body = messages.encode(Shipment(dict(part.graphs), part.delta))
        offer = ModelOffer(part.version.to_json(), len(body), digest_of(body), part.base)
        offer = msgspec.structs.replace(offer, **other)
        return self.ask("model_offer", offer, Arrived), offer, body

    def send(self, part: Part, *, switch: bool = False, unmeasured: bool = False, step: int = 400) -> InForce:
        arrived, offer, body = self.offer(part)
        while arrived.have < len(body):
            data = body[arrived.have : arrived.have + step]
            arrived = self.ask("model_part", a_part(part.version.digest, offer, arrived.have, data), Arrived)
        take = ModelTake(part.version.digest, offer.digest, switch, unmeasured)
        found: InForce = self.ask("model_take", take, InForce)
        return found

    def inventory(self, version: str = "") -> Inventory:
        found: Inventory = self.ask("models", ModelQuery(version), Inventory)
        return found

    def counted(self, name: str) -> Any:
        return self.ledger.snapshot()[name]


def a_part(version: str, offer: ModelOffer, offset: int, data: bytes) -> ModelPart:
    return ModelPart(version, offer.digest, offset, data, xxhash.xxh3_64_intdigest(data))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    ledger = Ledger()
    with State(tmp_path / "state") as state:
        yield Store(ModelDesk(state, ledger, most_bytes=1 << 20), state, ledger)


@pytest.fixture
def tuner(tmp_path: Path) -> Registry:
    """A registry elsewhere, with the two versions of `held`."""
    registry = Registry(tmp_path / "tuner")
    fill(registry)
    return registry


def whole(registry: Registry, version: ModelVersion = OLD) -> Part:
    (part,) = cheapest(registry, [], version.digest).parts
    return part


def step_from_old(registry: Registry) -> Part:
    (part,) = cheapest(registry, [OLD.digest], NEW.digest).parts
    return part


class TestSending:
    def test_a_version_comes_whole_and_then_a_delta_to_it(self, store: Store, tuner: Registry) -> None:
        assert store.send(whole(tuner), switch=True) == InForce(NAME, OLD.digest, [])
        delta = step_from_old(tuner)
        assert (delta.base, delta.graphs) == (OLD.digest, {})
        assert store.send(delta, switch=True) == InForce(NAME, NEW.digest, [OLD.digest])
        kept = store.state.registry.get(NAME)
        assert kept.facts == tuner.get(NEW.digest).facts
        assert store.counted("headwater_model_switches_total") == 2
        assert store.counted("headwater_bytes_received_total")["model"] > 0

    def test_without_a_switch_it_is_only_kept(self, store: Store, tuner: Registry) -> None:
        assert store.send(whole(tuner)) == InForce(NAME, "", [])
        assert store.state.registry.names() == []
        assert [facts.digest for facts in store.inventory().versions] == [OLD.digest]
        assert store.counted("headwater_model_switches_total") == 0

    def test_everything_may_be_asked_twice(self, store: Store, tuner: Registry) -> None:
        part = whole(tuner)
        arrived, offer, body = store.offer(part)
        assert arrived == Arrived(0)
        for data in (body[:300], body[:300]):
            message = a_part(OLD.digest, offer, 0, data)
            assert store.ask("model_part", message, Arrived) == Arrived(300)
        assert store.offer(part)[0] == Arrived(300)
        last = a_part(OLD.digest, offer, 300, body[300:])
        assert store.ask("model_part", last, Arrived) == Arrived(len(body))
        take = ModelTake(OLD.digest, offer.digest, switch=True)
        for _ in range(2):
            assert store.ask("model_take", take, InForce) == InForce(NAME, OLD.digest, [])
        assert store.offer(part)[0] == Arrived(len(body), held=True)
        assert store.ask("model_part", last, Arrived).held
        assert store.counted("headwater_bytes_received_total")["model"] == len(body)
        assert store.counted("headwater_model_switches_total") == 1

    def test_one_caller_cannot_go_on_with_what_another_sends(self, store: Store, tuner: Registry) -> None:
        _, offer, body = store.offer(whole(tuner))
        with pytest.raises(ModelNotFound, match=r"nothing of version .* is on its way here; offer it first"):
            store.ask("model_part", a_part(OLD.digest, offer, 0, body), Arrived, OTHER)
        with pytest.raises(ModelNotFound, match="offer it first"):
            store.ask("model_take", ModelTake(OLD.digest, offer.digest), InForce, OTHER)

    def test_an_altered_or_truncated_part_is_refused_and_changes_nothing(
        self, store: Store, tuner: Registry
    ) -> None:
        _, offer, body = store.offer(whole(tuner))
        good = a_part(OLD.digest, offer, 0, body[:300])
        altered = bytes([body[0] ^ 1]) + body[1:300]
        for data in (altered, body[:299], body[:301], b""):
            with pytest.raises(ModelRefused, match=r"bytes from 0 on were altered; send them again"):
                store.ask("model_part", msgspec.structs.replace(good, data=data), Arrived)
        assert store.offer(whole(tuner))[0] == Arrived(0)

    def test_what_did_not_come_whole_is_not_taken(self, store: Store, tuner: Registry) -> None:
        _, offer, body = store.offer(whole(tuner))
        store.ask("model_part", a_part(OLD.digest, offer, 0, body[:-1]), Arrived)
        with pytest.raises(ModelRefused, match="bytes have come; send the rest"):
            store.ask("model_take", ModelTake(OLD.digest, offer.digest, switch=True), InForce)
        assert store.inventory().versions == []

    def test_a_version_that_is_damaged_here_is_sent_again(self, store: Store, tuner: Registry) -> None:
        store.send(whole(tuner), switch=True)
        for pack in (store.state.models / "packs").iterdir():
            pack.write_bytes(pack.read_bytes()[:-1] + b"\0")
        with pytest.raises(ModelError):
            store.state.registry.get(NAME)
        with pytest.raises(ModelError):
            store.ask("model_switch", ModelSwitch(NAME, OLD.digest), InForce)
        store.send(whole(tuner), switch=True)
        assert store.state.registry.get(NAME).facts == tuner.get(OLD.digest).facts

    def test_who_waits_for_another_is_told_to_ask_again(
        self, store: Store, tuner: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(modeldesk, "_PATIENCE", 0.01)
        store.send(whole(tuner))
        with store.desk._turn(), pytest.raises(Busy, match="another model is being taken in; ask again"):
            store.ask("model_switch", ModelSwitch(NAME, OLD.digest), InForce)

    def test_many_threads_at_once(self, store: Store, tuner: Registry) -> None:
        store.send(whole(tuner), switch=True)
        store.send(step_from_old(tuner))
        failed: list[Exception] = []

        def switch(digest: str) -> None:
            try:
                for _ in range(10):
                    store.ask("model_switch", ModelSwitch(NAME, digest), InForce)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=switch, args=(digest,)) for digest in (OLD.digest, NEW.digest) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert store.state.registry.current(NAME).digest in (OLD.digest, NEW.digest)


class TestLooking:
    def test_what_is_held_and_in_force(self, store: Store) -> None:
        assert store.inventory() == Inventory({}, [])
        fill(store.state.registry)
        found = store.inventory(NAME)
        assert found.current == {NAME: [NEW.digest, OLD.digest]}
        parents = {facts.digest: facts.parent for facts in found.versions}
        assert parents == {OLD.digest: None, NEW.digest: OLD.digest}
        facts = next(each for each in found.versions if each.digest == NEW.digest)
        assert (facts.name, facts.by, facts.classes, facts.features, facts.tensors) == (NAME, "push", 3, 4, 4)
        assert facts.bytes == NEW.nbytes
        assert facts.graphs == list(NEW.graphs.values())
        assert ModelVersion.from_json(found.manifest).digest == NEW.digest

    def test_what_is_damaged_is_passed_over(self, store: Store) -> None:
        fill(store.state.registry)
        store.state.registry.switch("stable", OLD.digest)
        for kind, name in (("versions", f"{NEW.digest}.json"), ("current", NAME)):
            path = store.state.models / kind / name
            path.write_bytes(path.read_bytes()[:-1])
        found = store.inventory()
        assert [facts.digest for facts in found.versions] == [OLD.digest]
        assert found.current == {"stable": [OLD.digest]}

    def test_an_unknown_version_is_named_without_a_path(self, store: Store, tmp_path: Path) -> None:
        for reference in ("birds", "f" * 32, "ffffffff"):
            with pytest.raises(ModelNotFound) as caught:
                store.inventory(reference)
            assert reference[:8] in str(caught.value)
            assert str(tmp_path) not in str(caught.value)

    def test_a_store_without_a_state_keeps_no_models(self) -> None:
        desk = ModelDesk(None, Ledger(), most_bytes=1)
        with pytest.raises(ModelError, match=r"keeps no models; start it with --state FOLDER"):
            desk.answers["models"](messages.encode(ModelQuery()), TUNER)


class TestSwitching:
    @pytest.fixture(autouse=True)
    def full(self, store: Store) -> None:
        fill(store.state.registry)

    def test_to_any_version_that_is_here(self, store: Store) -> None:
        found = store.ask("model_switch", ModelSwitch(NAME, OLD.digest), InForce)
        assert found == InForce(NAME, OLD.digest, [NEW.digest, OLD.digest])
        assert store.ask("model_switch", ModelSwitch(NAME, OLD.digest), InForce) == found
        assert store.ask("model_switch", ModelSwitch("stable", NEW.digest), InForce) == InForce(
            "stable", NEW.digest, []
        )
        assert store.counted("headwater_model_switches_total") == 2

    def test_not_to_one_that_is_not_here(self, store: Store) -> None:
        with pytest.raises(ModelNotFound, match="version ffffffffffff is not in the registry STATE/models"):
            store.ask("model_switch", ModelSwitch(NAME, "f" * 32), InForce)

    @pytest.mark.parametrize("name", ["../birds", "/etc/passwd", "", ".", "a" * 65, "f" * 32, "a\nb", "a/b"])
    def test_a_name_is_never_a_path(self, store: Store, name: str, tmp_path: Path) -> None:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(WrongUse, match="a model cannot be called"):
            store.ask("model_switch", ModelSwitch(name, OLD.digest), InForce)
        with pytest.raises(ModelNotFound, match="none can be withdrawn"):
            store.ask("model_rollback", ModelRollback(name, OLD.digest), InForce)
        assert sorted(tmp_path.rglob("*")) == before

    def test_back_to_the_one_before_and_only_once(self, store: Store) -> None:
        back = ModelRollback(NAME, NEW.digest)
        for _ in range(2):
            assert store.ask("model_rollback", back, InForce) == InForce(NAME, OLD.digest, [])
        assert store.counted("headwater_model_switches_total") == 1
        with pytest.raises(ModelError, match="in force before"):
            store.ask("model_rollback", ModelRollback(NAME, OLD.digest), InForce)

    def test_what_was_gone_back_from_labels_no_further(self, store: Store) -> None:
        withdrawn: list[str] = []

        def withdraw(version: str) -> list[str]:
            withdrawn.append(version)
            return [f"job of {version[:6]}"]

        desk = ModelDesk(store.state, store.ledger, most_bytes=1 << 20, withdraw=withdraw)
        told = replace(store, desk=desk)
        ended = [f"job of {NEW.digest[:6]}"]
        for _ in range(2):  # the first answer may have been lost, or the store killed before it ended the job
            back = told.ask("model_rollback", ModelRollback(NAME, NEW.digest), InForce)
            assert back == InForce(NAME, OLD.digest, [], ended)
        assert told.ask("model_switch", ModelSwitch(NAME, NEW.digest), InForce).stopped == []
        late = told.ask("model_rollback", ModelRollback(NAME, OLD.digest), InForce)
        assert (late.current, late.stopped) == (NEW.digest, []), "it has a newer one since"
        assert told.ask("model_switch", ModelSwitch(NAME, OLD.digest), InForce).stopped == ended
        assert withdrawn == [NEW.digest] * 3
        told.ask("model_switch", ModelSwitch("stable", NEW.digest), InForce)
        told.ask("model_switch", ModelSwitch(NAME, NEW.digest), InForce)
        back = told.ask("model_rollback", ModelRollback(NAME, NEW.digest), InForce)
        assert (back.current, back.stopped) == (OLD.digest, []), "it is in force under another name"

    def test_a_name_that_is_not_in_force_cannot_go_back(self, store: Store) -> None:
        with pytest.raises(ModelNotFound, match="no version of 'cats' is in force"):
            store.ask("model_rollback", ModelRollback("cats", NEW.digest), InForce)


def forge(model: Model, **fields: Any) -> ModelVersion:
    """A manifest with its right digest, of a model that no registry would keep."""
    usual: dict[str, Any] = {
        "name": NAME,
        "parent": None,
        "made": {"by": "push"},
        "graphs": {part: digest_of(data) for part, data in model.graphs.items()},
        "tensors": model.facts,
        "classes": model.classes,
        "steps": model.steps,
        "features": 4,
        "time": "2026-01-01T00:00:00+00:00",
    }
    return seal(ModelVersion(digest="", **(usual | fields)))


def shipped(model: Model, **fields: Any) -> Part:
    """All of a model, whatever it is."""
    graphs = {digest_of(data): data for data in model.graphs.values()}
    return Part(forge(model, **fields), None, encode(None, model.tensors), graphs)


def with_trunk(trunk: bytes) -> Model:
    good = make_model()
    return Model(trunk, None, good.tensors, good.classes, good.steps)


def other_operator() -> Part:
    nodes = trunk_nodes()
    nodes[1] = helper.make_node("NonZero", ["a"], ["b"])
    return shipped(with_trunk(split_tensors(trunk_file(nodes=nodes))[0]))


def other_domain() -> Part:
    nodes = trunk_nodes()
    nodes[1] = helper.make_node("Relu", ["a"], ["b"], domain="evil")
    return shipped(with_trunk(split_tensors(trunk_file(nodes=nodes))[0]))


def refers_to_a_file() -> Part:
    trunk = make_model().trunk
    return shipped(with_trunk(trunk.replace(b"registry", b"/etc/pwd")))


def other_architecture() -> Part:
    wide = np.zeros((5, 3, 3, 3), np.float32)
    return shipped(change(make_model(), **{"trunk_conv.weight": wide}))


def other_values() -> Part:
    good = shipped(make_model())
    return Part(good.version, None, encode(None, make_tensors(9)), good.graphs)


def other_graph() -> Part:
    good = shipped(make_model())
    (digest,) = good.graphs
    return Part(good.version, None, good.delta, {digest: make_model().trunk + b"\0"})


def pickled_graph() -> Part:
    return shipped(with_trunk(PICKLE))


def pickled_delta() -> Part:
    good = shipped(make_model())
    return Part(good.version, None, PICKLE, good.graphs)


def huge_header() -> Part:
    good = shipped(make_model())
    body = MAGIC + (0xFFFFFFF0).to_bytes(4, "little") + b"x" * 64
    return Part(good.version, None, body + bytes.fromhex(digest_of(body)), good.graphs)


def bomb() -> Part:
    """A tensor whose manifest says that a few bytes unpack to a gigabyte."""
    good = make_model()
    facts = {**good.facts, "head/bias": TensorFacts("float32", (1 << 28,), "0" * 32)}
    graphs = {digest_of(good.trunk): good.trunk}
    return Part(forge(good, tensors=facts), None, encode(None, good.tensors), graphs)


def unknown_step() -> Part:
    good = make_model()
    return shipped(Model(good.trunk, None, good.tensors, good.classes, ({"name": "run", "code": "x"},)))


def other_features() -> Part:
    return shipped(make_model(), features=5)


def steps_of_another_size() -> Part:
    steps = T.Compose([T.CenterCrop(9), T.Normalize(0.45, 0.25)]).spec()
    good = make_model()
    return shipped(Model(good.trunk, None, good.tensors, good.classes, tuple(steps)))


def not_a_number() -> Part:
    return shipped(change(make_model(), head_bias=np.full(3, np.nan, np.float32)))


def missing_graph() -> Part:
    good = shipped(make_model())
    return Part(good.version, None, good.delta, {})


HOSTILE: dict[str, tuple[Callable[[], Part], str]] = {
    "an operator that is not allowed": (other_operator, "operator 'NonZero' is not allowed"),
    "an operator of another domain": (other_domain, "operator sets|operator 'evil.Relu' is not allowed"),
    "a reference to a file": (refers_to_a_file, "refers to .*/etc/pwd"),
    "another architecture": (other_architecture, "another architecture"),
    "a tensor of another digest": (other_values, "should have the digest"),
    "a graph of another digest": (other_graph, "a graph should have the digest"),
    "a pickled graph": (pickled_graph, "pickled content"),
    "a pickled delta": (pickled_delta, "the delta is damaged, or none"),
    "a huge header": (huge_header, "says that its header has 4,294,967,280"),
    "more tensors than the store takes": (bomb, "tensors of 1,07.* bytes; this store takes 1,048,576"),
    "a step that is not known": (unknown_step, "the steps before the model cannot be run here"),
    "other features than the trunk gives": (other_features, "says 5 features, the trunk gives 4"),
    "steps that end in another size": (steps_of_another_size, "does not run on images of 9x9 pixels"),
    "weights that give no numbers": (not_a_number, "does not run .* not finite"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_may_not_come_in_is_refused_by_name(store: Store, what: str) -> None:
    make, said = HOSTILE[what]
    with pytest.raises(ModelRefused, match=said):
        store.send(make(), switch=True)
    assert store.inventory() == Inventory({}, [])
    assert list((store.state.folder / "uploads").iterdir()) == [], "what was refused is not kept"


def test_a_graph_that_is_neither_here_nor_sent(store: Store) -> None:
    with pytest.raises(ModelNotFound, match="is not in the registry STATE/models; have it sent"):
        store.send(missing_graph(), switch=True)


def test_a_start_that_the_store_does_not_hold(store: Store, tuner: Registry) -> None:
    with pytest.raises(ModelNotFound, match=f"version {OLD.digest[:12]} is not in the registry STATE/models"):
        store.offer(step_from_old(tuner))


def test_an_altered_manifest_is_refused(store: Store, tuner: Registry) -> None:
    part = whole(tuner)
    for altered in (part.version.to_json().replace(b'"red"', b'"rod"'), b"", b"{}", PICKLE, b"[" * 100_000):
        with pytest.raises(ModelRefused, match=r"altered|not a manifest"):
            store.offer(part, manifest=altered)


def test_what_is_no_shipment_is_refused(store: Store, tuner: Registry) -> None:
    body, part = PICKLE, whole(tuner)
    offer = ModelOffer(part.version.to_json(), len(body), digest_of(body))
    store.ask("model_offer", offer, Arrived)
    store.ask("model_part", a_part(OLD.digest, offer, 0, body), Arrived)
    with pytest.raises(ModelRefused, match="what came is no shipment"):
        store.ask("model_take", ModelTake(OLD.digest, offer.digest), InForce)


def test_any_bit_of_a_shipment_that_flips_is_noticed(store: Store, tuner: Registry) -> None:
    """Behind the checksums of parts and whole: forged, so that both are right."""
    part = whole(tuner)
    body = messages.encode(Shipment(dict(part.graphs), part.delta))
    rng = np.random.default_rng(5)
    for place in rng.choice(len(body), 60, replace=False):
        spoilt = bytearray(body)
        spoilt[place] ^= 1 << int(rng.integers(8))
        offer = ModelOffer(part.version.to_json(), len(spoilt), digest_of(bytes(spoilt)))
        store.ask("model_offer", offer, Arrived)
        store.ask("model_part", a_part(OLD.digest, offer, 0, bytes(spoilt)), Arrived)
        with pytest.raises((ModelRefused, ModelNotFound)):
            store.ask("model_take", ModelTake(OLD.digest, offer.digest, switch=True), InForce)
        assert store.inventory() == Inventory({}, [])
    assert store.send(part, switch=True).current == OLD.digest


def test_a_new_head_of_more_classes_is_another_version(store: Store, tuner: Registry) -> None:
    store.send(whole(tuner), switch=True)
    grown = tuner.put(make_model(tensors=make_tensors(classes=7)), name=NAME, parent=OLD.digest)
    (part,) = cheapest(tuner, [OLD.digest], grown.digest).parts
    assert store.send(part, switch=True).current == grown.digest
    assert len(store.state.registry.get(NAME).classes) == 7
    assert new_head(make_model(), 1).facts["trunk/conv.weight"] == NEW.tensors["trunk/conv.weight"]


MEASURED = {"by": "quantise", "agreement": 0.97, "images": 256, "bound": 0.95, "data": "5" * 32}


def test_int8_layers_that_nobody_measured_do_not_come_into_force_whoever_asks(store: Store) -> None:
    """The store itself refuses: a client may be another's, or older than the rule."""
    part = shipped(make_int8())
    digest = part.version.digest
    with pytest.raises(
        ModelRefused, match=rf"{digest[:12]} are int8, .* `headwater models quantise`, or say"
    ):
        store.send(part, switch=True)
    assert store.inventory() == Inventory({}, [])
    assert store.send(part).current == "", "it may be held"
    with pytest.raises(ModelRefused, match=r"are int8, and nothing says that 95.0% of labels stay"):
        store.send(part, switch=True)
    with pytest.raises(ModelRefused, match=r"are int8, and nothing says that 95.0% of labels stay"):
        store.ask("model_switch", ModelSwitch(NAME, digest), InForce)
    assert store.inventory().current == {}
    assert store.counted("headwater_model_switches_total") == 0
    found = store.ask("model_switch", ModelSwitch(NAME, digest, unmeasured=True), InForce)
    assert found == InForce(NAME, digest, [])


def test_int8_layers_come_into_force_where_that_is_said_or_their_manifest_tells_of_a_measure(
    store: Store,
) -> None:
    odd, measured = shipped(make_int8()), shipped(make_int8(), made=MEASURED)
    assert store.send(odd, switch=True, unmeasured=True).current == odd.version.digest
    assert store.send(measured, switch=True).current == measured.version.digest
    back = store.ask("model_rollback", ModelRollback(NAME, measured.version.digest), InForce)
    assert back.current == odd.version.digest, "back at once"
