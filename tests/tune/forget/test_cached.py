"""What this machine fetched of a store before tells whom the data had, and is theirs only if it looks so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwater.data.index import Index, Places
from headwater.tune.forget.cached import find_earlier


def make_index(names: range, size: int = 1) -> Index:
    keys = [f"{name:05}.jpg" for name in names]
    sizes, shard = np.arange(names.start, names.stop) + size, np.zeros(len(keys), np.int32)
    return Index.build(keys, sizes, places=Places(("",), shard, np.zeros(len(keys), np.int64)))


@pytest.mark.parametrize(
    ("earlier", "known"),
    [
        (make_index(range(0, 15)), True),
        (make_index(range(5, 12)), True),
        (make_index(range(0, 15), size=9), False),
        (make_index(range(9, 40)), False),
        (make_index(range(0, 10)), False),
    ],
    ids=["more", "of one of the stores", "other files of the same names", "mostly others", "without it"],
)
def test_samples_that_were_there(
    earlier: Index, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path))
    now, wanted = make_index(range(0, 10)), make_index(range(10, 12)).ids[:1]
    earlier.save(tmp_path / "remote-0123.arrow")
    (tmp_path / "remote-4567.arrow").write_bytes(b"damaged")
    found, versions = find_earlier(now, wanted)
    assert found.tolist() == [known]
    assert versions == ({earlier.version} if known else set())
