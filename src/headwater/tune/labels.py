"""What a fine-tuning learns: samples with a label, from the data itself, a label database or stores.

Databases and stores are asked by a wish: sources joined by `+`, a model's with a least score if need be, such
as `human`, `import`, `model>=0.9` or `human+import+model>=0.9`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.store.collecting import Collected, Wanted, collect_labels, in_order, queries_for
from headwater.store.dataset import Dataset
from headwater.store.labels.rows import Source

if TYPE_CHECKING:
    from headwater.store.labels.database import LabelDatabase

OWN = "data"
"""The wish for the labels that the data brings along."""
SOURCES = ("human", "import", "model")

_CLAUSE = re.compile(r"(\w+)\s*(?:>=\s*(0(?:\.\d*)?|1(?:\.0*)?|\.\d+))?")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples that may be learnt from: `labels[i]` is the place of sample i's class in `classes`.

    `said` tells where the labels come from.
    """

    dataset: Dataset
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    said: str = OWN

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.dataset):
            raise WrongUse(f"{len(self.labels):,} labels for {len(self.dataset):,} samples")
        if len(np.unique(self.labels)) < 2:
            raise WrongUse(
                f"{len(self.dataset):,} samples with a label, of {len(np.unique(self.labels))} classes; "
                "there must be at least 2 to tell apart"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def digest(self) -> str:
        """Of samples, labels and class names."""
        state = hashlib.blake2b(self.dataset.version.encode(), digest_size=16)
        state.update(np.ascontiguousarray(self.labels, "<i8").data)
        state.update("\0".join(self.classes).encode())
        return state.hexdigest()


@dataclass(frozen=True)
class Clause:
    """Labels of one source, from a score on."""

    source: str
    score: float | None = None


def parse(wish: str) -> tuple[Clause, ...]:
    """The clauses of a wish; raises `WrongUse` for what is none."""
    found = [_parse_clause(word.strip()) for word in wish.split("+")]
    if len({clause.source for clause in found}) < len(found):
        raise WrongUse(f"{wish!r} names a source twice; write each once")
    return tuple(found)


def _parse_clause(word: str) -> Clause:
    parts = _CLAUSE.fullmatch(word)
    if parts is None or parts[1] not in SOURCES:
        raise WrongUse(
            f"{word!r} does not say which labels to learn; write {OWN!r}, or some of {', '.join(SOURCES)} "
            "joined by +, a model's with a score if need be, as in human+model>=0.9"
        )
    if parts[2] is not None and parts[1] != "model":
        raise WrongUse(f"{word!r}: only labels of a model have a score")
    return Clause(parts[1], None if parts[2] is None else float(parts[2]))


def own_labels(dataset: Dataset) -> Labelled:
    """The samples that have a label in the data itself; raises `WrongUse` if there are too few."""
    labels = np.asarray(dataset.labels, np.int64)
    known = dataset if (labels >= 0).all() else dataset.select(dataset.ids[labels >= 0])
    kept = labels[labels >= 0]
    # Labels that are numbers without names are called by them.
    most = int(kept.max(initial=-1))
    classes = dataset.classes if len(dataset.classes) > most else tuple(map(str, range(most + 1)))
    return Labelled(known, kept, tuple(classes))


def labels_from(
    database: LabelDatabase | None = None, name: str = "", *, dataset: Dataset, wish: str
) -> Labelled:
    """The samples of a dataset whose label is what the wish asks for.

    In the database, under `name`; without one, in what the stores of the dataset keep themselves. The samples
    come in the order in which they lie, as they are read. Rows of samples that the dataset does not have are
    left out, and so are classes that no row has.
    """
    wanted = {Source[clause.source.upper()]: clause.score for clause in parse(wish)}
    found = collect_labels(dataset.store, wanted) if database is None else _read(database, name, wanted)
    here = np.isin(found.ids, dataset.ids)
    ids, numbers = found.ids[here], found.labels[here]
    order = np.argsort(dataset.index.position_of(ids))
    used, labels = np.unique(numbers[order], return_inverse=True)
    classes = tuple(found.names[number] for number in used.tolist())
    return Labelled(dataset.select(ids[order]), labels.astype(np.int64), classes, wish)


def _read(database: LabelDatabase, name: str, wanted: Wanted) -> Collected:
    ids, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for query in queries_for(wanted):
        for rows in database.scan(name, query):
            ids.append(rows.samples)
            numbers.append(rows.labels)  # the other columns of the part are let go
    found = in_order(np.concatenate(ids), np.concatenate(numbers))
    return Collected(*found, database.classes(name).names)
