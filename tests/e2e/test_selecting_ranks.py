"""Several ranks that select: all come to the same selection as one would, and go on as another number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from seaweed import free_ports
from tunings import COLOURS, write_colours

RANK = """
import json, sys
import numpy as np
import torch.distributed as dist
import headwater as hw
from headwater import transforms as T

rank, world, port, folder, signals, state, out, epochs, steps, mode = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world))
data = hw.open(folder)
if mode == "stand_in":  # all of a label are alike, and a rank holds a third of them
    groups = data.labels.astype(np.int32)
    given = {"duplicates": hw.Duplicates(groups, "stand_in"), "cache": int(data.sizes.sum()) // 3}
else:
    given = {"select": "infobatch", "epochs": 40}
loader = hw.DataLoader(
    data, [T.Resize((8, 8))], batch_size=2, shuffle=True, seed=2, num_workers=1, signals=signals, **given
)
if state != "-":
    loader.load_state_dict(json.load(open(state.replace("RANK", rank))))
seen = []
while loader.epoch < int(epochs):
    epoch = loader.epoch
    for number, batch in enumerate(loader, start=1):
        loader.report(batch, loss=(batch.ids * 7919 % 101).float())
        seen.append([epoch, batch.ids.tolist(), batch.weights.tolist()])
        dist.barrier()
        if epoch == int(epochs) - 1 and number == int(steps):
            break
    if epoch == int(epochs) - 1:
        break
answer = {"seen": seen, "state": loader.state_dict(), "stand_ins": loader.stats().stand_ins}
answer["served"] = data.ids[loader.selection.served].tolist()
json.dump(answer, open(out, "w"))
dist.destroy_process_group()
"""

BESIDE = """
import json, sys
import torch.distributed as dist
import headwater as hw
from exports import MEAN, STD
from headwater import transforms as T
from headwater.select import Always, Fresh
from nets import SIZE, plain

rank, world, port, folder, classes, state, epochs, steps, out = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world))
data, transform = hw.open(folder), T.Compose([T.CenterCrop(SIZE), T.Normalize(MEAN, STD)])
beside = hw.Beside(Always(Fresh(0.3)), data, transform, precision="fp32")
given = {"select": beside, "epochs": 9, "signals": out + ".signals" if state == "-" else state + ".signals"}
loader = hw.DataLoader(data, transform, batch_size=4, shuffle=True, num_workers=1, **given)
if state != "-":
    loader.load_state_dict(json.load(open(state))["state"])
answer = {"seen": [], "error": "", "chosen": []}
try:
    while loader.epoch < int(epochs):
        epoch = loader.epoch
        answer["chosen"].append(data.ids[loader.selection.places].tolist())
        for number, batch in enumerate(loader, start=1):
            answer["seen"].append([epoch, batch.ids.tolist(), batch.weights.tolist()])
            if epoch == int(epochs) - 1 and number == int(steps):
                break
        if epoch == int(epochs) - 1:
            break
        beside.feed(plain(classes=int(classes)))
        if rank == "0":
            assert beside.rounds[-1].done.wait(60)
        dist.barrier()
    answer["state"] = loader.state_dict()
except hw.errors.HeadwaterError as error:
    answer["error"] = f"{type(error).__name__}: {error}"
answer["run"] = beside._wish.run
json.dump(answer, open(out, "w"))
beside.close()
dist.destroy_process_group()
"""

DEAR = """
import json, sys
from pathlib import Path
import numpy as np
import torch.distributed as dist
import headwater as hw
from headwater.loader.curator import Curator
from headwater.select import Choice

rank, world, port, folder, out = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world))
now = [0.0]

class Slow:
    name, explore, needs = "slow", 0.0, ("vectors",)

    def choose(self, samples):
        now[0] += 30.0 if rank == "0" else 0.0  # one rank alone finds it dear
        return Choice(np.arange(0, len(samples), 2), "every other")

given = {"seed": 0, "epochs": None, "ranks": lambda: (int(rank), int(world)), "folder": Path(out).parent}
curator = Curator(Slow(), hw.open(folder), clock=lambda: now[0], **given)
curator.signals.column("vectors", width=2)[:] = 0
counts = []
for epoch in range(5):
    counts.append(len(curator.begin(epoch)))
    curator.trained(10.0, whole=True)
