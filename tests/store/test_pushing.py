"""One version to many stores: the fewest bytes to each, and what fails at one keeps no other from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphs import Tensors, change, make_int8, make_model, make_tensors, new_head
from headwater.errors import ModelRefused, Refused, Unreachable, WrongUse
from headwater.models.model import Model
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.client.link import Link
from headwater.store.client.models import models_of
from headwater.store.pushing import Delivery, Terms, bring, push
from headwater.store.server.daemon import Daemon
from headwater.store.wire.modelmessages import Inventory
from seaweed import free_ports
from stores import running_daemon, write_tokens

QUICK = Link(deadline_seconds=1.0, give_up_seconds=1.0)
NOWHERE = "grpc://127.0.0.1:1"


@dataclass(frozen=True)
class Stores:
    """Two stores in this process, and what they keep."""

    daemons: tuple[Daemon, Daemon]
    registries: tuple[Registry, Registry]

    @property
    def addresses(self) -> list[str]:
        return [daemon.serving.address for daemon in self.daemons]


@pytest.fixture(scope="module")
def stores(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    folders = [tmp_path_factory.mktemp(name) for name in ("north", "south")]
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(running_daemon({"photos": photo_folder}, state=folder)) for folder in folders
        )
        kept = Registry(folders[0] / "models"), Registry(folders[1] / "models")
        yield Stores((first, second), kept)


@pytest.fixture
def tuner(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "tuner")


def wide(seed: int, *, features: int = 500) -> Model:
    """Some hundred kilobytes, so that what is sent is mostly tensors."""
    return make_model(tensors=make_tensors(seed, classes=20, features=features))


def wide_int8(seed: int) -> Model:
    """The same behind activations of 8 bits."""
    head = make_tensors(seed, classes=2000)
    int8 = change(make_int8(seed), head_weight=head["head/weight"], head_bias=head["head/bias"])
    return replace(int8, classes=tuple(map(str, range(2000))))


def put(tuner: Registry, model: Model, name: str, parent: ModelVersion | None = None) -> ModelVersion:
    return tuner.put(model, name=name, parent=parent and parent.digest, switch=True)


def nudged(model: Model, seed: int) -> Model:
    """All weights slightly changed."""
    rng = np.random.default_rng(seed)
    moved: Tensors = {
        name: (array * (1 + 1e-4 * rng.normal(size=array.shape))).astype(array.dtype)
        for name, array in model.tensors.items()
    }
    return replace(model, tensors=moved)


def test_the_whole_then_a_delta_then_nothing(stores: Stores, tuner: Registry) -> None:
    base = wide(0)
    first = put(tuner, base, "birds")
    whole = push(tuner, stores.addresses, "birds")
    assert [(d.store, d.kind, d.error) for d in whole] == [(a, "whole", None) for a in stores.addresses]
    second = put(tuner, new_head(base, 1), "birds", first)
    bias = np.zeros(20, np.float32)
    third = put(tuner, change(new_head(base, 1), head_bias=bias), "birds", second)
    assert [delivery.kind for delivery in push(tuner, stores.addresses[:1], "birds")] == ["delta"]
    delta, behind = push(tuner, stores.addresses, third.digest)
    assert (delta.kind, behind.kind) == ("nothing", "delta")
    assert delta.sent_bytes < 200
    assert behind.sent_bytes < whole[1].sent_bytes
    for registry in stores.registries:
        assert registry.current("birds").digest == third.digest
        assert registry.get("birds").facts == tuner.get("birds").facts
    assert stores.registries[0].history("birds") == (first.digest,)


def test_a_version_under_another_name(stores: Stores, tuner: Registry) -> None:
    version = put(tuner, make_model(3), "cats")
    (delivery,) = push(tuner, stores.addresses[:1], "cats", name="stable")
    assert delivery.error is None
    assert stores.registries[0].current("stable").digest == version.digest
    assert "cats" not in stores.registries[0].names()


def test_what_is_only_brought_leaves_in_force_what_is(stores: Stores, tuner: Registry) -> None:
    """An older version, and a new model: both are there, and nothing was switched."""
    old, other = put(tuner, wide(20), "held"), put(tuner, wide(21), "held-too")
    new = put(tuner, nudged(wide(20), 22), "held", old)
    push(tuner, stores.addresses, new.digest)
    for version in (old, other, new):
        done = bring(tuner, stores.addresses, version.digest)
        assert [delivery.error for delivery in done] == [None, None]
    for registry in stores.registries:
        assert {old.digest, other.digest, new.digest} <= {version.digest for version in registry.versions()}
        assert registry.current("held").digest == new.digest
        assert "held-too" not in registry.names()


def test_a_chain_where_the_tuner_has_only_deltas(stores: Stores, tuner: Registry) -> None:
    base = wide(5)
    versions = [put(tuner, base, "chained")]
    push(tuner, stores.addresses[:1], "chained")
    for value in (0.5, 0.25):
        moved = change(base, head_bias=np.full(20, value, np.float32))
        versions.append(put(tuner, moved, "chained", versions[-1]))
        tuner.delta(versions[-2].digest, versions[-1].digest)
    for kind in ("versions", "places"):
        (tuner.folder / kind / f"{versions[0].digest}.json").unlink()
    (delivery,) = push(tuner, stores.addresses[:1], "chained")
    assert (delivery.kind, delivery.error) == ("chain", None)
    kept = stores.registries[0]
    assert kept.current("chained").digest == versions[2].digest
    assert kept.get(versions[1].digest).facts == tuner.get(versions[1].digest).facts
    assert kept.history("chained") == (versions[0].digest,), "what lay between was never in force"


def test_a_graph_that_a_store_has_is_not_sent_again(stores: Stores, tuner: Registry) -> None:
    """Also where the registry has lost the version that brought it there."""
    model = long_winded(make_model(30))
    first = put(tuner, model, "graphic")
    push(tuner, stores.addresses[:1], "graphic")
    second = put(tuner, new_head(model, 31), "graphic")
    tuner.delta(first.digest, second.digest)
    (tuner.folder / "versions" / f"{first.digest}.json").unlink()
    (delivery,) = push(tuner, stores.addresses[:1], "graphic")
    assert (delivery.kind, delivery.error) == ("delta", None)
    assert delivery.sent_bytes < len(model.trunk)
    assert stores.registries[0].get("graphic").facts == tuner.get("graphic").facts


def long_winded(model: Model) -> Model:
    """The same model in a graph of some kilobytes."""
    whole = onnx.load_from_string(model.trunk)
    for node in whole.graph.node:
        node.name = f"{node.op_type} {'with a long name ' * 200}"
    return replace(model, trunk=whole.SerializeToString())


def test_an_approximation_that_was_asked_for_costs_a_part_of_it(stores: Stores, tuner: Registry) -> None:
    first = put(tuner, wide(8, features=2000), "rough")
    push(tuner, stores.addresses, "rough")
    exact = put(tuner, nudged(tuner.get("rough"), 9), "rough", first)
    (rounded,) = push(tuner, stores.addresses[:1], "rough", terms=Terms(approximate=True))
    (whole,) = push(tuner, stores.addresses[1:], "rough")
    assert rounded.kind == whole.kind == "delta"
    assert rounded.sent_bytes < 0.6 * whole.sent_bytes
    near, rounding = tuner.version(rounded.version), rounded.rounding
    assert (near.made["of"], near.parent) == (exact.digest, first.digest)
    assert rounding is not None
    assert abs(rounding.exact_bytes - whole.sent_bytes) < 1000
    assert 0 < rounding.largest_error < 1e-3
    assert rounding.largest_error == near.made["largest error"]
    assert (whole.version, whole.rounding) == (exact.digest, None)
    assert stores.registries[0].current("rough").digest == near.digest
    assert stores.registries[0].get("rough").facts == tuner.get(near.digest).facts
    assert tuner.current("rough").digest == exact.digest
    (again,) = push(tuner, stores.addresses[:1], "rough", terms=Terms(approximate=True))
    assert (again.kind, again.version) == ("nothing", near.digest)
    (mended,) = push(tuner, stores.addresses[:1], "rough")
    assert (mended.kind, mended.version) == ("delta", exact.digest), "the exact one, once that is asked for"
    assert stores.registries[0].get("rough").facts == tuner.get("rough").facts


def test_an_approximation_is_sent_only_where_it_saves(stores: Stores, tuner: Registry) -> None:
    """Not to who has nothing, nor where what changed cannot be rounded."""
    base = wide(40)
    first = put(tuner, base, "smooth")
    (whole,) = push(tuner, stores.addresses[:1], "smooth", terms=Terms(approximate=True))
    assert (whole.kind, whole.version, whole.rounding) == ("whole", first.digest, None)
    second = put(tuner, change(base, head_bias=np.ones(20, np.float32)), "smooth", first)
    (delta,) = push(tuner, stores.addresses[:1], "smooth", terms=Terms(approximate=True))
    assert (delta.kind, delta.version, delta.rounding) == ("delta", second.digest, None)


def test_int8_steps_that_reach_the_version_itself_are_no_approximation(
    stores: Stores, tuner: Registry
) -> None:
    """Weights that moved by 127 steps of a power of two: rounding loses nothing, and takes fewer bytes."""
    base = wide(44)
    grid = np.round(64 * base.tensors["head/weight"]) / np.float32(64)
    base = change(base, head_weight=grid + np.float32(0))  # no zero is negative
    first = put(tuner, base, "one-step")
    push(tuner, stores.addresses, "one-step")
    weight = base.tensors["head/weight"].copy()
    moved = np.random.default_rng(45).random(weight.shape) < 0.3
    weight[moved] += np.float32(127 / 256)
    second = put(tuner, change(base, head_weight=weight), "one-step", first)
    (exact,) = push(tuner, stores.addresses[1:], "one-step")
    (near,) = push(tuner, stores.addresses[:1], "one-step", terms=Terms(approximate=True))
    assert (near.error, near.version, near.rounding) == (None, second.digest, None)
    assert near.sent_bytes < exact.sent_bytes, "the case that is meant"
    assert stores.registries[0].get("one-step").facts == tuner.get("one-step").facts


def test_int8_that_a_store_has_made_of_the_version_stays_in_force(stores: Stores, tuner: Registry) -> None:
    """A timer that pushes must not undo what the store's own job did; what is newer comes, though."""
    base = wide(41)
    first = put(tuner, base, "small")
    push(tuner, stores.addresses, "small")
    there = stores.registries[0]
    int8 = there.put(
        nudged(base, 42), name="small", parent=first.digest, made={"by": "quantise"}, switch=True
    )
    done, plain = push(tuner, stores.addresses, "small")
    assert (done.kind, done.version, done.error) == ("nothing", int8.digest, None)
    assert (plain.kind, plain.version) == ("nothing", first.digest)
    assert there.current("small").digest == int8.digest
    second = put(tuner, new_head(base, 43), "small", first)
    (newer,) = push(tuner, stores.addresses[:1], "small")
    assert (newer.kind, newer.version) == ("delta", second.digest)
    assert there.current("small").digest == second.digest
    (older,) = push(tuner, stores.addresses[:1], first.digest)
    assert (older.version, there.current("small").digest) == (first.digest, first.digest), "who asks for it"


