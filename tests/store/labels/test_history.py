"""Any writes and undos, in any order, against a plain dictionary that follows the rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import LabelRefused
from headwater.store.labels import LabelRows, Source
from headwater.store.labels.database import LabelDatabase
from labelled import Kind, announce

SAMPLES, CLASSES, MODELS = 5, 3, 3
IN_FORCE, OPINION = 0, 1
Place = tuple[int, int]
"""Layer and sample."""
Said = tuple[int, Source, int, int]
"""Label, source, model and revision."""


@dataclass
class Ledger:
    """What the database must hold, and what each revision found and left."""

    now: dict[Place, Said] = field(default_factory=dict)
    found: dict[int, dict[Place, Said | None]] = field(default_factory=dict)
    left: dict[int, dict[Place, Said | None]] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)
    undoes: dict[int, int] = field(default_factory=dict)

    def write(self, revision: int, source: Source, model: int, labels: dict[int, int], over: bool) -> int:
        before = dict(self.now)
        wrote = 0
        for sample, label in labels.items():
            new = (label, source, model, revision)
            old = before.get((IN_FORCE, sample))
            if old is None or self._replaces(new, old, over):
                self.now[IN_FORCE, sample] = new
                wrote += 1
                if old is not None and old[1] is Source.MODEL and source is not Source.MODEL:
                    self._say(sample, (*old[:3], revision))
            elif source is Source.MODEL and old[1] is not Source.MODEL:
                self._say(sample, new)
        self._note(revision, before)
        return wrote

    def _replaces(self, new: Said, old: Said, over: bool) -> bool:
        if new[1] is Source.HUMAN:
            return True
        if new[1] is Source.IMPORT:
            return old[1] is Source.MODEL or (old[1] is Source.IMPORT and old[0] != new[0])
        return (old[1] is Source.MODEL and old[2] < new[2]) or (over and old[1] is Source.IMPORT)

    def _say(self, sample: int, new: Said) -> None:
        old = self.now.get((OPINION, sample))
        if old is None or old[2] < new[2]:
            self.now[OPINION, sample] = new

    def _note(self, revision: int, before: dict[Place, Said]) -> None:
        touched = [p for p in {*before, *self.now} if before.get(p) != self.now.get(p)]
        self.found[revision] = {place: before.get(place) for place in touched}
        self.left[revision] = {place: self.now.get(place) for place in touched}

    def can_undo(self, revision: int) -> bool:
        intact = all(self.now.get(place) == said for place, said in self.left[revision].items())
        return revision not in self.undone and intact

    def undo(self, revision: int, by: int) -> None:
        before = dict(self.now)
        for place, said in self.found[revision].items():
            if said is None:
                self.now.pop(place, None)
            else:
                self.now[place] = said
        self._note(by, before)
        self.undoes[by] = revision
        undone: int | None = revision
        while undone is not None:  # every second one along the chain
            self.undone ^= {undone}
            undone = self.undoes.get(undone)


WRITES = st.tuples(
    st.sampled_from(list(Source)),
    st.integers(0, MODELS - 1),
    st.dictionaries(st.integers(0, SAMPLES - 1), st.integers(0, CLASSES - 1), min_size=1),
    st.booleans(),
)
UNDOS = st.integers(1, 6)
"""How many revisions back; those that cannot be undone must be refused."""
PROGRAMS = st.lists(st.one_of(WRITES, UNDOS), min_size=2, max_size=14)


def read(db: LabelDatabase, dataset: str) -> dict[Place, Said]:
    found: dict[Place, Said] = {}
    for layer in (IN_FORCE, OPINION):
        rows = db.get(dataset, range(SAMPLES), opinions=layer == OPINION)
        for sample, label, _, _, source, model, _, revision in zip(*rows.columns(), strict=True):
            found[layer, int(sample)] = (int(label), Source(source), int(model), int(revision))
    return found


def run(db: LabelDatabase, dataset: str, models: list[int], program: list[Any]) -> None:
    ledger, numbers = Ledger(), []
    for step in program:
        if isinstance(step, int):
            if step > len(numbers):
                continue
            target = numbers[-step]
            if not ledger.can_undo(target):
                with pytest.raises(LabelRefused):
                    db.undo(dataset, target)
                continue
            numbers.append(db.undo(dataset, target).revision)
            ledger.undo(target, numbers[-1])
        else:
            source, which, labels, over = step
            model = models[which] if source is Source.MODEL else 0
            rows = LabelRows.of(list(labels), list(labels.values()), source=source, model=model)
            written = db.write(dataset, rows, over_imports=over)
            numbers.append(written.revision)
            assert written.wrote == ledger.write(written.revision, source, model, labels, over)
        assert read(db, dataset) == ledger.now


@pytest.fixture
def shared(kind: Kind) -> Iterator[tuple[LabelDatabase, list[int], Iterator[int]]]:
    with closing(kind.open()) as db:
        yield db, [announce(db, number) for number in range(MODELS)], itertools.count()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=PROGRAMS)
def test_any_writes_and_undos(
    shared: tuple[LabelDatabase, list[int], Iterator[int]], program: list[Any]
) -> None:
    db, models, numbers = shared
    dataset = f"set {next(numbers)}"
    db.adopt(dataset, [f"class {number}" for number in range(CLASSES)])
    run(db, dataset, models, program)


@pytest.mark.soak
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=PROGRAMS)
def test_many_more_writes_and_undos(
    shared: tuple[LabelDatabase, list[int], Iterator[int]], program: list[Any]
) -> None:
    db, models, numbers = shared
    dataset = f"set {next(numbers)}"
    db.adopt(dataset, [f"class {number}" for number in range(CLASSES)])
    run(db, dataset, models, program)