json.dump({"counts": counts, "ended": curator.ended}, open(out, "w"))
dist.destroy_process_group()
"""

CONTRARY = """
import json, sys
from pathlib import Path
import numpy as np
import torch.distributed as dist
import headwater as hw
from headwater.loader.curator import Curator
from headwater.select import Choice

rank, world, port, folder, out = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world))

class Contrary:
    name, explore, needs = "contrary", 0.0, ("loss",)

    def choose(self, samples):
        part = 2 + (int(rank) if samples.epoch else 0)  # ranks come to different ones but for the first epoch
        places = np.arange(0, len(samples), part)
        return Choice(places, f"every {part}", weights=1.0 + places % 3)

given = {"seed": 0, "epochs": None, "ranks": lambda: (int(rank), int(world)), "folder": Path(out).parent}
curator = Curator(Contrary(), hw.open(folder), **given)
curator.signals.column("loss")[:] = 1
found = [curator.begin(epoch) for epoch in range(3)]
json.dump([[one.places.tolist(), one.weights.tolist()] for one in found], open(out, "w"))
dist.destroy_process_group()
"""


def run_ranks(
    folder: Path, work: Path, world: int, state: str, *, epochs: int, steps: int, mode: str = "select"
) -> list[Any]:
    """`state` is a file, of which a RANK in the name is each one's own number; "-" for none."""
    outs = [work / f"{world}-{epochs}-{rank}.json" for rank in range(world)]
    return start(RANK, world, outs, lambda out: (folder, work / "signals", state, out, epochs, steps, mode))


def start(script: str, world: int, outs: list[Path], arguments: Callable[[Path], Any]) -> list[Any]:
    """What the ranks of a script write; all must end well."""
    port = free_ports(1)[0]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *map(str, (rank, world, port, *arguments(out)))],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        )
        for rank, out in enumerate(outs)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0] * world
    return [json.loads(out.read_text()) for out in outs]


def visited(answers: list[Any], epoch: int) -> dict[int, float]:
    """The weight of each sample that was visited in an epoch; each comes once."""
    pairs = [
        pair
        for answer in answers
        for which, ids, weights in answer["seen"]
        if which == epoch
        for pair in zip(ids, weights, strict=True)
    ]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@pytest.mark.slow
def test_ranks_select_as_one_would_and_go_on_as_another_number(photo_folder: Path, tmp_path: Path) -> None:
    alone = run_ranks(photo_folder, tmp_path, 1, "-", epochs=2, steps=99)
    expected = visited(alone, 1)
    assert 0 < len(expected) < len(hw.open(photo_folder))
    two = run_ranks(photo_folder, tmp_path, 2, "-", epochs=2, steps=2)
    state = tmp_path / "state"
    state.write_text(json.dumps(two[0]["state"]))
    three = run_ranks(photo_folder, tmp_path, 3, str(state), epochs=2, steps=99)
    first, rest = visited(two, 1), visited(three, 1)
    assert not first.keys() & rest.keys()
    assert {**first, **rest} == expected


@pytest.mark.slow
def test_ranks_that_go_on_each_with_its_own_state_select_as_one_would(
    photo_folder: Path, tmp_path: Path
) -> None:
    """What each saw before the state was saved is known to all in the epoch after."""
    expected = visited(run_ranks(photo_folder, tmp_path, 1, "-", epochs=2, steps=99), 1)
    first = run_ranks(photo_folder, tmp_path, 2, "-", epochs=1, steps=2)
    states = [answer["state"] for answer in first]
    assert states[0]["signals"] != states[1]["signals"]
    for rank, state in enumerate(states):
        (tmp_path / f"state-{rank}").write_text(json.dumps(state))
    rest = run_ranks(photo_folder, tmp_path, 2, str(tmp_path / "state-RANK"), epochs=2, steps=99)
    everything = set(hw.open(photo_folder).ids.tolist())
    assert visited(first, 0).keys() | visited(rest, 0).keys() == everything
    assert visited(rest, 1) == expected
    assert len({len(answer["seen"]) for answer in rest}) == 1


