"""Real processes under torch.distributed: every id once over all ranks, also when their number changes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

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
    import headwater as hw

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