def test_a_store_that_is_away_is_named_and_left_behind(stores: Stores, tuner: Registry) -> None:
    put(tuner, make_model(10), "away")
    gone, there = push(tuner, [NOWHERE, stores.addresses[0]], "away", link=QUICK)
    assert gone.away
    assert isinstance(gone.error, Unreachable)
    assert "127.0.0.1:1" in str(gone.error)
    assert (there.error, there.away) == (None, False)
    assert stores.registries[0].names().count("away") == 1


def test_a_store_that_returns_while_it_is_waited_for(
    tuner: Registry, photo_folder: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    version = put(tuner, make_model(11), "late")
    found: list[Delivery] = []
    address = f"grpc://127.0.0.1:{port}"
    waiting = threading.Thread(
        target=lambda: found.extend(push(tuner, [address], "late", link=QUICK, wait_seconds=60)), daemon=True
    )
    waiting.start()
    with running_daemon({"photos": photo_folder}, listen=f"127.0.0.1:{port}", state=tmp_path / "state"):
        waiting.join(60)
    assert [delivery.error for delivery in found] == [None]
    assert Registry(tmp_path / "state" / "models").current("late").digest == version.digest


@pytest.mark.parametrize("kind", ["packs", "graphs", "places", "versions", "current"])
def test_what_is_damaged_at_a_store_is_sent_whole(stores: Stores, tuner: Registry, kind: str) -> None:
    name = f"damaged-{kind}"
    base = make_model(seed=20 + sum(kind.encode()))
    first = put(tuner, base, name)
    push(tuner, stores.addresses[:1], name)
    registry = stores.registries[0]
    folder = registry.folder / kind
    victims = {
        "packs": [
            folder / f"{pack}.safetensors" for pack in set(registry._holdings.places(first.digest).values())
        ],
        "graphs": [folder / f"{graph}.onnx" for graph in first.graphs.values()],
        "places": [folder / f"{first.digest}.json"],
        "versions": [folder / f"{first.digest}.json"],
        "current": [folder / name],
    }[kind]
    for path in victims:
        path.write_bytes(path.read_bytes()[:-1])
    for model, parent in ((base, None), (new_head(base, 1), first)):
        version = put(tuner, model, name, parent)
        (delivery,) = push(tuner, stores.addresses[:1], version.digest)
        assert delivery.error is None
        assert registry.get(name).facts == model.facts


def test_what_one_store_refuses_others_take(
    stores: Stores, tuner: Registry, photo_folder: Path, tmp_path: Path
) -> None:
    put(tuner, make_model(12), "large")
    with running_daemon({"photos": photo_folder}, state=tmp_path / "small", model_bytes=100) as small:
        refused, taken = push(tuner, [small.serving.address, stores.addresses[0]], "large")
    assert isinstance(refused.error, ModelRefused)
    assert "this store takes 100: raise model_bytes there" in str(refused.error)
    assert not refused.away
    assert taken.error is None


def test_a_token_that_may_read_cannot_push(tuner: Registry, photo_folder: Path, tmp_path: Path) -> None:
    secrets = {"reader": "r" * 32, "tuner": "t" * 32}
    tokens = write_tokens(
        tmp_path,
        reader={"secret": secrets["reader"], "scopes": ["read", "jobs", "labels", "admin"]},
        tuner={"secret": secrets["tuner"], "scopes": ["models"]},
    )
    put(tuner, make_model(13), "guarded")
    settings = {"state": tmp_path / "state", "token_file": tokens}
    with running_daemon({"photos": photo_folder}, **settings) as daemon:
        address = [daemon.serving.address]
        (refused,) = push(tuner, address, "guarded", token=secrets["reader"])
        assert isinstance(refused.error, Refused)
        assert "'reader' lacks scope 'models'" in str(refused.error)
        assert Registry(tmp_path / "state" / "models").versions() == []
        (taken,) = push(tuner, address, "guarded", token=secrets["tuner"])
        assert taken.error is None


def test_a_store_without_a_state_says_how_to_get_one(tuner: Registry, photo_folder: Path) -> None:
    put(tuner, make_model(14), "homeless")
    with running_daemon({"photos": photo_folder}) as daemon:
        (delivery,) = push(tuner, [daemon.serving.address], "homeless")
    assert "keeps no models; start it with --state FOLDER" in str(delivery.error)


def test_progress_grows_to_the_end(stores: Stores, tuner: Registry) -> None:
    put(tuner, wide(15), "watched")
    seen: list[tuple[str, int, int]] = []
    push(tuner, stores.addresses, "watched", watch=lambda *told: seen.append(told))
    for address in stores.addresses:
        told = [(have, total) for store, have, total in seen if store == address]
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] > 0


