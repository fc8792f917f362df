"""The state of a store that holds two versions of a small model before anybody asks it anything."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from graphs import make_model, new_head
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion

NAME = "colours"


@cache
def held_versions() -> tuple[ModelVersion, ModelVersion]:
    """The older one, and the one in force; their digests are the same wherever they are kept."""
    with tempfile.TemporaryDirectory() as folder:
        return fill(Registry(folder))


def fill(registry: Registry) -> tuple[ModelVersion, ModelVersion]:
    """Put both versions there."""
    model = make_model()
    old = registry.put(model, name=NAME, switch=True)
    return old, registry.put(new_head(model, 1), name=NAME, parent=old.digest, switch=True)


def make_state(folder: Path) -> Path:
    """A folder for `--state`."""
    folder.mkdir(parents=True, exist_ok=True)
    fill(Registry(folder / "models"))
    return folder
