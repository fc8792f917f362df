"""A real store makes int8 layers by a job, and is killed in the midst of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exports import as_they_are, fitted
from headwater.models.registry import Registry
from headwater.models.runtime import precision_of
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.jobs import JobClient
from headwater.store.client.link import Link
from headwater.store.jobs.record import DONE, QUANTISE, RUNNING
from nets import SIZE
from stores import StoreProcess
from tunings import write_colours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

Record = dict[str, Any]


def begin(address: str) -> str:
    """The job's id."""
    with closing(JobClient(Connection(Address.parse(address), Secret(None), Link()))) as client:
        return client.start(QUANTISE, dataset="colours", model="plain", bound=0.95).id


def wait_for(path: Path, reached: Callable[[Record], bool]) -> Record:
    """The job's record, as soon as it has come so far."""
    end = time.monotonic() + 60
    while not reached(found := json.loads(path.read_text())):
        assert time.monotonic() < end, f"it did not come so far: {found}"
        time.sleep(0.002)
    return dict(found)


def test_killed_while_it_looks_at_images_and_while_it_makes_int8_it_begins_anew(tmp_path: Path) -> None:
    """Nobody asks again, nothing is kept of a job that was not done, and of the last one it is kept once."""
    colours, state = write_colours(tmp_path / "colours", 60, size=SIZE), tmp_path / "state"
    registry = Registry(state / "models")
    version = registry.put(as_they_are(fitted()), name="plain", switch=True)
    with StoreProcess({"colours": colours}, state=state) as store:
        record = state / "jobs" / f"{begin(store.address)}.json"
        for cursor in (64, 180):  # some of the images are here; all are, and the layers are next
            wait_for(record, lambda job, cursor=cursor: job["cursor"] >= cursor)  # type: ignore[misc]
            store.kill()
            left = json.loads(record.read_text())
            assert (left["state"], left.get("result", "")) == (RUNNING, ""), "it was killed too late"
            assert registry.versions() == [version]
            store.restart()
            wait_for(record, lambda job: job["cursor"] < 180)
        done = wait_for(record, lambda job: job["state"] == DONE)
    made = registry.current("plain")
    assert (made.digest, made.parent) == (done["result"], version.digest)
    assert (precision_of(registry.get("plain")), len(registry.versions())) == ("int8", 2)
    assert done["figures"]["agreement"] >= 0.95
