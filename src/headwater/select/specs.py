"""A selector as a name and parameters: all that crosses a link, or stands on a command line. No code does."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from headwater.errors import WrongUse
from headwater.select.selecting import SELECTORS, Selector, find_selector

Plain = bool | int | float | str | None
"""What a parameter may be on its way."""

_OWN = ("name", "needs")
"""Facts about a selector, which nobody sets from elsewhere."""
_PLAIN = (bool, int, float, str, type(None))


def make_selector(name: str, parameters: Mapping[str, Plain]) -> Selector:
    """The selector of this name with these parameters; raises `WrongUse`, which names what is wrong."""
    default = find_selector(name)
    known = _parameters(default)
    values = {}
    for given, value in parameters.items():
        if given not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise WrongUse(f"selector {name!r} has no parameter {given!r}; {there}")
        values[given] = _convert(value, known[given], f"parameter {given!r} of selector {name!r}")
    made: Selector = replace(default, **values) if values else default  # type: ignore[type-var]
    return made


def describe_selector(selector: Selector) -> tuple[str, dict[str, Plain]]:
    """The name and those parameters that are not as by default; raises `WrongUse` for one of nobody else's.

    `make_selector` makes an equal one of them.
    """
    name = selector.name
    if name not in SELECTORS or type(default := find_selector(name)) is not type(selector):
        raise WrongUse(f"selector {name!r} is one of your own; a store has {', '.join(SELECTORS)}")
    own = {field: _plain(getattr(selector, field)) for field in _fields(selector)}
    found = {field: value for field, value in own.items() if value != getattr(default, field)}
    for field, value in found.items():
        if field not in _parameters(default) or not isinstance(value, _PLAIN):
            raise WrongUse(f"{field}={value!r} of selector {name!r} is no name or number; leave it out")
    return name, found


def _parameters(selector: Selector) -> dict[str, Any]:
    """Name > type of what may be set: names and numbers, also where an object would do too."""
    hints = get_type_hints(type(selector))
    found = {name: _plain_part(hints[name]) for name in _fields(selector) if name not in _OWN}
    return {name: hint for name, hint in found.items() if hint is not None}


def _fields(selector: Any) -> list[str]:
    return [field.name for field in fields(selector) if field.init] if is_dataclass(selector) else []


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _plain_part(hint: Any) -> Any:
    """A type without those of it that cannot be named; None if nothing is left that says anything."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    plain = tuple(part for part in parts if part in _PLAIN or get_origin(part) is Literal)
    return Union[plain] if set(plain) - {type(None)} else None  # noqa: UP007


def _convert(value: object, hint: Any, where: str) -> Plain:
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongUse(f"{where} is {value}; give a finite number")
    try:
        found: Plain = msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        raise WrongUse(f"{where} is {value!r}: {str(error)[:1].lower()}{str(error)[1:]}") from error
    return found
