"""A training step that is named on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from headwater.errors import WrongUse

Step = Callable[[Any], object]
"""Gets a batch."""


def find_step(name: str) -> Step:
    """`MODULE:FUNCTION`, imported from the current folder; raises `WrongUse` if it is not there."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise WrongUse(f"step is {name!r}; write MODULE:FUNCTION")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports something that is not
        raise WrongUse(f"there is no module {module!r} in {folder} or among what is installed") from error
    finally:
        sys.path.remove(folder)
    found = getattr(home, function, None)
    if found is None:
        raise WrongUse(f"module {module!r} has no {function!r}; --step needs a function of a batch")
    if not callable(found):
        kind = type(found).__name__
        raise WrongUse(f"{name} is of type {kind} and cannot be called; --step needs a function of a batch")
    step: Step = found
    return step
