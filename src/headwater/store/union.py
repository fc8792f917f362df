"""One index of several: the rows of each in turn, labels by the union of the classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.errors import DatasetError, IdCollision

log = logging.getLogger("headwater")


def unite(indexes: Sequence[Index], names: Sequence[str]) -> Index:
    """The rows of all indexes, in this order; `names` tell them apart in errors.

    Columns that some lack, or have with another type, are left out. Raises `DatasetError` where two
    share ids, or where only some name their classes.
    """
    # An index without rows has neither classes nor columns, and must not take them from the others.
    held = [place for place in range(len(indexes)) if len(indexes[place])] or [0]
    indexes, names = [indexes[place] for place in held], [names[place] for place in held]
    classes = _union_of_classes(indexes, names)
    labels = [_renumber(index, classes, name) for index, name in zip(indexes, names, strict=True)]
    try:
        return Index.build(
            pa.concat_arrays([index.keys for index in indexes]),
            np.concatenate([index.sizes for index in indexes]),
            labels=np.concatenate(labels),
            classes=classes,
            ids=np.concatenate([index.ids for index in indexes]),
            columns=_shared_columns(indexes),
            exact_sizes=all(index.exact_sizes for index in indexes),
        )
    except IdCollision as error:
        _refuse_overlap(indexes, names)
        raise DatasetError(f"an index holds an id twice: {error}") from error


def _union_of_classes(indexes: Sequence[Index], names: Sequence[str]) -> tuple[str, ...]:
    if len({index.classes for index in indexes}) == 1:
        return indexes[0].classes
    named = [bool(index.classes) for index in indexes]
    if not all(named):
        with_names, without = names[named.index(True)], names[named.index(False)]
        raise DatasetError(
            f"store {with_names} names its classes and store {without} has bare numbers or no labels; "
            "label both the same way"
        )
    return tuple(sorted({name for index in indexes for name in index.classes}))


def _renumber(index: Index, classes: tuple[str, ...], name: str) -> NDArray[np.int64]:
    if index.classes == classes:
        return index.labels
    wrong = (index.labels < -1) | (index.labels >= len(index.classes))
    if wrong.any():
        raise DatasetError(
            f"store {name} has label {index.labels[wrong][0]} and {len(index.classes)} classes, so it cannot "
            "join stores with other classes; mend its labels"
        )
    place = {name: number for number, name in enumerate(classes)}
    # A missing label is -1, which picks the appended -1.
    table = np.array([*(place[name] for name in index.classes), -1], np.int64)
    return table[index.labels]


def _shared_columns(indexes: Sequence[Index]) -> dict[str, pa.Array]:
    first, *others = indexes
    found: dict[str, pa.Array] = {}
    for name, column in first.columns.items():
        if not all(name in other.columns and other.columns[name].type == column.type for other in others):
            continue
        try:
            found[name] = pa.concat_arrays([index.columns[name] for index in indexes])
        except pa.ArrowException as error:  # texts past 2 GiB, or more of them than their numbers can tell
            log.warning("column %r cannot be joined over all stores and is left out: %s", name, error)
    return found


def _refuse_overlap(indexes: Sequence[Index], names: Sequence[str]) -> None:
    """Raise for two indexes that share ids, naming both."""
    ids = np.concatenate([index.ids for index in indexes])
    order = np.argsort(ids, kind="stable")
    (twins,) = np.nonzero(ids[order[1:]] == ids[order[:-1]])
    ends = np.cumsum([len(index) for index in indexes])
    one = np.searchsorted(ends, order[twins], side="right")
    two = np.searchsorted(ends, order[twins + 1], side="right")
    between = np.flatnonzero(one != two)
    if not len(between):
        return
    first, second = int(one[between[0]]), int(two[between[0]])
    shared = np.intersect1d(indexes[first].ids, indexes[second].ids, assume_unique=True)
    key = indexes[first].key(int(indexes[first].position_of(shared[:1])[0]))
    raise DatasetError(
        f"stores {names[first]} and {names[second]} share {len(shared)} of their {len(indexes[first])} and "
        f"{len(indexes[second])} samples, such as {key!r}; serve disjoint samples with unique keys (shards), "
        "or the same dataset at both (replicas)"
    )
