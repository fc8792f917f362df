"""A store whose data lies in a bucket: the same batches, and a bucket that does not answer for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

import headwater as hw
from headwater import transforms as T
from headwater.cli.faults import Fault
from headwater.cli.proxy import Proxy
from headwater.errors import StoreLost
from headwater.store.server.config import DatasetConfig, ServeConfig
from headwater.store.server.daemon import Daemon
from seaweed import S3Server

STEPS = T.Compose([T.RandomResizedCrop(20), T.RandomHorizontalFlip()])


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[Proxy]:
    """Between the store and its bucket."""
    target = urlsplit(s3.endpoint)
    assert target.hostname
    assert target.port
    with Proxy((target.hostname, target.port)) as proxy:
        yield proxy


@pytest.fixture
def daemon(
    s3: S3Server, proxy: Proxy, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Daemon]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.storage["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.storage["secret_access_key"])
    storage = {"endpoint": f"http://127.0.0.1:{proxy.port}", "region": s3.storage["region"]}
    uri = s3.upload(photo_folder, "behind")
    datasets = {"photos": DatasetConfig(uri, storage=storage)}
    with Daemon(ServeConfig(listen="127.0.0.1:0", cores=2, datasets=datasets)) as daemon:
        yield daemon


def load(data: hw.Dataset, **options: object) -> hw.DataLoader:
    return hw.DataLoader(data, STEPS, batch_size=6, shuffle=True, seed=2, timeout=100, **options)  # type: ignore[arg-type]


def test_the_same_batches_as_from_the_files(daemon: Daemon, photo_folder: Path) -> None:
    remote = hw.open(f"{daemon.serving.address}/photos")
    ours, true = load(remote, offload=hw.Offload(3)), load(hw.open(photo_folder))
    for batch, other in zip(ours, true, strict=True):
        assert torch.equal(batch.ids, other.ids)
        assert torch.equal(batch.inputs, other.inputs)


def test_a_bucket_that_is_away_for_a_while_costs_time_only(
    daemon: Daemon, proxy: Proxy, photo_folder: Path
) -> None:
    remote = hw.open(f"{daemon.serving.address}/photos", link=hw.Link(give_up_seconds=90.0))
    _take_away(proxy)
    threading.Timer(3.0, proxy.heal).start()
    found = [batch.ids.tolist() for batch in load(remote)]
    assert found == [batch.ids.tolist() for batch in load(hw.open(photo_folder))]


def test_one_that_does_not_come_back_ends_the_run_with_store_dataset_and_position(
    daemon: Daemon, proxy: Proxy
) -> None:
    link = hw.Link(give_up_seconds=2.0, deadline_seconds=1.0)
    remote = hw.open(f"{daemon.serving.address}/photos", link=link)
    _take_away(proxy)
    with pytest.raises(StoreLost, match="position") as caught:
        list(load(remote))
    assert caught.value.dataset == "photos"
    assert str(proxy.port) not in str(caught.value)


def _take_away(proxy: Proxy) -> None:
    proxy.inject(Fault("refuse"))
    proxy.cut()