def test_stores_are_named_once_and_at_least_one(tuner: Registry) -> None:
    put(tuner, make_model(), "birds")
    for addresses in ([], [NOWHERE, NOWHERE]):
        with pytest.raises(WrongUse, match="name each once, and at least one"):
            push(tuner, addresses, "birds")


def test_a_store_that_drains_takes_nothing_and_still_tells(
    tuner: Registry, photo_folder: Path, tmp_path: Path
) -> None:
    put(tuner, make_model(16), "drained")
    with running_daemon({"photos": photo_folder}, state=tmp_path / "state") as daemon:
        daemon.drain()
        (delivery,) = push(tuner, [daemon.serving.address], "drained", link=QUICK)
        assert delivery.away
        assert "the store is draining" in str(delivery.error)
        with models_of(daemon.serving.address) as models:
            assert models.inventory() == Inventory({}, [])


MEASURED = {"by": "quantise", "agreement": 0.97, "images": 256, "bound": 0.95, "data": "5" * 32}


def test_int8_layers_that_nobody_measured_are_refused_before_they_are_sent(
    stores: Stores, tuner: Registry
) -> None:
    there = stores.registries[0]
    old = put(tuner, make_model(50), "plovers")
    push(tuner, stores.addresses[:1], "plovers")
    odd = tuner.put(make_int8(51), name="plovers", switch=True, unmeasured=True)
    (refused,) = push(tuner, stores.addresses[:1], "plovers")
    assert isinstance(refused.error, ModelRefused)
    assert (refused.kind, refused.sent_bytes, there.current("plovers")) == ("", 0, old)
    (held,) = bring(tuner, stores.addresses[:1], "plovers")
    assert (held.error, there.current("plovers"), odd.digest in there) == (None, old, True)
    (done,) = push(tuner, stores.addresses[:1], "plovers", terms=Terms(unmeasured=True))
    assert (done.error, done.kind, there.current("plovers")) == (None, "nothing", odd)
    (again,) = push(tuner, stores.addresses[:1], "plovers")
    assert (again.error, there.current("plovers")) == (None, odd), "a timer leaves it in force"


def test_int8_layers_are_sent_exactly_because_what_is_near_them_was_not_measured(
    stores: Stores, tuner: Registry
) -> None:
    first = tuner.put(wide_int8(52), name="knots", made=MEASURED, switch=True)
    push(tuner, stores.addresses, "knots")
    second = tuner.put(
        nudged(tuner.get("knots"), 53), name="knots", parent=first.digest, made=MEASURED, switch=True
    )
    (exact,) = push(tuner, stores.addresses[:1], "knots", terms=Terms(approximate=True))
    assert (exact.error, exact.version, exact.rounding) == (None, second.digest, None)
    free = Terms(approximate=True, unmeasured=True)
    (near,) = push(tuner, stores.addresses[1:], "knots", terms=free)
    assert near.rounding is not None
    assert stores.registries[1].current("knots").digest == near.version != second.digest
