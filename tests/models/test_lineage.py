"""What came before a version: parents by their digests, others of its name by their times."""

from __future__ import annotations

import msgspec
import pytest

from graphs import make_model
from headwater.models.lineage import line_of
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion


@pytest.fixture(scope="module")
def any_version(tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    return Registry(tmp_path_factory.mktemp("models")).put(make_model(), name="birds")


class Family:
    """Versions by short names, with a day of their making each."""

    def __init__(self, like: ModelVersion) -> None:
        self._like = like
        self.members: list[ModelVersion] = []

    def add(self, digest: str, day: int, parent: str | None = None, name: str = "birds") -> ModelVersion:
        made = msgspec.structs.replace(
            self._like, digest=digest, parent=parent, name=name, time=f"2026-01-{day:02d}"
        )
        self.members.append(made)
        return made

    def line(self, of: ModelVersion) -> str:
        return "".join(version.digest for version in line_of(of, self.members))


@pytest.fixture
def family(any_version: ModelVersion) -> Family:
    return Family(any_version)


def test_ancestors_come_first_whatever_they_are_called(family: Family) -> None:
    for digest, parent, name in (("c", "b", "birds"), ("b", "a", "geese"), ("a", None, "trunk")):
        last = family.add(digest, 3, parent, name)
    assert family.line(family.members[0]) == "abc"
    assert family.line(last) == "a"


def test_tuned_twice_from_one_trunk_the_later_one_is_newer(family: Family) -> None:
    family.add("t", 1, name="trunk")
    second, first = family.add("b", 5, "t"), family.add("a", 4, "t")
    assert (family.line(second), family.line(first)) == ("tab", "ta")


def test_other_models_did_not_come_before(family: Family) -> None:
    family.add("x", 1, name="cats")
    family.add("y", 2, "gone", name="cats")
    assert family.line(family.add("a", 3, "gone")) == "a"


def test_what_came_before_those_before_came_before(family: Family) -> None:
    family.add("x", 1, name="cats")
    family.add("a", 2, "x")
    assert family.line(family.add("b", 3)) == "xab"


def test_a_parent_is_older_though_its_clock_was_ahead(family: Family) -> None:
    family.add("p", 9)
    family.add("o", 8)
    child = family.add("c", 2, "p")
    assert family.line(family.members[0]) == "op"
    assert family.line(child) == "opc"
    assert family.line(family.add("d", 2, "c")) == "opcd"


def test_of_one_moment_neither_came_before(family: Family) -> None:
    one, other = family.add("a", 1), family.add("b", 1)
    assert (family.line(one), family.line(other)) == ("a", "b")


def test_a_long_line(family: Family) -> None:
    for number in range(3000):
        last = family.add(f"{number:04}", 1, f"{number - 1:04}" if number else None, f"net{number}")
    assert family.line(last) == "".join(f"{number:04}" for number in range(3000))


def test_a_registry_knows_it(family: Family, tmp_path_factory: pytest.TempPathFactory) -> None:
    registry = Registry(tmp_path_factory.mktemp("models"))
    first = registry.put(make_model(1), name="trunk")
    second = registry.put(make_model(2), name="birds", parent=first.digest)
    registry.put(make_model(3), name="cats")
    assert registry.line(second) == [first, second]
    registry.collect(keep=[second.digest])
    assert registry.line(second) == [second]
