"""What an address served when it was last opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.store.client.address import Address
from headwater.store.client.remembered import Seen, recall, remember

ADDRESS = Address.parse("grpc://stor-a:7077/photos")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path))
    return tmp_path


def test_what_was_seen_last() -> None:
    assert recall(ADDRESS) is None
    for version in ("v1", "v2"):
        remember(ADDRESS, "photos", version)
    assert recall(ADDRESS) == Seen(str(ADDRESS), "photos", "v2")
    assert recall(Address.parse("grpc://stor-b:7077/photos")) is None


def test_a_write_that_fails_leaves_what_there_was_and_nothing_else(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remember(ADDRESS, "photos", "v1")
    before = sorted(cache.rglob("*"))

    def fail(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    remember(ADDRESS, "photos", "v2")
    assert "cannot remember" in caplog.text
    assert recall(ADDRESS) == Seen(str(ADDRESS), "photos", "v1")
    assert sorted(cache.rglob("*")) == before
