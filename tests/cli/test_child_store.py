from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import headwater as hw
from headwater.cli.child_store import ChildStore
from headwater.errors import HeadwaterError

PATIENCE_SECONDS = 60.0


def test_it_serves_and_comes_back_at_the_same_address(photo_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    store = ChildStore([f"photos={photo_folder}"], log=log, flags=["--cores", "1"])
    with store:
        first, address = store.pid, store.address
        data = hw.open(store.uri("photos"), progress=False)
        assert len(data) == store.datasets["photos"]["samples"] == len(hw.open(photo_folder))
        before = bytes(data[0].data)
        store.kill()
        assert not psutil.pid_exists(first)
        store.start()
        assert store.address == address
        assert bytes(data[0].data) == before
        data.close()
        second = store.pid
    assert not psutil.pid_exists(second)
    assert log.read_text() == ""
    store.close()
    with pytest.raises(HeadwaterError, match="does not run"):
        _ = store.pid


def test_why_it_did_not_start(tmp_path: Path) -> None:
    store = ChildStore([tmp_path / "nowhere"], log=tmp_path / "store.log")
    with pytest.raises(HeadwaterError, match=r"did not start: .*nowhere.*; see .*store\.log"):
        store.start()


def test_it_ends_with_its_parent(photo_folder: Path, tmp_path: Path) -> None:
    """However the parent ends: here without a chance to say so."""
    code = (
        "import sys, time; from pathlib import Path; from headwater.cli.child_store import ChildStore\n"
        "store = ChildStore([sys.argv[1]], log=Path(sys.argv[2]), flags=['--cores', '1']).start()\n"
        "print(store.pid, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(photo_folder), str(tmp_path / "store.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    child.wait(PATIENCE_SECONDS)
