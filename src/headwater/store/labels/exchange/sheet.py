"""Rows with names in place of numbers: what all formats write and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from numpy.typing import NDArray

from headwater.errors import LabelFileInvalid, WrongUse
from headwater.store.labels import announced
from headwater.store.labels.classes import adopt
from headwater.store.labels.datasets import check_name
from headwater.store.labels.page import Glossary
from headwater.store.labels.rows import NO_MODEL, NOW, LabelRows, Source
from headwater.store.labels.writing import Change

SCHEMA = pa.schema(
    [
        ("sample", pa.int64()),
        ("label", pa.string()),
        ("score", pa.float32()),
        ("margin", pa.float32()),
        ("source", pa.string()),
        ("model", pa.string()),
        ("time", pa.int64()),
    ]
)
"""Times are milliseconds since 1970, UTC. Score, margin, model and time may be absent."""
SOURCES = {source.name.lower(): source for source in Source}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES = [name for name, _ in sorted(SOURCES.items(), key=lambda item: item[1])]

Place = Callable[[int, str], str]
"""From a row of the sheet and a column to where that stands in the file."""


@dataclass(frozen=True)
class Sheet:
    """Some rows, and what models say against some of them."""

    table: pa.RecordBatch
    opinions: Sheet | None = None
    place: Place = lambda row, column: f"row {row + 1}, column {column!r}"

    def __len__(self) -> int:
        return len(self.table)

    def check(self) -> Sheet:
        """Itself; raises `LabelFileInvalid` for the first value that no row may have."""
        table = self.table
        by_model, named = pc.equal(table["source"], "model"), pc.is_valid(table["model"])
        self._refuse("sample", pc.is_null(table["sample"]), "which sample is not said")
        self._refuse("sample", pc.less(table["sample"], 0), "an id is not negative")
        self._refuse("label", pc.is_null(table["label"]), "a class is missing")
        known = pc.is_in(table["source"], value_set=pa.array(list(SOURCES)))
        self._refuse("source", pc.invert(known), f"a source is one of {', '.join(SOURCES)}")
        for column in ("score", "margin"):
            self._refuse(column, pc.invert(pc.is_finite(table[column])), "a number is finite")
        self._refuse("model", pc.and_not(by_model, named), "a model's label names its version")
        self._refuse("model", pc.and_not(named, by_model), "only a model's label names a version")
        return self

    def _refuse(self, column: str, wrong: pa.Array, rule: str) -> None:
        found = pc.index(wrong, True).as_py()
        if found >= 0:
            value = self.table[column][found].as_py()
            raise LabelFileInvalid(f"{self.place(found, column)}: {value!r}; {rule}")


@dataclass(frozen=True)
class Pictures:
    """How a file calls samples: their keys, where someone knows them, and what stands before a key."""

    keys: Callable[[NDArray[np.int64]], Sequence[str | None]] | None = None
    prefix: str = ""

    def of(self, samples: NDArray[np.int64]) -> Sequence[str | None]:
        """The key of each sample, None where it is not known."""
        return [None] * len(samples) if self.keys is None else self.keys(samples)


def to_sheet(glossary: Glossary, rows: LabelRows, opinions: LabelRows | None = None) -> Sheet:
    """Rows with names in place of numbers."""
    table = _to_table(glossary, rows)
    return Sheet(table, None if opinions is None else Sheet(_to_table(glossary, opinions)))


def _to_table(glossary: Glossary, rows: LabelRows) -> pa.RecordBatch:
    columns = [
        rows.samples,
        pa.array(glossary.names, pa.string()).take(pa.array(rows.labels)),
        pa.array(rows.scores, from_pandas=True),
        pa.array(rows.margins, from_pandas=True),
        pa.array(_NAMES).take(pa.array(rows.sources)),
        pa.array([glossary.versions.get(model) for model in rows.models.tolist()], pa.string()),
        rows.times,
    ]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)


def to_label_rows(connection: sa.Connection, change: Change, sheet: Sheet) -> LabelRows:
    """The sheet's own rows as numbers; classes that are new are added."""
    table = sheet.table
    return LabelRows.of(
        table["sample"].to_numpy(),
        _classes(connection, change, sheet),
        source=[SOURCES[name] for name in table["source"].to_pylist()],
        scores=table["score"].to_numpy(zero_copy_only=False),
        margins=table["margin"].to_numpy(zero_copy_only=False),
        model=_models(connection, sheet),
        times=table["time"].fill_null(NOW).to_numpy(),
    )


def _classes(connection: sa.Connection, change: Change, sheet: Sheet) -> NDArray[np.int32]:
    names = sheet.table["label"]
    coded = names.dictionary_encode()
    for name in coded.dictionary.to_pylist():
        try:
            check_name(name, "a class's name")
        except WrongUse as error:
            raise LabelFileInvalid(f"{sheet.place(names.index(name).as_py(), 'label')}: {error}") from None
    numbers = adopt(connection, change.dataset, coded.dictionary.to_pylist(), revision=change.revision)
    found: NDArray[np.int32] = numbers[coded.indices.to_numpy()]
    return found


def _models(connection: sa.Connection, sheet: Sheet) -> NDArray[np.int64]:
    digests = sheet.table["model"]
    known = {version.digest: version.number for version in announced.known(connection)}
    for digest in digests.unique().drop_null().to_pylist():
        if digest not in known:
            place = sheet.place(digests.index(digest).as_py(), "model")
            raise LabelFileInvalid(
                f"{place}: {announced.unknown(digest)}, with `--announce` and the database that it is from"
            )
    return np.array([known.get(digest, NO_MODEL) for digest in digests.to_pylist()], np.int64)


def format_time(milliseconds: int) -> str:
    """ISO 8601, UTC, to the millisecond."""
    return (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")[:-6] + "Z"


def parse_time(text: str) -> int:
    """Milliseconds since 1970; a time without a zone is UTC. Raises `ValueError`."""
    found = datetime.fromisoformat(text)
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return (found - _EPOCH) // timedelta(milliseconds=1)
