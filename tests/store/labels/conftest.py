"""Both kinds of label database, for tests that run in the same way on each."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelled import Kind, Templates


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest, label_templates: Templates, tmp_path: Path) -> Kind:
    if request.param == "sqlite":
        return label_templates.sqlite_kind(tmp_path)
    return label_templates.postgresql_kind()
