from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headwater.data.index import write_batch
from headwater.errors import DatasetError, StateMismatch
from headwater.measure.epochplan import EpochPlan, SitePlan
from headwater.measure.key import Key, record_path
from headwater.measure.stretch import Amounts, SiteRates
from logbooks import PIPELINE, SLOW_LINK, WAYS

KEY = Key("v1", PIPELINE.hash, "hull", WAYS)
BEFORE, AFTER = Amounts(4, 400.0, 0.0, 1.0, 40.0), Amounts(4, 100.0, 0.5, 0.5, 10.0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_plan(key: Key = KEY, *, samples: int = 10, rates: SiteRates = SLOW_LINK) -> EpochPlan:
    """Two stretches: four samples of one store, then two of each of two."""
    plan = EpochPlan(key, seed=3, epoch=7, samples=samples)
    plan.add(SitePlan("a", BEFORE, AFTER, rates, "early"), np.array([8, 0, 5, 2]), np.uint8([3, 0, 5, 3]))
    plan.add(SitePlan("a", BEFORE, AFTER, rates, "late"), np.array([1, 3]), np.uint8([1, 4]))
    plan.add(SitePlan("b", BEFORE, AFTER, rates, "other"), np.array([6, 7]), np.uint8([2, 2]))
    return plan


def test_a_saved_plan_is_the_same_when_read(tmp_path: Path) -> None:
    plan = make_plan()
    plan.save(tmp_path / "epoch.plan")
    again = EpochPlan.load(tmp_path / "epoch.plan")
    assert (again.key, again.seed, again.epoch, len(again)) == (KEY, 3, 7, 10)
    assert [again.way_of(position) for position in range(10)] == [0, 1, 3, 4, None, 5, 2, 2, 3, None]
    assert again.counts() == plan.counts() == [1, 1, 2, 2, 1, 1]
    assert again.sites == plan.sites
    assert [path.name for path in tmp_path.iterdir()] == ["epoch.plan"]


def test_stretches_of_a_store_add_up_and_the_last_says_why() -> None:
    plan = make_plan()
    assert plan.sites["a"] == SitePlan("a", BEFORE + BEFORE, AFTER + AFTER, SLOW_LINK, "late")
    assert plan.sites["b"].reason == "other"


def test_rates_that_nobody_measured_stay_infinite(tmp_path: Path) -> None:
    make_plan(rates=SiteRates(link=5.0, store_cores=1.0)).save(tmp_path / "epoch.plan")
    rates = EpochPlan.load(tmp_path / "epoch.plan").sites["a"].rates
    assert rates.link == 5.0
    assert rates.trainer == rates.store_seconds_per_visit == math.inf


def test_it_is_found_by_its_key_and_seed() -> None:
    assert EpochPlan.find(KEY, seed=3) is None
    make_plan().keep()
    found = EpochPlan.find(KEY, seed=3)
    assert found is not None
    assert found.epoch == 7
    assert EpochPlan.find(KEY, seed=4) is None
    assert EpochPlan.find(msgspec.structs.replace(KEY, policy="efficiency"), seed=3) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dataset": "v2"}, "the plan was made for dataset version v2, this is v1"),
        ({"pipeline": "other"}, "the plan was made for other steps, other, than these"),
        ({"libraries": {"torch": "0.1"}}, r"the plan was made with .*torch 0\.1"),
        ({"ways": [*WAYS, (1, "zstd")]}, "possible are cut 0"),
    ],
    ids=["dataset", "steps", "library", "ways"],
)
def test_one_for_something_else_is_refused(change: dict[str, Any], text: str, cache: Path) -> None:
    path = record_path(KEY, ".plan")
    path.parent.mkdir(parents=True)
    make_plan(msgspec.structs.replace(KEY, **change)).save(path)
    with pytest.raises(StateMismatch, match=f"{text}.*run `headwater profile` again"):
        EpochPlan.find(KEY, seed=3)


def write(path: Path, column: pa.Array, metadata: dict[bytes, bytes]) -> None:
    schema = pa.schema([("way", column.type)], metadata=metadata)
    write_batch(path, pa.RecordBatch.from_arrays([column], schema=schema))


def damage(path: Path, change: str) -> None:
    make_plan().save(path)
    content = path.read_bytes()
    header = pa.ipc.open_file(pa.py_buffer(content)).schema.metadata
    if change == "cut off":
        path.write_bytes(content[: len(content) // 2])
    elif change == "no plan":
        path.write_bytes(b"{}")
    elif change == "no header":
        write(path, pa.array([0, 1], pa.uint8()), {})
    elif change == "other header":
        write(path, pa.array([0, 1], pa.uint8()), {name: b'{"epoch": 1}' for name in header})
    elif change == "other type":
        write(path, pa.array([0.0, 1.0]), header)
    elif change == "unknown way":
        write(path, pa.array([0, len(WAYS)], pa.uint8()), header)


@pytest.mark.parametrize(
    "change", ["cut off", "no plan", "no header", "other header", "other type", "unknown way"]
)
def test_a_damaged_file_is_refused_and_passed_over(change: str, caplog: pytest.LogCaptureFixture) -> None:
    path = record_path(KEY, ".plan")
    path.parent.mkdir(parents=True)
    damage(path, change)
    with pytest.raises(DatasetError, match=r"is no plan that can be used: .*; delete it"):
        EpochPlan.load(path)
    with caplog.at_level(logging.WARNING, logger="headwater"):
        assert EpochPlan.find(KEY, seed=3) is None
    assert "is no plan that can be used" in caplog.text


def test_a_cache_that_cannot_be_written_to_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, logger="headwater"):
        make_plan().keep()
    assert "cannot keep the plan" in caplog.text
