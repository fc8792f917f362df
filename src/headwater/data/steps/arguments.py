"""Checks of what a user passes to a transform, and its one canonical form.

Canonical means that equal transforms are equal, hash and print alike, and survive JSON: sizes are
tuples of int, factors are float. Every refusal names the parameter, the value and what is allowed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from headwater.errors import WrongUse

if TYPE_CHECKING:
    InterpolationName = str | Enum
    """What a caller may pass: a name, or torchvision's enum whose value is that name."""
else:
    InterpolationName = str  # what is stored and sent


def settle(step: object, **values: object) -> None:
    """Replace fields of a frozen dataclass by their canonical form; only for `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(step, name, value)


def to_int(name: str, value: Any, *, low: int = 0) -> int:
    """A whole number of at least `low`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low:
        raise WrongUse(f"{name} is {value!r}; it must be a whole number of at least {low}")
    return number


def to_float(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number within [low, high]."""
    try:
        number = math.nan if isinstance(value, (str, bool)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and low <= number <= high):
        raise WrongUse(f"{name} is {value!r}; it must be a number{_bounds(low, high)}")
    return number


def to_range(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf) -> tuple[float, float]:
    """(least, greatest) within [low, high]."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise WrongUse(f"{name} is {value!r}; it must be two numbers (least, greatest)")
    first, last = (to_float(name, number, low=low, high=high) for number in value)
    if first > last:
        raise WrongUse(f"{name} is {value!r}; the first number must not exceed the second")
    return first, last


def to_size(name: str, value: Any) -> tuple[int, int]:
    """(height, width) from one number, a sequence of one, or a pair."""
    if not isinstance(value, Sequence):
        edge = to_int(name, value, low=1)
        return edge, edge
    if isinstance(value, str) or len(value) not in (1, 2):
        raise WrongUse(f"{name} is {value!r}; it must be one number or (height, width)")
    height, width = (to_int(name, edge, low=1) for edge in (value[0], value[-1]))
    return height, width


def to_padding(name: str, value: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) from one number, (left and right, top and bottom), or all four."""
    sides = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if len(sides) not in (1, 2, 4):
        raise WrongUse(f"{name} is {value!r}; it must be 1, 2 or 4 numbers (left, top, right, bottom)")
    left, top, right, bottom = (to_int(name, side) for side in (sides * 4)[:4])
    return left, top, right, bottom


def to_fill(name: str, value: Any) -> float | tuple[float, ...]:
    """One number, or one per channel."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return tuple(to_float(name, number) for number in value)
    return to_float(name, value)


def to_choice(name: str, value: Any, allowed: Collection[str]) -> str:
    """One of the allowed names; an enum whose value is such a name is taken by its value."""
    chosen = value.value if isinstance(value, Enum) else value
    if not isinstance(chosen, str) or chosen not in allowed:
        raise WrongUse(f"{name} is {value!r}; allowed: {', '.join(sorted(allowed))}")
    return chosen


def to_flag(name: str, value: Any) -> bool:
    """True or False, and nothing that merely is like it."""
    if not isinstance(value, bool):
        raise WrongUse(f"{name} is {value!r}; it must be True or False")
    return value


def _bounds(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f" of at least {low:g}"
    return f" from {low:g} to {high:g}"
