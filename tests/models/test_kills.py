"""A registry whose writer is killed at any file operation has the old state or the new, never a mixture."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from graphs import are_same, make_model, make_tensors, new_head
from headwater.models.delta import encode
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from killing import choose, find_points, kill_at

NEW = new_head(make_model(2), 9)
OF_EACH = 10
"""Points of each action that `make test` tries, besides torn writes and renames; `make soak` tries all."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions, the second in force."""
    folder = tmp_path_factory.mktemp("template")
    registry = Registry(folder)
    registry.put(make_model(1), name="birds", switch=True)
    registry.put(make_model(2), name="birds", switch=True)
    registry.put(make_model(3), name="birds")
    return folder


@cache
def sent() -> ModelVersion:
    """The manifest that a sender has."""
    with TemporaryDirectory() as folder:
        return Registry(folder).put(NEW, name="birds")


def put(registry: Registry) -> None:
    registry.put(NEW, name="birds", parent="birds", switch=True)


def receive(registry: Registry) -> None:
    """As a store does."""
    registry.receive(sent(), encode(make_tensors(2), NEW.tensors), base="birds", switch=True)


def switch(registry: Registry) -> None:
    registry.switch("birds", _third(registry))


def rollback(registry: Registry) -> None:
    registry.rollback("birds")


def collect(registry: Registry) -> None:
    registry.collect()


def _third(registry: Registry) -> str:
    held = {registry.current("birds").digest, *registry.history("birds")}
    return next(version.digest for version in registry.versions() if version.digest not in held)


ACTIONS: dict[Callable[[Registry], None], dict[str, object]] = {
    put: NEW.tensors,
    receive: NEW.tensors,
    switch: make_tensors(3),
    rollback: make_tensors(1),
    collect: make_tensors(2),
}
"""What each does, and the weights that are in force after it."""


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["some", "all"])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_killed_at_any_point(
    template: Path, tmp_path: Path, action: Callable[[Registry], None], every: bool
) -> None:
    for name in ("once", "count"):
        shutil.copytree(template, tmp_path / name)
    action(Registry(tmp_path / "once"))  # so that no module is left to be loaded, which would be counted
    points = find_points(lambda: action(Registry(tmp_path / "count")))
    assert len(points) > OF_EACH
    old, new = make_tensors(2), ACTIONS[action]
    outcomes = {"old": 0, "new": 0}
    for point in choose(points, len(points) if every else OF_EACH):
        folder = tmp_path / "killed"
        shutil.copytree(template, folder)
        kill_at(point, lambda folder=folder: action(Registry(folder)))
        outcomes[_state(Registry(folder), old, new)] += 1
        _mend(Registry(folder), action, new)
        shutil.rmtree(folder)
    assert outcomes["old"] or action is collect
    assert outcomes["new"] or not every


def _state(registry: Registry, old: object, new: object) -> str:
    """The registry opens, every version that it lists is whole, and what is in force is one of the two."""
    versions = registry.versions()
    assert len(versions) == len(list((registry.folder / "versions").glob("[!.]*.json"))), "one is damaged"
    for version in versions:
        registry.get(version.digest)
    found = registry.get("birds").tensors
    assert are_same(found, old) or are_same(found, new)  # type: ignore[arg-type]
    for digest in registry.history("birds"):
        registry.get(digest)
    return "new" if are_same(found, new) else "old"  # type: ignore[arg-type]


def _mend(registry: Registry, action: Callable[[Registry], None], new: object) -> None:
    """Nothing is in the way of who does it again, and what was left half done goes."""
    if not are_same(registry.get("birds").tensors, new):  # type: ignore[arg-type]
        action(registry)
    assert are_same(registry.get("birds").tensors, new)  # type: ignore[arg-type]
    registry.collect()
    assert not [path for path in registry.folder.rglob(".*") if path.is_file()]
    assert registry.collect() == 0
