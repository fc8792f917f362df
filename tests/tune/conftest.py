"""A cache, pictures and a registry for each test of fine-tuning."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.models.registry import Registry
from tunings import make_registry, write_colours


@pytest.fixture(autouse=True)
def cache(tuning_cache: Path) -> Path:
    return tuning_cache


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """180 pictures of three classes that can be told apart; copy before changing anything."""
    return write_colours(tmp_path_factory.mktemp("colours"))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return make_registry(tmp_path / "models")
