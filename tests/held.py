"""The state of a store that holds two versions of a small model before anybody asks it anything."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from graphs import make_model, new_head
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.jobs.selections import Kept, Selections

NAME = "colours"
JOB = "0" * 16
"""Whose selection `keep_selection` keeps."""


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


def keep_selection(state: Path, version: str, dataset: str = "photos") -> None:
    """As a job of the store has left it."""
    kept = Kept(np.arange(5), np.ones(5, np.float32), dataset, version)
    Selections(state / "selections").put(JOB, kept)
