"""How long until the first batch after a resume in mid-epoch, with 10 million samples?

The index has 10 million rows; their files are a few members of one real tar, so that batches can be made
without a terabyte of photos. Each round is a fresh process that opens the data, loads the state and takes
one batch, whose ids are compared with those that the order says come next.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import torch

import headwater as hw
from headwater import transforms as T
from headwater.data.index import Index, Places
from headwater.data.randomness import derive_key
from headwater.data.synthetic import make_photos
from headwater.engine.permutation import Shuffled
from measuring import Bar, Options, Report, Table, main

BATCH = 256
SEED = 17
MEMBERS = 16
CHILD = "--child"


def make_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for number, photo in enumerate(make_photos(np.arange(MEMBERS), classes=8, seed=0)):
            member = tarfile.TarInfo(f"{number:06d}.jpg")
            member.size = len(photo)
            tar.addfile(member, io.BytesIO(photo))


def widen_index(tar: Path, cache: Path, count: int) -> None:
    """Put an index of `count` rows in the place of the tar's own: every row lies in one of its members."""
    small = hw.open(tar, progress=False).index
    member = np.arange(count) % len(small)
    numbers = pc.utf8_lpad(pa.array(np.arange(count)).cast(pa.large_string()), 8, "0")
    shard, slash = (pa.scalar(piece, pa.large_string()) for piece in (tar.stem, "/"))
    keys = pc.binary_join_element_wise(shard, numbers, slash)
    places = Places(small.places.shards, small.shard[member], small.offset[member])
    wide = Index.build(keys, small.sizes[member], labels=member % 8, places=places)
    (file,) = cache.glob("*.arrow")
    dataclasses.replace(wide, notes=small.notes).save(file)


def make_loader(data: hw.Dataset) -> hw.DataLoader:
    floats = [T.ToDtype("float32", scale=True), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    steps = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *floats])
    return hw.DataLoader(data, steps, batch_size=BATCH, shuffle=True, seed=SEED)


def save_state(data: hw.Dataset, path: Path) -> dict[str, Any]:
    """The state after three batches of the second epoch, moved on to the middle as a long run would have."""
    loader = make_loader(data)
    loader.set_epoch(1)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    loader.close()
    state["start"] = len(data) // 2 // BATCH * BATCH
    path.write_text(json.dumps(state))
    return state


def resume(tar: Path, state: Path) -> dict[str, Any]:
    """What one fresh process measures."""
    clocks = [time.time()]
    data = hw.open(tar, progress=False)
    clocks.append(time.time())
    loader = make_loader(data)
    clocks.append(time.time())
    loader.load_state_dict(json.loads(state.read_text()))
    clocks.append(time.time())
    batch = next(iter(loader))
    clocks.append(time.time())
    steps = dict(zip(("open", "make", "load", "first"), np.diff(clocks).tolist(), strict=True))
    begun = psutil.Process().create_time()
    return steps | {"start": clocks[0] - begun, "all": clocks[-1] - begun, "ids": batch.ids.tolist()}


def child(tar: Path, state: Path, cache: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, CHILD, str(tar), str(state)]
    environment = {**os.environ, "HEADWATER_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def state_sizes(state: dict[str, Any]) -> tuple[int, int]:
    """As JSON, and as `torch.save` writes it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return len(json.dumps(state)), len(buffer.getvalue())


def run(folder: Path, options: Options) -> Report:
    count, cache, tar = 1_000_000 if options.quick else 10_000_000, folder / "cache", folder / "photos.tar"
    os.environ["HEADWATER_CACHE"] = str(cache)
    make_tar(tar)
    widen_index(tar, cache, count)
    data = hw.open(tar, progress=False)
    assert len(data) == count
    state = save_state(data, folder / "state.json")
    begin = state["start"]
    expected = data.ids[Shuffled(count, derive_key(SEED, 1)).take(begin, begin + BATCH)].tolist()
    rounds = [child(tar, folder / "state.json", cache) for _ in range(max(2, min(options.rounds, 5)))]
    wrong = sum(found.pop("ids") != expected for found in rounds)
    return report(rounds, count=count, sizes=state_sizes(state), wrong=wrong)


TITLES = {
    "start": "process start and imports",
    "open": "hw.open: index mapped, digest checked",
    "make": "DataLoader(...)",
    "load": "load_state_dict",
    "first": "first batch",
    "resume": "load_state_dict to first batch",
    "all": "process start to first batch",
}


def report(rounds: list[dict[str, Any]], *, count: int, sizes: tuple[int, int], wrong: int) -> Report:
    for found in rounds:
        found["resume"] = found["load"] + found["first"]
    medians = {name: statistics.median(found[name] for found in rounds) for name in TITLES}
    rows = []
    for name, title in TITLES.items():
        values = [found[name] for found in rounds]
        rows.append((title, f"{medians[name]:.3f}", f"{min(values):.3f}..{max(values):.3f}"))
    plain, saved = sizes
    return Report(
        f"resume in mid-epoch with {count:,} samples",
        (Table(("seconds of", f"median of {len(rounds)}", "min..max"), tuple(rows)),),
        (
            Bar(TITLES["resume"], "about 2 s", f"{medians['resume']:.2f} s", medians["resume"] < 2.5),
            Bar("state as JSON / by torch.save", "under 4 kB", f"{plain} / {saved} bytes", max(sizes) < 4000),
            Bar("rounds whose ids are not the next ones", "0", str(wrong), not wrong),
        ),
        (f"batches of {BATCH}, RandomResizedCrop(224); each round a fresh process",),
        raw={"rounds": rounds},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(resume(Path(sys.argv[2]), Path(sys.argv[3]))))
    else:
        main(__doc__, run)
