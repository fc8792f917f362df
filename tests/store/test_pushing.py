"""One version to many stores: the fewest bytes to each, and what fails at one keeps no other from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from graphs import Tensors, change, make_model, make_tensors, new_head
from headwater.errors import ModelRefused, Refused, Unreachable, WrongUse
from headwater.models.model import Model
from headwater.models.path import make_approximation
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.client.link import Link
from headwater.store.client.models import models_of
from headwater.store.pushing import Delivery, push
from headwater.store.server.daemon import Daemon
from headwater.store.wire.messages import Inventory
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


def put(tuner: Registry, model: Model, name: str, parent: ModelVersion | None = None) -> ModelVersion:
    return tuner.put(model, name=name, parent=parent and parent.digest, switch=True)


def nudged(model: Model, seed: int) -> Model:
    """All weights slightly changed."""
    rng = np.random.default_rng(seed)
    moved: Tensors = {
        name: (array * (1 + 1e-4 * rng.normal(size=array.shape))).astype(np.float32)
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


def test_an_approximation_that_was_asked_for_costs_a_part_of_it(stores: Stores, tuner: Registry) -> None:
    first = put(tuner, wide(8, features=2000), "rough")
    push(tuner, stores.addresses, "rough")
    exact = put(tuner, nudged(tuner.get("rough"), 9), "rough", first)
    near = make_approximation(tuner, first.digest, exact.digest)
    (rounded,) = push(tuner, stores.addresses[:1], near.digest)
    (whole,) = push(tuner, stores.addresses[1:], exact.digest)
    assert rounded.kind == whole.kind == "delta"
    assert rounded.sent_bytes < 0.6 * whole.sent_bytes
    assert stores.registries[0].get("rough").facts == tuner.get(near.digest).facts


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


@pytest.mark.parametrize("kind", ["packs", "graphs", "places"])
def test_what_is_damaged_at_a_store_is_sent_whole(stores: Stores, tuner: Registry, kind: str) -> None:
    name = f"damaged-{kind}"
    base = make_model(seed=20 + len(kind))
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
