"""What the first rank says reaches the others, over gloo, errors too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.loader.sharing import Verdict, share
from seaweed import free_ports

RANK = """
import json, sys
import numpy as np
import torch.distributed as dist
from headwater.errors import HeadwaterError, WrongUse
from headwater.loader.sharing import Verdict, share

rank, port, out = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
ranks = lambda: (dist.get_rank(), dist.get_world_size())

def find(verdict):
    assert rank == "0", "only the first one looks"
    if verdict is None:
        raise WrongUse("no such selector")
    return verdict

found = []
for verdict in (
    Verdict(np.arange(5, dtype=np.int64) << 60, np.linspace(0.5, 1.5, 5).astype("f4"), "why", model="ab"),
    Verdict(np.empty(0, np.int64), np.empty(0, np.float32), "none"),
    Verdict(),
    Verdict(dropped="too dear"),
):
    said = share(lambda: find(verdict), ranks)
    ids = None if said.ids is None else said.ids.tolist()
    weights = None if said.weights is None else said.weights.tolist()
    found.append([ids, weights, said.reason, said.dropped, said.model])
try:
    share(lambda: find(None), ranks)
except HeadwaterError as error:
    found.append(str(error))
json.dump(found, open(out, "w"))
dist.destroy_process_group()
"""


def test_alone_a_rank_asks_itself() -> None:
    verdict = Verdict(np.arange(3), np.ones(3, np.float32))
    assert share(lambda: verdict, lambda: (0, 1)) is verdict

    def fail() -> Verdict:
        raise WrongUse("no")

    with pytest.raises(WrongUse, match="no"):
        share(fail, lambda: (0, 1))


@pytest.mark.slow
def test_all_ranks_hear_the_same(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(port), str(out)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank, out in enumerate(outs)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    first, second = (json.loads(out.read_text()) for out in outs)
    assert first[:-1] == second[:-1]
    assert first[0] == [[n << 60 for n in range(5)], [0.5, 0.75, 1.0, 1.25, 1.5], "why", "", "ab"]
    assert first[1:4] == [
        [[], [], "none", "", ""],
        [None, None, "", "", ""],
        [None, None, "", "too dear", ""],
    ]
    assert (first[-1], second[-1]) == (
        "no such selector",
        "the first rank could not select: WrongUse: no such selector",
    )
