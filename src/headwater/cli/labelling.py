"""Labels as a person reads them: keys of samples, names of classes and versions, documents and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headwater.cli.printing import print_table
from headwater.data.index import sample_ids
from headwater.errors import WrongUse
from headwater.store import Dataset
from headwater.store.labels import LabelRows, Source

if TYPE_CHECKING:
    from headwater.store.client.labels import StoreLabels
    from headwater.store.labels.database import LabelDatabase
    from headwater.store.labels.page import Glossary

_EVERYTHING = float("inf")
_DIGITS = 12
COLUMNS = ("sample", "class", "score", "margin", "source", "version", "time", "revision")


@dataclass(frozen=True)
class Keys:
    """Ids of samples to their keys, as far as the data is at hand."""

    data: Dataset | None = None

    def of(self, samples: NDArray[np.int64]) -> list[str | None]:
        """The key of each sample, None where it is not known."""
        if self.data is None or not len(self._ranked):
            return [None] * len(samples)
        index = self.data.index
        places = np.minimum(np.searchsorted(self._ranked, samples), len(self._ranked) - 1)
        known = (self._ranked[places] == samples).tolist()
        positions = index.order[places].tolist()
        return [index.key(at) if there else None for at, there in zip(positions, known, strict=True)]

    def find(self, text: str) -> int:
        """The id that a key or an id means; raises `WrongUse` for one that the data does not have."""
        by_key = int(sample_ids([text])[0])
        by_id = int(text) if text.isascii() and text.isdigit() else by_key
        if self.data is None:
            return by_id
        for sample in (by_key, by_id):
            if self.of(np.array([sample]))[0] is not None:
                return sample
        raise WrongUse(f"{self.data.uri} has no sample with key or id {text!r}")

    @cached_property
    def _ranked(self) -> NDArray[np.int64]:
        assert self.data is not None
        ranked: NDArray[np.int64] = self.data.index.ids[self.data.index.order]
        return ranked


@dataclass(frozen=True)
class Reader:
    """Turns rows of one dataset into plain data."""

    glossary: Glossary
    keys: Keys = field(default_factory=Keys)

    @classmethod
    def of(cls, labels: LabelDatabase | StoreLabels, dataset: str, data: Dataset | None) -> Reader:
        return cls(labels.glossary(dataset), Keys(data))

    def document(self, rows: LabelRows) -> list[dict[str, Any]]:
        """One entry per row."""
        return [
            {
                "sample": int(sample),
                **({} if key is None else {"key": key}),
                "class": self.glossary.names[label],
                "score": _number(score),
                "margin": _number(margin),
                "source": Source(source).name.lower(),
                "version": self.glossary.versions.get(int(model)),
                "time": _time(int(time)),
                "revision": int(revision),
            }
            for key, (sample, label, score, margin, source, model, time, revision) in zip(
                self.keys.of(rows.samples), zip(*rows.columns(), strict=True), strict=True
            )
        ]


def print_rows(entries: Sequence[Mapping[str, Any]], *, further: Sequence[str] = (), title: str = "") -> None:
    """Rows as a table; `further` columns stand at the end."""
    names = (*COLUMNS, *further)
    rows = [[_cell(name, entry) for name in names] for entry in entries]
    print_table(names, rows, title=title)


def _cell(name: str, entry: Mapping[str, Any]) -> str:
    value = entry.get("key", entry["sample"]) if name == "sample" else entry.get(name)
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)[:_DIGITS] if name == "version" else str(value)


def parse_range(text: str | None, name: str) -> tuple[float, float] | None:
    """`LOW..HIGH`, either of which may be left out; raises `WrongUse`."""
    if text is None:
        return None
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        return float(low) if low else -_EVERYTHING, float(high) if high else _EVERYTHING
    except ValueError:
        raise WrongUse(f"--{name} {text!r} is no range; write LOW..HIGH, such as 0.5..0.9 or ..0.2") from None


def parse_sources(names: Sequence[str]) -> tuple[Source, ...]:
    """Sources by name; raises `WrongUse`."""
    known = {source.name.lower(): source for source in Source}
    for name in names:
        if name not in known:
            raise WrongUse(f"no source is called {name!r}; known: {', '.join(known)}")
    return tuple(known[name] for name in names)


def _number(value: np.float32) -> float | None:
    """The shortest number that is this one with 32 bits, so that 0.9 is printed as 0.9."""
    return None if np.isnan(value) else float(str(value))


def _time(milliseconds: int) -> str:
    from headwater.store.labels.exchange.sheet import format_time

    return format_time(milliseconds)
