"""A run that is killed goes on; a run that is interrupted leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

TRAIN = """
import hashlib, json, os, sys
import headwater as hw
from headwater import transforms as T

folder, state_file, log = sys.argv[1:4]
workers, die_at = map(int, sys.argv[4:])
loader = hw.DataLoader(hw.open(folder), [T.RandomResizedCrop(24), T.ToDtype("float32", scale=True)],
                       batch_size=5, shuffle=True, seed=4, num_workers=workers)
if os.path.exists(state_file):
    loader.load_state_dict(json.load(open(state_file)))
steps = 0
while loader.epoch < 2:
    for batch in loader:
        steps += 1
        if steps == die_at:
            os.kill(os.getpid(), 9)
        line = hashlib.blake2b(batch.inputs.numpy().tobytes() + batch.ids.numpy().tobytes()).hexdigest()
        with open(log, "a") as file:
            file.write(line + "\\n")
        with open(state_file + ".new", "w") as file:
            json.dump(loader.state_dict(), file)
        os.replace(state_file + ".new", state_file)
"""

WAIT = """
import sys, threading
import headwater as hw
from headwater import transforms as T

def slow(image):
    threading.Event().wait(0.05)
    return image

loader = hw.DataLoader(hw.open(sys.argv[1]), [T.Resize((16, 16)), slow], batch_size=4, num_workers=3)
print("ready", flush=True)
try:
    while True:
        for batch in loader:
            print("batch", flush=True)
except KeyboardInterrupt:
    loader.close()
    for thread in threading.enumerate():
        if thread.name.startswith("headwater"):
            thread.join(5)
    print("left", sum(t.name.startswith("headwater") for t in threading.enumerate()), flush=True)
    raise
"""


def train(folder: Path, work: Path, workers: int, die_at: int) -> int:
    command = [sys.executable, "-c", TRAIN, folder, work / "state", work / "log", workers, die_at]
    return subprocess.run(list(map(str, command)), check=False, timeout=120).returncode


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_killed_at_random_steps_gives_the_straight_run(
    photo_folder: Path, tmp_path: Path, workers: int
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir()
    killed.mkdir()
    assert train(photo_folder, straight, workers, die_at=0) == 0
    codes = [train(photo_folder, killed, workers, die_at) for die_at in (3, 1, 5, 2)]
    assert codes == [-signal.SIGKILL] * 4
    assert train(photo_folder, killed, workers, die_at=0) == 0
    assert (killed / "log").read_text() == (straight / "log").read_text()
    assert len((straight / "log").read_text().splitlines()) == 16
    assert (killed / "state").stat().st_size < 4096
    assert json.loads((killed / "state").read_text())["epoch"] == 2


def test_interrupt_without_a_word_of_cleaning_up_ends_at_once(photo_folder: Path) -> None:
    """A script that does not know of Ctrl-C, in the middle of a slow batch."""
    bare = WAIT[: WAIT.index("try:")] + "for batch in loader:\n    print('batch', flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", bare, str(photo_folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "batch" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_killed_at_every_step_gives_it_too(photo_folder: Path, tmp_path: Path, workers: int) -> None:
    """Every one of the sixteen steps is a kill point, and so is every one after a resume."""
    straight = tmp_path / "straight"
    straight.mkdir()
    assert train(photo_folder, straight, workers, die_at=0) == 0
    for first in range(1, 17):
        killed = tmp_path / f"killed-{first}"
        killed.mkdir()
        assert train(photo_folder, killed, workers, die_at=first) == -signal.SIGKILL
        assert train(photo_folder, killed, workers, die_at=1) == -signal.SIGKILL
        assert train(photo_folder, killed, workers, die_at=0) == 0
        assert (killed / "log").read_text() == (straight / "log").read_text()


def test_interrupt_leaves_no_process_thread_or_file(photo_folder: Path, tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    before = set(os.listdir(shared)) if shared.exists() else set()
    environment = os.environ | {"HEADWATER_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT, str(photo_folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    while "batch" not in process.stdout.readline():
        pass
    children = psutil.Process(process.pid).children(recursive=True)
    cached = sorted(tmp_path.rglob("*"))
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert time.monotonic() - begin < 5
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert "left 0" in output
    assert not children
    assert sorted(tmp_path.rglob("*")) == cached
    if shared.exists():
        found = {name for name in os.listdir(shared) if not name.startswith("PostgreSQL.")}
        assert found <= before, "databases of other tests, which run meanwhile, are not ours"
