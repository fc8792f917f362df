from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import are_same, change, make_model, make_tensors, new_head
from headwater.errors import ModelNotFound
from headwater.models import path as paths
from headwater.models.model import Model
from headwater.models.path import Path as Way
from headwater.models.path import cheapest, differing_bytes, find_approximation, make_approximation
from headwater.models.registry import Registry

NONE = "0" * 32


def large_head(seed: int, *, share: float = 0.01) -> Model:
    """A model with a head that is worth coding; the next seed is a small change."""
    tensors = make_tensors(classes=30, features=400)
    weight = tensors["head/weight"]
    for step in range(seed):
        weight = weight * (1 + share * np.random.default_rng(step).normal(size=weight.shape))
    return make_model(tensors=tensors | {"head/weight": weight.astype(np.float32)})


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "sender")


@pytest.fixture
def store(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "store")


def send(way: Way, store: Registry) -> None:
    """What a wire will do."""
    for part in way.parts:
        store.receive(part.version, part.delta, base=part.base, graphs=part.graphs)


def held(store: Registry) -> list[str]:
    return [version.digest for version in store.versions()]


def test_who_has_it_is_sent_nothing(registry: Registry) -> None:
    version = registry.put(make_model(), name="birds", switch=True)
    way = cheapest(registry, [version.digest], "birds")
    assert (way.parts, way.nbytes, way.kind) == ((), 0, "nothing")


def test_who_has_nothing_is_sent_the_whole(registry: Registry, store: Registry) -> None:
    version = registry.put(make_model(), name="birds")
    for holding in ([], [NONE]):
        way = cheapest(registry, holding, version.digest)
        assert way.kind == "whole"
    assert way.nbytes > len(make_model().trunk) + len(registry.delta(None, version.digest))
    send(way, store)
    assert are_same(store.get(version.digest).tensors, make_tensors())


def test_who_has_another_version_is_sent_a_delta(registry: Registry, store: Registry) -> None:
    model = make_model()
    first = registry.put(model, name="birds")
    second = registry.put(new_head(model, 2), name="birds", parent=first.digest)
    send(cheapest(registry, [], first.digest), store)
    way = cheapest(registry, held(store), second.digest)
    assert way.kind == "delta"
    assert way.parts[0].base == first.digest
    assert way.parts[0].graphs == {}
    assert way.nbytes < cheapest(registry, [], second.digest).nbytes
    send(way, store)
    assert store.version(second.digest) == second
    assert are_same(store.get(second.digest).tensors, new_head(model, 2).tensors)


def test_the_nearest_of_the_held_versions_is_the_base(registry: Registry) -> None:
    model = make_model()
    far = [registry.put(make_model(seed), name="birds").digest for seed in range(20, 26)]
    near = registry.put(new_head(model, 1), name="birds").digest
    target = registry.put(new_head(model, 2), name="birds").digest
    assert cheapest(registry, [*far, near], target).parts[0].base == near


def test_a_new_graph_is_sent_once(registry: Registry, store: Registry) -> None:
    model = make_model()
    other = Model(model.trunk.replace(b"test", b"tset"), None, model.tensors, model.classes, model.steps)
    first, second = registry.put(model, name="birds"), registry.put(other, name="birds")
    send(cheapest(registry, [], first.digest), store)
    way = cheapest(registry, held(store), second.digest)
    assert way.parts[0].graphs == {second.graphs["trunk"]: other.trunk}
    send(way, store)
    assert store.get(second.digest).trunk == other.trunk


def test_a_graph_that_is_said_to_be_there_is_not_sent(registry: Registry, store: Registry) -> None:
    """Of a version that the registry has not, it does not know the graphs itself."""
    first, second = make_line(registry, 2)
    send(cheapest(registry, [], first), store)
    registry.switch("birds", second)
    registry.collect()
    graphs = [graph for version in store.versions() for graph in version.graphs.values()]
    assert cheapest(registry, held(store), second).parts[0].graphs
    way = cheapest(registry, held(store), second, graphs=graphs)
    assert way.kind == "delta"
    assert not way.parts[0].graphs
    send(way, store)
    assert are_same(store.get(second).tensors, registry.get(second).tensors)


def make_line(registry: Registry, count: int, *, share: float = 0.01) -> list[str]:
    """Versions that each change a little, with the deltas between neighbours kept."""
    digests: list[str] = []
    for seed in range(count):
        parent = digests[-1] if digests else None
        digests.append(registry.put(large_head(seed, share=share), name="birds", parent=parent).digest)
        if parent:
            registry.delta(parent, digests[-1])
    return digests


def test_a_chain_serves_who_has_what_the_registry_has_not(registry: Registry, store: Registry) -> None:
    first, second, third = make_line(registry, 3)
    send(cheapest(registry, [], first), store)
    registry.switch("birds", second)
    registry.switch("birds", third)
    registry.collect()
    assert first not in registry
    way = cheapest(registry, held(store), third)
    assert way.kind == "chain"
    assert [(part.base, part.version.digest) for part in way.parts] == [(first, second), (second, third)]
    assert way.nbytes < cheapest(registry, [], third).nbytes
    send(way, store)
    assert are_same(store.get(third).tensors, registry.get(third).tensors)


def test_a_chain_that_is_longer_than_the_whole_is_not_taken(registry: Registry) -> None:
    digests = make_line(registry, 5, share=3.0)
    registry.switch("birds", digests[1])
    registry.collect(keep=digests[2:])
    assert digests[0] not in registry
    way = cheapest(registry, [digests[0]], digests[4])
    assert way.kind == "whole"
    assert way.nbytes == cheapest(registry, [], digests[4]).nbytes


