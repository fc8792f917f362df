"""`hw.Features`: rows of features with ids and targets of samples, and a digest that follows changes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from headwater.data.randomness import as_words, derive_key, mix
from headwater.errors import JournalRefused, WrongUse

Ids = NDArray[np.int64]
Rows = NDArray[np.int64]
Part = tuple[torch.Tensor, torch.Tensor]
"""Features (n, F) as float32, and the target of each."""

_ROW = np.uint64(derive_key(7))  # what sets rows apart from other hashes of ids
ROWS_AT_ONCE = 512
"""As many as stay in a core's cache between the two products that need them."""


class Features:
    """What a linear model, or a head on frozen layers, is trained on: a row per sample.

    `values` are (n, F) in half or single precision, or what a module of your own takes; `targets` are
    classes, or numbers for a regression; `ids` are stable, and may repeat where a sample has several rows.
    `source` names what made the values, such as the digest of the frozen layers: then rows are known by id
    and target under that name; without it the values themselves are looked at. Nothing is copied. Raises
    `WrongUse` for columns that do not fit together.
    """

    def __init__(
        self, ids: Ids, values: NDArray[np.generic], targets: NDArray[np.generic], *, source: str = ""
    ) -> None:
        self.ids = np.asarray(ids, np.int64)
        if not len(ids) == len(values) == len(targets) or self.ids.ndim != 1:
            raise WrongUse(
                f"{len(ids):,} ids, {len(values):,} rows and {len(targets):,} targets do not match"
            )
        if not len(self.ids) or self.ids.min() < 0:
            least = self.ids.min(initial=0)
            raise WrongUse(f"{len(self.ids):,} ids, the least of them {least}; there must be one, of 63 bits")
        self.values, self.targets, self.source = values, targets, source
        self._inputs, self._classes = _tensor(values), _tensor(targets)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Rows | slice) -> Part:
        """The features and targets in these rows; a copy, but for a slice of single precision."""
        if isinstance(rows, slice):
            return self._inputs[rows].float(), self._classes[rows]
        at = torch.from_numpy(rows)
        return self._inputs.index_select(0, at).float(), self._classes.index_select(0, at)

    def parts(self, rows: Rows | slice) -> Iterator[Part]:
        """The same, some at a time; a slice is not copied."""
        if isinstance(rows, slice):
            begin, end, _ = rows.indices(len(self))
            for start in range(begin, end, ROWS_AT_ONCE):
                yield self.take(slice(start, min(start + ROWS_AT_ONCE, end)))
        else:
            for start in range(0, len(rows), ROWS_AT_ONCE):
                yield self.take(rows[start : start + ROWS_AT_ONCE])

    def pick(self, rows: Rows) -> Features:
        """A copy of these rows, one after the other."""
        return Features(self.ids[rows], self.values[rows], self.targets[rows], source=self.source)

    def find(self, ids: Ids) -> Rows:
        """The row of each id, the k-th where it comes for the k-th time; -1 for ids below 0.

        Raises `JournalRefused` where one is not there.
        """
        order, asked = self._order, np.argsort(ids, kind="stable")
        wanted = ids[asked]
        turn = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)
        place = np.searchsorted(self.ids, wanted, sorter=order) + turn
        inside = np.minimum(place, len(order) - 1)
        known = (place < len(order)) & (self.ids[order[inside]] == wanted)
        lost = wanted[~known & (wanted >= 0)]
        if len(lost):
            raise JournalRefused(
                f"{len(lost):,} rows of samples are not in the features, such as that of id {lost[0]}; "
                "bring those of all samples that the run was trained on, and of those to add"
            )
        rows = np.full(len(ids), -1)
        rows[asked] = np.where(known, order[inside], -1)
        return rows

    def version(self, rows: Rows) -> str:
        """A digest of what stands in these rows, whatever their order; other rows do not change it."""
        values = None if self.source else self._hashes[rows]
        return version_of(self.ids[rows], self.targets[rows], source=self.source, values=values)

    @cached_property
    def _order(self) -> Rows:
        return np.argsort(self.ids, kind="stable")

    @cached_property
    def _hashes(self) -> NDArray[np.uint64]:
        return _hash_rows(self.values)


def version_of(
    ids: Ids,
    targets: NDArray[np.generic],
    *,
    source: str,
    values: NDArray[np.uint64] | None = None,
) -> str:
    """The digest of rows with these ids and targets, and hashes of their values if no source is known."""
    words = mix(mix(as_words(ids) ^ _ROW) ^ _hash_rows(targets))
    if values is not None:
        words = mix(words ^ values)
    text = f"{len(ids)} {int(words.sum(dtype=np.uint64)):016x} {source}".encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _hash_rows(rows: NDArray[np.generic]) -> NDArray[np.uint64]:
    """64 bits of the bytes of each row: XXH3, or a mix where a row is one number."""
    if rows.ndim == 1:
        wide = rows.astype(np.float64 if rows.dtype.kind == "f" else np.int64)
        return mix(wide.view(np.uint64))
    hashes = (xxhash.xxh3_64_intdigest(np.ascontiguousarray(row).data) for row in rows)
    return np.fromiter(hashes, np.uint64, len(rows))


def _tensor(values: NDArray[np.generic]) -> torch.Tensor:
    """A view of an array; nobody writes to it, so it may be one that cannot be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")
        try:
            return torch.from_numpy(values)
        except TypeError as error:
            raise WrongUse(f"torch takes no {values.dtype}: {error}") from error
