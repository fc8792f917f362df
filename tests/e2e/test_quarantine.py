"""A picture that crashes the store's decoder costs its worker, not the epoch: the trainer gets the file."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater import transforms as T
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.status import status
from headwater.store.wire import messages
from headwater.store.wire.messages import Release
from stores import StoreProcess

TRANSFORM = T.Compose([T.RandomCrop(20), T.RandomHorizontalFlip()])
MARK = b"crash a worker"
SITE = f"""
import os, signal, sys

if "headwater.store.server.worker" in sys.orig_argv:
    import simplejpeg

    decode = simplejpeg.decode_jpeg

    def crash(data, *arguments, **named):
        if {MARK!r} in bytes(data):
            os.kill(os.getpid(), signal.SIGSEGV)
        return decode(data, *arguments, **named)

    simplejpeg.decode_jpeg = crash
"""
"""A `sitecustomize` that makes a decoder of the workers' alone die of a marked file."""


@pytest.fixture
def folder(photo_folder: Path, tmp_path: Path) -> Path:
    """One sound photo with a comment that this test's decoder does not survive."""
    root = Path(shutil.copytree(photo_folder, tmp_path / "photos"))
    victim = min(root.glob("*/*.jpg"))
    content = victim.read_bytes()
    comment = b"\xff\xfe" + (len(MARK) + 2).to_bytes(2, "big") + MARK
    victim.write_bytes(content[:2] + comment + content[2:])
    return root


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> Iterator[StoreProcess]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(site), *sys.path])
    with StoreProcess({"photos": folder}, environment={"PYTHONPATH": path}, cores=2) as made:
        yield made


def epoch(data: hw.Dataset, offload: hw.Offload | None = None) -> dict[int, bytes]:
    loader = hw.DataLoader(data, TRANSFORM, batch_size=12, seed=4, num_workers=2, offload=offload, timeout=60)
    with closing(loader):
        return {
            int(id): image.numpy().tobytes()
            for batch in loader
            for id, image in zip(batch.ids, batch.inputs, strict=True)
        }


def release(address: str) -> Any:
    connection = Connection(Address.parse(address), Secret(None), Link())
    with closing(connection):
        return json.loads(connection.act("release", messages.encode(Release())))


def quarantine(store: StoreProcess, data: hw.Dataset, wanted: dict[int, bytes]) -> dict[str, Any]:
    """Read until the victim was tried: a store without cores to spare sends it as it is. Its metrics."""
    for _ in range(10):
        assert epoch(data, hw.Offload(1)) == wanted
        metrics: dict[str, Any] = status(store.address)["metrics"]
        if metrics["headwater_quarantined_samples"]:
            return metrics
    raise AssertionError("the victim never reached a worker")


def test_a_sample_that_crashes_the_stores_decoder(store: StoreProcess, folder: Path) -> None:
    with closing(hw.open(folder)) as here, closing(hw.open(f"{store.address}/photos")) as there:
        wanted = epoch(here)
        assert len(wanted) == 36
        marked = [MARK in bytes(here[place].data) for place in range(36)]
        (victim,) = here.ids[np.flatnonzero(marked)].tolist()
        for _ in range(2):
            metrics = quarantine(store, there, wanted)
            assert metrics["headwater_quarantined_samples"] == 1
            assert metrics["headwater_samples_total"]["quarantined"] >= 1
            assert metrics["headwater_samples_total"]["failed"] == 0
            assert f"sample {victim} crashed two workers" in store.stderr
            assert release(store.address) == {"released": [victim]}
            assert status(store.address)["metrics"]["headwater_quarantined_samples"] == 0
