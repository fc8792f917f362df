"""What `hw.open` returns: an index, or part of one, bound to the store that serves it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import DEFAULT_LIMITS, Limits, decode, read_header
from headwater.data.index import Index
from headwater.data.randomness import Draws, derive_key
from headwater.errors import WrongUse
from headwater.store.base import Store
from headwater.store.pixels import read_pixel_sizes

Columns = Mapping[str, NDArray[Any]]
Predicate = Callable[[Columns], NDArray[np.bool_]]


@dataclass(frozen=True)
class Sample:
    """One sample as it lies in storage."""

    id: int
    key: str
    label: int
    data: Any
    fields: Mapping[str, object] = field(default_factory=dict)

    def decode(self, *, mode: str = "RGB", limits: Limits | None = None) -> NDArray[np.uint8]:
        """The pixels, height x width x channels, upright."""
        return decode(self.data, read_header(self.data, limits or DEFAULT_LIMITS), mode=mode)


class Dataset:
    """Samples in a fixed order, with stable ids. Subsets share the index; nothing is copied."""

    def __init__(self, store: Store, positions: NDArray[np.int64] | None = None, *, lineage: int = 0) -> None:
        """`lineage` keys the splits of a part, so that they do not repeat the split that made it."""
        self.store = store
        self._positions = positions
        self._lineage = lineage

    @property
    def index(self) -> Index:
        """The index of the whole dataset, also for a subset."""
        return self.store.index

    @property
    def uri(self) -> str:
        return self.store.uri

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is a place in this tuple."""
        return self.index.classes

    def __len__(self) -> int:
        return len(self.index) if self._positions is None else len(self._positions)

    def __repr__(self) -> str:
        facts = f"samples={len(self)}, classes={len(self.classes)}, version={self.version[:12]!r}"
        return f"Dataset({self.uri!r}, {facts})"

    def positions(self, places: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.int64]:
        """Where the samples at these places of the dataset stand in the index."""
        if self._positions is not None:
            return self._positions[places]
        return np.arange(len(self))[places] if isinstance(places, slice) else places

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._column(self.index.ids)

    @property
    def labels(self) -> NDArray[np.integer[Any]]:
        """One label per sample, -1 where there is none."""
        return self._column(self.index.labels)

    @property
    def sizes(self) -> NDArray[np.integer[Any]]:
        """Bytes of each sample's file."""
        return self._column(self.index.sizes)

    @cached_property
    def version(self) -> str:
        """A digest of what the dataset holds; equal for copies that lie elsewhere."""
        if self._positions is None:
            return self.index.version
        content = self.index.version.encode() + np.ascontiguousarray(self.ids).tobytes()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def __getitem__(self, place: int) -> Sample:
        if not -len(self) <= place < len(self):
            raise IndexError(f"sample {place} is outside a dataset of {len(self)}")
        position = self.positions(np.array([place % len(self)]))
        fields = {name: values[0] for name, values in self.store.read_fields(position).items()}
        at = int(position[0])
        return Sample(
            id=int(self.index.ids[at]),
            key=self.index.key(at),
            label=int(self.index.labels[at]),
            data=self.store.read(position)[0],
            fields=fields,
        )

    def select(self, ids: Iterable[int] | NDArray[np.int64]) -> Dataset:
        """The samples with these ids, in this order."""
        wanted = np.fromiter(ids, np.int64) if not isinstance(ids, np.ndarray) else ids.astype(np.int64)
        if len(np.unique(wanted)) != len(wanted):
            raise WrongUse("an id is named twice; a dataset holds each sample once")
        positions = self.index.position_of(wanted)
        if self._positions is not None:
            outside = ~np.isin(positions, self._positions)
            if outside.any():
                raise WrongUse(f"id {wanted[outside][0]} is not in this subset of {len(self)} samples")
        return self._part(positions)

    def filter(self, labels: Iterable[int | str] | None = None, where: Predicate | None = None) -> Dataset:
        """The samples with one of these labels (numbers or class names) and for which `where` holds.

        `where` gets the columns as arrays (`id`, `label`, `bytes`, and those of the data) and answers with
        one boolean per sample.
        """
        keep = np.ones(len(self), bool)
        if labels is not None:
            keep &= np.isin(self.labels, self._label_numbers(labels))
        if where is not None:
            answer = np.asarray(where(self.columns))
            if answer.dtype != np.bool_ or answer.shape != keep.shape:
                raise WrongUse(
                    f"where gave {answer.dtype} of shape {answer.shape}; it must give {len(self)} booleans"
                )
            keep &= answer
        return self._part(self.positions()[keep])

    def split(self, *fractions: float, seed: int = 0) -> tuple[Dataset, ...]:
        """Disjoint random parts, by a hash of the id: a sample stays in its part when others are added."""
        if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
            raise WrongUse(f"fractions {fractions} must be positive and add up to at most 1")
        draw = Draws.of(self.ids, seed=seed, epoch=0, step=self._lineage).uniform(0)
        ends = np.cumsum(fractions)
        ends[-1] = 1.0 if ends[-1] > 1 - 1e-9 else ends[-1]
        part = np.searchsorted(ends, draw, side="right")
        lineage = derive_key(self._lineage, seed)
        return tuple(self._part(self.positions()[part == k], lineage) for k in range(len(fractions)))

    @property
    def columns(self) -> Columns:
        """What `filter` can look at."""
        own: dict[str, NDArray[Any]] = {"id": self.ids, "label": self.labels, "bytes": self.sizes}
        further = {
            name: self._column(values.to_numpy(zero_copy_only=False))
            for name, values in self.index.columns.items()
        }
        return further | own

    def blocks(self) -> NDArray[np.int64] | None:
        """First places of the blocks that the data is read in; None where samples are read alone."""
        starts = self.store.blocks()
        if starts is None or self._positions is None:
            return starts
        if (np.diff(self._positions) < 0).any():
            return None
        places = np.unique(np.searchsorted(self._positions, starts))
        return places[places < len(self)]

    def pixel_sizes(self, *, progress: bool | None = None) -> NDArray[np.int64]:
        """Height and width of every sample, from the files' headers; 0 where a header cannot be read."""
        return read_pixel_sizes(self.store, self.positions(), progress=progress)

    def close(self) -> None:
        """Let go of open files. Datasets that share the store can no longer read."""
        self.store.close()

    def _part(self, positions: NDArray[np.int64], lineage: int | None = None) -> Dataset:
        return Dataset(self.store, positions, lineage=self._lineage if lineage is None else lineage)

    def _column(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self._positions is None else values[self._positions]

    def _label_numbers(self, labels: Iterable[int | str]) -> list[int]:
        labels = list(labels)
        names = {name: number for number, name in enumerate(self.classes)}
        unknown = [label for label in labels if isinstance(label, str) and label not in names]
        if unknown:
            raise WrongUse(
                f"no class is called {unknown[0]!r}; there are {len(names)}, such as {self.classes[:5]}"
            )
        return [names[label] if isinstance(label, str) else label for label in labels]
