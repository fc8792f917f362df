"""A cache, pictures and a registry for each test of fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headwater.models.registry import Registry
from tunings import make_registry, write_colours


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where work that is under way lies."""
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of a team wait for each other, and on a busy machine for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """180 pictures of three classes that can be told apart; copy before changing anything."""
    return write_colours(tmp_path_factory.mktemp("colours"))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return make_registry(tmp_path / "models")
