"""Runs whose optimiser changed on the way, or whose weights somebody else moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwater.errors import JournalRefused, WrongUse
from headwater.train.replay.batches import Batches
from headwater.train.replay.frames import FrameWriter, find_frames
from headwater.train.replay.journal import Journal
from headwater.train.replay.records import pack_mark, unpack_mark
from headwater.train.replay.retraining import retrain
from replays import BATCHES, CLASSES, FULL, WIDTH, linear, make_features, record

FEATURES = make_features()
SIZE = CLASSES * (WIDTH + 1)
Change = Callable[[nn.Linear, torch.optim.SGD], object]


def run(
    path: Path,
    change: Change,
    *,
    at: int = 40,
    times: int = 1,
    batches: Batches = BATCHES,
    momentum: float = 0.9,
    after: Change | None = None,
) -> None:
    """Train; `change` comes after so many steps from `at` on, `after` after the last, before the seal."""
    model = linear()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.4, momentum=momentum, weight_decay=1e-3)
    with Journal.record(path, model, optimiser, data=FEATURES, batches=batches) as recording:
        for step, rows in enumerate(recording):
            inputs, targets = FEATURES.take(rows)
            optimiser.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimiser.step()
            if at <= step < at + times:
                change(model, optimiser)
        if after is not None:
            after(model, optimiser)


def setting(name: str, value: object) -> Change:
    return lambda model, optimiser: optimiser.param_groups[0].update({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("momentum", 0.5),
        ("momentum", 0.0),
        ("nesterov", True),
        ("maximize", True),
        ("dampening", 0.1),
        ("weight_decay", 1e-2),
    ],
)
def test_a_setting_that_changes_is_told_at_once(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(WrongUse, match=f"at step 41 the optimiser has {name}={value} in group 0, and had"):
        run(tmp_path / "a", setting(name, value))
    with pytest.raises(JournalRefused, match="never sealed"):
        Journal(tmp_path / "a", FEATURES)


@pytest.mark.parametrize("cycled", [True, False])
def test_a_schedule_that_cycles_momentum_is_told_and_the_remedy_named(tmp_path: Path, cycled: bool) -> None:
    model = linear()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=0.5, total_steps=61, cycle_momentum=cycled
    )

    def loop() -> None:
        with Journal.record(tmp_path / "a", model, optimiser, data=FEATURES, batches=FULL) as recording:
            for rows in recording:
                inputs, targets = FEATURES.take(rows)
                optimiser.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                optimiser.step()
                schedule.step()

    if cycled:
        with pytest.raises(WrongUse, match=r"at step 1 .* momentum=0\.9\d+ .* take cycle_momentum=False"):
            loop()
    else:
        loop()
        assert Journal(tmp_path / "a", FEATURES).steps == 60


def test_parameters_that_join_on_the_way_are_told(tmp_path: Path) -> None:
    def join(model: nn.Linear, optimiser: torch.optim.SGD) -> None:
        optimiser.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})

    with pytest.raises(WrongUse, match="at step 41 the optimiser has other parameters or groups"):
        run(tmp_path / "a", join)


@torch.no_grad()
def clamp(model: nn.Linear, optimiser: torch.optim.SGD) -> None:
    model.weight.clamp_(-0.5, 0.5)


@torch.no_grad()
def halve(model: nn.Linear, optimiser: torch.optim.SGD) -> None:
    model.weight.mul_(0.5)


def forget_speed(model: nn.Linear, optimiser: torch.optim.SGD) -> None:
    optimiser.state.clear()


def nothing(model: nn.Linear, optimiser: torch.optim.SGD) -> None:
    """No change."""


@pytest.mark.parametrize("batches", [FULL, BATCHES], ids=["full", "batches"])
@pytest.mark.parametrize(
    ("change", "times", "after"),
    [(clamp, 99, None), (forget_speed, 1, None), (halve, 1, None), (nothing, 0, halve)],
    ids=["clamped from a step on", "momentum cleared", "halved once", "halved after the last step"],
)
def test_weights_that_somebody_else_moved_are_found_before_the_seal(
    tmp_path: Path, batches: Batches, change: Change, times: int, after: Change | None
) -> None:
    at = batches.count_steps() // 2
    with pytest.raises(WrongUse, match=r"the weights before step \d+ are .* leave both to the optimiser"):
        run(tmp_path / "a", change, at=at, times=times, batches=batches, after=after)
    with pytest.raises(JournalRefused, match="never sealed"):
        Journal(tmp_path / "a", FEATURES)


@pytest.mark.parametrize("batches", [FULL, BATCHES], ids=["full", "batches"])
@pytest.mark.parametrize("momentum", [0.0, 0.99])
def test_a_run_that_nobody_touched_is_sealed(tmp_path: Path, batches: Batches, momentum: float) -> None:
    run(tmp_path / "a", nothing, batches=batches, momentum=momentum)
    assert Journal(tmp_path / "a", FEATURES).steps == batches.count_steps()


@pytest.mark.parametrize(("moved", "steps"), [(32, 72), (72, 72)])
def test_a_journal_whose_steps_do_not_lead_to_its_marks_is_not_followed(
    tmp_path: Path, moved: int, steps: int
) -> None:
    record(tmp_path / "a", FEATURES, BATCHES, momentum=0.9, rate=0.4)
    content = memoryview((tmp_path / "a").read_bytes())
    with (tmp_path / "b").open("wb") as file:
        writer = FrameWriter(file)
        for frame in find_frames(content):
            body = content[frame.begin : frame.end]
            pieces: tuple[bytes, ...] = (bytes(body),)
            if frame.kind == "MARK" and int.from_bytes(body[:8], "little") == moved:
                number, place, speed = unpack_mark(body, size=SIZE, moving=True)
                pieces = pack_mark(number, place * np.float32(1.05), speed)
            writer.put(frame.kind, *pieces)
    assert BATCHES.count_steps() == steps
    whole, altered = (Journal(tmp_path / name, FEATURES) for name in "ab")
    assert retrain(whole, FEATURES.ids[:1], tolerance=0.05).change > 0
    with pytest.raises(JournalRefused, match=f"the weights before step {moved} are .* train again"):
        retrain(altered, FEATURES.ids[:1], tolerance=0.05, keep=tmp_path / "next")
    assert not (tmp_path / "next").exists()
