"""Versions that are sealed: they neither run nor come into force, wherever they come from."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from graphs import make_model, new_head
from headwater.errors import ModelRefused
from headwater.models.path import cheapest
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from killing import choose, find_points, kill_at


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


def put(registry: Registry) -> tuple[ModelVersion, ModelVersion, ModelVersion]:
    """Three of one name, the last in force."""
    model = make_model()
    first = registry.put(model, name="birds", switch=True)
    second = registry.put(new_head(model, 1), name="birds", parent=first.digest, switch=True)
    return first, second, registry.put(new_head(model, 2), name="birds", parent=first.digest, switch=True)


def test_a_sealed_version_is_refused_everywhere(registry: Registry, tmp_path: Path) -> None:
    first, second, third = put(registry)
    sent = registry.version(second.digest), registry.delta(None, second.digest)
    graphs = {graph: registry.graph(graph) for graph in second.graphs.values()}
    model = registry.get(second.digest)
    assert registry.seal([second.digest]) == [second.digest]
    assert registry.seal([second.digest]) == []
    uses = (
        lambda: registry.get(second.digest),
        lambda: registry.switch("birds", second.digest),
        lambda: registry.switch("other", second.digest),
        lambda: registry.rollback("birds"),
        lambda: registry.delta(None, second.digest),
        lambda: registry.put(model, name="birds", parent=first.digest),
        lambda: registry.receive(*sent, graphs=graphs),
    )
    for use in uses:
        with pytest.raises(ModelRefused, match=f"version {second.digest[:12]} is sealed"):
            use()
    assert registry.current("birds") == third
    assert registry.switch("birds", first.digest) == first, "what was not sealed may be chosen"


def test_one_in_force_is_not_sealed_nor_are_the_others_with_it(registry: Registry) -> None:
    first, _, third = put(registry)
    with pytest.raises(ModelRefused, match="is in force as 'birds'; put the one that replaces it in force"):
        registry.seal([first.digest, third.digest])
    assert registry.sealed() == set()


def test_its_journal_and_deltas_go_at_once_and_itself_when_garbage_is_collected(registry: Registry) -> None:
    first, second, third = put(registry)
    journals = registry.folder / "journals"
    journals.mkdir()
    for digest in (second.digest, third.digest):
        (journals / f"{digest}.journal").write_bytes(b"journal")
    registry.delta(first.digest, second.digest)
    registry.delta(second.digest, third.digest)
    registry.delta(first.digest, third.digest)
    registry.seal([second.digest])
    assert [path.stem for path in journals.iterdir()] == [third.digest]
    assert list(registry.deltas()) == [(first.digest, third.digest)]
    assert second.digest in registry
    registry.collect()
    assert second.digest not in registry
    assert {first.digest, third.digest} <= {version.digest for version in registry.versions()}
    assert registry.sealed() == {second.digest}, "nobody brings it back"


def test_no_way_leads_over_it(registry: Registry) -> None:
    first, second, third = put(registry)
    registry.seal([second.digest])
    path = cheapest(registry, [second.digest], third.digest)
    assert path.kind == "whole"
    assert cheapest(registry, [first.digest, second.digest], third.digest).parts[0].base == first.digest


def test_killed_at_any_point_it_is_sealed_when_that_is_said_again(tmp_path: Path) -> None:
    def make(folder: Path) -> tuple[Registry, str]:
        registry = Registry(folder)
        _, second, _ = put(registry)
        (folder / "journals").mkdir()
        (folder / "journals" / f"{second.digest}.journal").write_bytes(b"journal")
        return registry, second.digest

    probe, digest = make(tmp_path / "probe")
    points = find_points(partial(probe.seal, [digest]))
    for point in choose(points, 8):
        registry, digest = make(tmp_path / f"killed-{point}")
        kill_at(point, partial(registry.seal, [digest]))
        registry.seal([digest])
        assert registry.sealed() == {digest}
        assert not list((registry.folder / "journals").iterdir())
