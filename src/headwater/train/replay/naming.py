"""Samples as somebody names them: whole numbers of 63 bits, and nothing that only looks like them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse

Ids = NDArray[np.int64]

_MOST = (1 << 63) - 1


def as_ids(ids: Iterable[int], what: str) -> Ids:
    """Raises `WrongUse` for what is no id, such as a truth value, a text or a share, and for one named twice.

    A mask of rows or a text would otherwise be taken for ids that are there.
    """
    if isinstance(ids, str | bytes | bytearray) or not isinstance(ids, Iterable):
        raise WrongUse(f"`{what}` is {ids!r}; give a list of ids, such as [3, 141]")
    wanted = _array(ids, what) if isinstance(ids, np.ndarray) else _listed(ids, what)
    if len(np.unique(wanted)) != len(wanted):
        raise WrongUse(f"an id is named twice in `{what}`")
    return wanted


def _array(ids: NDArray[Any], what: str) -> Ids:
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        hint = "; of a mask give ids[mask]" if ids.dtype.kind == "b" else ""
        raise WrongUse(f"`{what}` is an array of {ids.dtype}, {ids.shape}; ids are whole numbers, (n,){hint}")
    outside = ids[(ids < 0) | (ids > _MOST)] if ids.size else ids
    if outside.size:
        raise _outside(outside[0], what)
    return ids.astype(np.int64)


def _listed(ids: Iterable[int], what: str) -> Ids:
    return np.array([_number(each, what) for each in ids], np.int64)


def _number(value: object, what: str) -> int:
    try:
        # Truth values have an index, too, numpy's and torch's as well.
        if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise WrongUse(f"`{what}` has {value!r}, which is no id; ids are whole numbers") from None
    if not 0 <= number <= _MOST:
        raise _outside(number, what)
    return number


def _outside(number: object, what: str) -> WrongUse:
    return WrongUse(f"`{what}` has {number}; ids are from 0 to {_MOST}, those that `hw.Features` was given")