def test_one_delta_is_preferred_to_a_longer_chain(registry: Registry) -> None:
    digests = make_line(registry, 4)
    way = cheapest(registry, [digests[0]], digests[3])
    assert way.kind == "delta"
    assert way.parts[0].base == digests[0]


def test_a_damaged_delta_whose_base_is_gone_is_passed_over(registry: Registry, store: Registry) -> None:
    first, second = make_line(registry, 2)
    registry.switch("birds", second)
    registry.collect()
    path = registry.folder / "deltas" / f"{first}-{second}"
    path.write_bytes(path.read_bytes()[:-1])
    way = cheapest(registry, [first], second)
    assert way.kind == "whole"
    send(way, store)


def test_a_target_that_is_not_there_is_said_so(registry: Registry) -> None:
    with pytest.raises(ModelNotFound):
        cheapest(registry, [], NONE)


@settings(max_examples=15, deadline=None)
@given(
    parents=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    kept=st.sets(st.integers(0, 4)),
    holding=st.sets(st.integers(0, 4)),
    gone=st.booleans(),
)
def test_never_more_than_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    parents: list[int],
    kept: set[int],
    holding: set[int],
    gone: bool,
) -> None:
    """Any tree of versions, deltas kept, versions held: the path arrives, and is no longer than the whole."""
    folder = tmp_path_factory.mktemp("tree")
    sender, store = Registry(folder / "sender"), Registry(folder / "store")
    digests = [sender.put(large_head(0), name="birds").digest]
    for number, parent in enumerate(parents, start=1):
        model = change(large_head(number), head_bias=np.full(30, number, np.float32))
        digests.append(sender.put(model, name="birds", parent=digests[parent % number]).digest)
        if number in kept:
            sender.delta(digests[parent % number], digests[number])
    target = digests[-1]
    for number in sorted(holding & set(range(len(digests)))):
        send(cheapest(sender, [], digests[number]), store)
    if gone:
        sender.switch("birds", target)
        sender.collect(ancestors=1)
    way = cheapest(sender, held(store), target)
    assert way.nbytes <= cheapest(sender, [], target).nbytes
    send(way, store)
    assert are_same(store.get(target).tensors, sender.get(target).tensors)


def test_an_approximation_is_a_version_of_its_own(registry: Registry, store: Registry) -> None:
    old = registry.put(large_head(0), name="birds")
    new = registry.put(large_head(1), name="birds", parent=old.digest)
    near = make_approximation(registry, old.digest, new.digest)
    assert near.digest not in (old.digest, new.digest)
    assert (near.name, near.parent) == ("birds", old.digest)
    error = np.abs(
        registry.get(near.digest).tensors["head/weight"] - large_head(1).tensors["head/weight"]
    ).max()
    assert near.made == {"by": "int8 delta", "of": new.digest, "largest error": pytest.approx(float(error))}
    assert 0 < error < 1e-3
    send(cheapest(registry, [], old.digest), store)
    way = cheapest(registry, held(store), near.digest)
    exact = cheapest(registry, held(store), new.digest)
    assert len(way.parts[0].delta) < 0.6 * len(exact.parts[0].delta)
    send(way, store)
    assert are_same(store.get(near.digest).tensors, registry.get(near.digest).tensors)
    assert make_approximation(registry, old.digest, new.digest) == near, "made once"


def test_errors_of_approximations_do_not_add_up(registry: Registry) -> None:
    """Each is made against what the store really has."""
    at_store = registry.put(large_head(0), name="birds").digest
    for seed in range(1, 6):
        target = registry.put(large_head(seed), name="birds").digest
        near = make_approximation(registry, at_store, target)
        assert near.made["largest error"] < 2e-3
        at_store = near.digest


def test_an_approximation_is_found_for_who_holds_something(registry: Registry) -> None:
    first, second, target = make_line(registry, 3)
    near = find_approximation(registry, [first, second, NONE], target)
    assert near.parent in (first, second)
    assert near.made["of"] == target
    assert find_approximation(registry, [first, near.digest], target) == near, "what is there will do"
    assert find_approximation(registry, [NONE], target).digest == target


def test_a_version_that_is_damaged_here_is_passed_over(registry: Registry) -> None:
    first, second, target = make_line(registry, 3)
    for digest in (second, target):
        registry.switch("birds", digest)
    registry.collect()
    assert cheapest(registry, [first], target).kind == "chain"
    path = registry.folder / "versions" / f"{second}.json"
    path.write_bytes(path.read_bytes()[:-1])
    assert cheapest(registry, [first], target).kind == "whole", "the way through it is barred"
    way = cheapest(registry, [second], target)
    assert (way.kind, way.parts[0].base) == ("delta", second), "the delta is kept, and is applied there"


def test_where_nothing_is_worth_rounding_the_version_itself_is_sent(registry: Registry) -> None:
    model = make_model()
    old = registry.put(model, name="birds")
    new = registry.put(change(model, head_bias=np.ones(3, np.float32)), name="birds")
    assert make_approximation(registry, old.digest, new.digest) == new
    assert (old.digest, new.digest) in registry.deltas()


def test_bytes_that_differ(registry: Registry) -> None:
    model = make_model()
    old = registry.put(model, name="birds")
    new = registry.put(new_head(model, 2), name="birds")
    assert differing_bytes(old, new) == sum(
        model.tensors[name].nbytes for name in ("head/weight", "head/bias")
    )
    assert differing_bytes(old, old) == 0
    assert paths._NEAREST >= 1
