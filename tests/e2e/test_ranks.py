"""Several ranks: every id once over all of them, also when their number changes, and from a store too."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import headwater as hw
from headwater import transforms as T
from stores import StoreProcess

RANK = """
import json, sys
import torch.distributed as dist
import headwater as hw
from headwater import transforms as T

rank, world, port, folder, state, out, steps = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world))
loader = hw.DataLoader(hw.open(folder), [T.Resize((8, 8))], batch_size=2, shuffle=True, seed=2, num_workers=1)
if state != "-":
    loader.load_state_dict(json.load(open(state)))
seen = []
for number, batch in enumerate(loader, start=1):
    seen.append(batch.ids.tolist())
    dist.barrier()
    if number == int(steps):
        break
json.dump({"seen": seen, "state": loader.state_dict(), "len": len(loader)}, open(out, "w"))
dist.destroy_process_group()
"""


STEPS = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip()])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_ranks(folder: Path, work: Path, world: int, state: str, steps: int) -> list[dict[str, object]]:
    port = str(free_port())
    outs = [work / f"{world}-{rank}.json" for rank in range(world)]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                RANK,
                str(rank),
                str(world),
                port,
                str(folder),
                state,
                str(out),
                str(steps),
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank, out in enumerate(outs)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0] * world
    return [json.loads(out.read_text()) for out in outs]


@pytest.mark.slow
def test_two_then_three_then_one_rank_see_every_id_once(photo_folder: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    state = "-"
    for world, steps in ((2, 3), (3, 2), (1, 99)):
        answers = run_ranks(photo_folder, tmp_path, world, state, steps)
        seen += [id for answer in answers for batch in answer["seen"] for id in batch]  # type: ignore[attr-defined]
        assert all(answer["state"] == answers[0]["state"] for answer in answers)
        state = str(tmp_path / f"state-{world}")
        Path(state).write_text(json.dumps(answers[0]["state"]))
    assert sorted(seen) == sorted(hw.open(photo_folder).ids.tolist())
    assert json.loads(Path(state).read_text())["epoch"] == 1


@dataclass(frozen=True)
class Ranks:
    """So many ranks of one run, each with data and a loader of its own, for some steps from a state on."""

    world: int
    steps: int
    state: dict[str, Any] | None

    def run(
        self, where: object, offload: hw.Offload | str | None
    ) -> list[tuple[list[hw.Batch], dict[str, Any]]]:
        """What each rank saw, and where it stood then. All at once."""
        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(lambda rank: self._run_one(rank, where, offload), range(self.world)))

    def _run_one(self, rank: int, where: Any, offload: Any) -> tuple[list[hw.Batch], dict[str, Any]]:
        with closing(hw.open(where, progress=False)) as data:
            loader = hw.DataLoader(
                data,
                STEPS,
                batch_size=2,
                shuffle=True,
                seed=2,
                num_workers=1,
                offload=offload,
                rank=rank,
                world_size=self.world,
                progress=False,
            )
            with closing(loader):
                if self.state is not None:
                    loader.load_state_dict(self.state)
                return list(islice(loader, self.steps)), loader.state_dict()


@pytest.fixture(scope="module")
def store(photo_folder: Path) -> Iterator[StoreProcess]:
    with StoreProcess({"photos": photo_folder}) as store:
        yield store


@pytest.mark.slow
@pytest.mark.parametrize("offload", [None, hw.Offload(3, "zstd"), "auto"], ids=str)
def test_ranks_of_one_store_see_what_ranks_beside_the_files_see(
    photo_folder: Path, store: StoreProcess, offload: hw.Offload | str | None
) -> None:
    seen: list[int] = []
    state = None
    for world, steps in ((2, 3), (3, 2), (1, 99)):
        ranks = Ranks(world, steps, state)
        pairs = list(zip(ranks.run(store.address, offload), ranks.run(photo_folder, None), strict=True))
        states = [state for found in pairs for _, state in found]
        assert all(other == states[0] for other in states)
        state = states[0]
        for (ours, _), (true, _) in pairs:
            assert [batch.ids.tolist() for batch in ours] == [batch.ids.tolist() for batch in true]
            assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(ours, true, strict=True))
            seen += [id for batch in ours for id in batch.ids.tolist()]
    assert sorted(seen) == sorted(hw.open(photo_folder).ids.tolist())
    assert state is not None
    assert state["epoch"] == 1
