"""Both kinds of label database, by a shorter name."""

from __future__ import annotations

import pytest

from labelled import Kind


@pytest.fixture
def kind(label_kind: Kind) -> Kind:
    return label_kind