@pytest.mark.slow
def test_stand_ins_stay_when_ranks_go_on_as_another_number(photo_folder: Path, tmp_path: Path) -> None:
    two = run_ranks(photo_folder, tmp_path, 2, "-", epochs=2, steps=2, mode="stand_in")
    served = two[0]["served"]
    assert served == two[1]["served"], "what each rank found in its own cache is known to all"
    state = tmp_path / "state"
    state.write_text(json.dumps(two[1]["state"]))
    three = run_ranks(photo_folder, tmp_path, 3, str(state), epochs=2, steps=99, mode="stand_in")
    ids = [id for answer in (*two, *three) for epoch, ids, _ in answer["seen"] if epoch == 1 for id in ids]
    assert sorted(ids) == sorted(served)
    assert len(set(ids)) < len(ids) == len(hw.open(photo_folder))
    assert sum(answer["stand_ins"] for answer in (*two, *three)) == int(
        np.count_nonzero(np.array(served) != hw.open(photo_folder).ids)
    )


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("colours") / "all", 20)


def run_beside(
    folder: Path, work: Path, classes: int, *, world: int = 2, state: str = "-", steps: int = 99
) -> list[Any]:
    """Four epochs, the last as far as so many steps."""
    outs = [work / f"beside-{world}-{rank}.json" for rank in range(world)]
    return start(BESIDE, world, outs, lambda out: (folder, classes, state, 4, steps, out))


@pytest.mark.slow
def test_what_the_first_rank_has_selected_beside_the_data_all_visit(colours: Path, tmp_path: Path) -> None:
    answers = run_beside(colours, tmp_path, len(COLOURS))
    assert [answer["error"] for answer in answers] == ["", ""]
    chosen = answers[0]["chosen"]
    assert chosen == answers[1]["chosen"]
    assert [len(one) for one in chosen] == [60, 18, 18, 18], "the second is a share that nobody selected"
    assert len({tuple(one) for one in chosen}) == 4
    for epoch in range(4):  # `visited` raises for what comes twice
        assert visited(answers, epoch).keys() == set(chosen[epoch])
    assert len({len(answer["seen"]) for answer in answers}) == 1


@pytest.mark.slow
def test_what_was_selected_beside_the_data_stands_when_ranks_go_on_as_another_number(
    colours: Path, tmp_path: Path
) -> None:
    two = run_beside(colours, tmp_path, len(COLOURS), steps=1)
    three = run_beside(
        colours, tmp_path, len(COLOURS), world=3, state=str(tmp_path / "beside-2-0.json"), steps=99
    )
    (expected,) = {tuple(answer["chosen"][0]) for answer in three}
    assert tuple(two[0]["chosen"][3]) == expected
    first, rest = visited(two, 3), visited(three, 3)
    assert len(first) == 8
    assert not first.keys() & rest.keys()
    assert first.keys() | rest.keys() == set(expected)
    assert three[0]["run"] == two[0]["run"], "stores know what the run has shown before"


@pytest.mark.slow
def test_what_the_first_rank_cannot_select_all_are_told(colours: Path, tmp_path: Path) -> None:
    first, second = (answer["error"] for answer in run_beside(colours, tmp_path, 9))
    assert first.startswith("WrongUse: ")
    assert "tells 9 classes apart" in first
    assert second == f"HeadwaterError: the first rank could not select: {first}"


@pytest.mark.slow
def test_a_selector_that_is_dear_for_one_rank_ends_on_all_at_once(photo_folder: Path, tmp_path: Path) -> None:
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    one, other = start(DEAR, 2, outs, lambda out: (photo_folder, out))
    count = len(hw.open(photo_folder))
    # the first epoch is cold, and tells nothing
    assert one["counts"] == other["counts"] == [(count + 1) // 2] * 4 + [count]
    assert one["ended"].startswith("selecting costs 30 s an epoch")
    assert other["ended"] == "selecting costs 10 s an epoch more than it saves"


@pytest.mark.slow
def test_where_ranks_come_to_different_selections_all_take_the_first_ones(
    photo_folder: Path, tmp_path: Path
) -> None:
    outs = [tmp_path / f"{rank}.json" for rank in range(3)]
    first, *others = start(CONTRARY, 3, outs, lambda out: (photo_folder, out))
    assert others == [first, first]
    assert [places for places, _ in first] == [list(range(0, len(hw.open(photo_folder)), 2))] * 3
    assert len(set(first[1][1])) > 1
