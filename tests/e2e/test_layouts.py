"""The loader on every layout, on disk and in a bucket of a real S3 server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import headwater as hw
from headwater import transforms as T
from headwater.errors import DatasetError, HeadwaterError, Unreachable
from seaweed import S3Server

TRANSFORM = [T.RandomResizedCrop(20), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
LAYOUTS = ("photo_folder", "photo_tars", "photo_parquet")


def load(data: hw.Dataset, **options: object) -> hw.DataLoader:
    return hw.DataLoader(data, TRANSFORM, batch_size=7, shuffle=True, num_workers=2, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bucket_gives_the_batches_of_the_disk(
    layout: str, request: pytest.FixtureRequest, s3: S3Server
) -> None:
    folder: Path = request.getfixturevalue(layout)
    local = hw.open(folder)
    remote = hw.open(s3.upload(folder, f"e2e/{layout}"), storage=s3.storage)
    assert remote.version == local.version
    assert remote.classes == local.classes
    for there, here in zip(load(remote), load(local), strict=True):
        assert torch.equal(there.inputs, here.inputs)
        assert torch.equal(there.targets, here.targets)
        assert torch.equal(there.ids, here.ids)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_on_disk_goes_on_in_a_bucket(layout: str, request: pytest.FixtureRequest, s3: S3Server) -> None:
    """The state knows what was being read, not where it lay."""
    folder: Path = request.getfixturevalue(layout)
    first = load(hw.open(folder))
    batches = iter(first)
    taken = [id for _ in range(2) for id in next(batches).ids.tolist()]
    second = load(hw.open(s3.upload(folder, f"e2e/{layout}"), storage=s3.storage))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rest = [id for batch in second for id in batch.ids.tolist()]
    assert taken + rest == [id for batch in load(hw.open(folder)) for id in batch.ids.tolist()]


def test_further_columns_and_members_are_targets(photo_tars: Path, photo_parquet: Path) -> None:
    batch = next(iter(load(hw.open(photo_tars, fields=["json"]))))
    classes = hw.open(photo_tars).classes
    assert [classes[label] for label in batch.targets["label"]] == [
        entry["class"] for entry in batch.targets["json"]
    ]
    batch = next(iter(load(hw.open(photo_parquet, fields=["number", "camera"]))))
    assert batch.targets["number"].tolist() == [int(number) for number in batch.targets["number"]]
    assert [("north", "south")[number % 2] for number in batch.targets["number"]] == batch.targets["camera"]


def test_columns_filter(photo_parquet: Path) -> None:
    data = hw.open(photo_parquet)
    late = data.filter(where=lambda columns: columns["number"] >= 30)
    assert len(late) == 6
    south = data.filter(where=lambda columns: columns["camera"] == "south")
    assert len(south) == len(data) // 2


def test_a_bucket_that_is_not_there_and_a_server_that_is_not(s3: S3Server) -> None:
    with pytest.raises(DatasetError):
        hw.open("s3://photos/nothing/here", storage=s3.storage)
    with pytest.raises(HeadwaterError):
        hw.open("s3://no-such-bucket/x", storage=s3.storage)
    with pytest.raises(Unreachable):
        hw.open("s3://photos/x", storage={**s3.storage, "endpoint": "http://127.0.0.1:9"})


def test_the_wrong_key_is_said(s3: S3Server) -> None:
    with pytest.raises(HeadwaterError, match=r"(?i)credential|denied|key|permission"):
        hw.open("s3://photos/x", storage={**s3.storage, "secret_access_key": "wrong"})
