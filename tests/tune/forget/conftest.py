"""What tests of forgetting in local data begin with: a home that is made once, and a copy of it for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forgetting import Home, copied


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: fine-tuning takes its time. Copies lie where it was made, because paths are keys."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        home = Home(folder / "home")
        home.use(patch)
        home.set_up()
    home.folder.rename(folder / "kept")
    return folder


@pytest.fixture
def home(template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    with copied(template, monkeypatch) as home:
        yield home
