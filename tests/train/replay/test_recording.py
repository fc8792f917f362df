"""Keeping a journal of a loop that the user owns, and opening it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fulldisk import files_no_larger_than
from headwater.errors import JournalRefused, ModelError, WrongUse
from headwater.train.replay.batches import FullBatch
from headwater.train.replay.features import Features
from headwater.train.replay.frames import FrameWriter, find_frames
from headwater.train.replay.journal import Journal
from headwater.train.replay.records import Group, Header
from replays import BATCHES, CLASSES, COUNT, FULL, WIDTH, first_rows, linear, make_features, record

FEATURES = make_features()


def flat(model: nn.Module) -> np.ndarray:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy()


@pytest.mark.parametrize("batches", [FULL, BATCHES], ids=["full", "batches"])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_weights_are_had_again_from_the_steps(
    tmp_path: Path, batches: FullBatch, momentum: float, nesterov: bool
) -> None:
    rate = 4.0 if momentum == 0 else 0.4
    model = record(tmp_path / "a", FEATURES, batches, rate=rate, momentum=momentum, nesterov=nesterov)
    journal = Journal(tmp_path / "a", FEATURES, model=model)
    np.testing.assert_array_equal(journal.weights, flat(model))
    motion = journal.motion_at(0)
    for moment in journal.file.moments(0):
        if moment.number % 16 == 0:
            mark = journal.file.mark_before(moment.number)[1]
            assert np.linalg.norm(motion.place - mark) <= 1e-3 * np.linalg.norm(journal.weights)
        assert moment.gradient is not None
        motion.step(moment.gradient, moment.rates)
    assert np.linalg.norm(motion.place - flat(model)) < 1e-3 * np.linalg.norm(flat(model))


def test_what_a_journal_tells(tmp_path: Path) -> None:
    record(tmp_path / "a", FEATURES)
    journal = Journal(tmp_path / "a", FEATURES)
    assert (journal.steps, journal.nbytes) == (60, (tmp_path / "a").stat().st_size)
    assert journal.path == tmp_path / "a"
    assert journal.ids.tolist() == sorted(FEATURES.ids.tolist())
    assert journal.bytes_per_weight_and_step == journal.nbytes / 60 / (CLASSES * (WIDTH + 1))


def test_two_bytes_for_a_weight_and_step(tmp_path: Path) -> None:
    """What comes once, for each sample or each copy of the weights, is little for a usual head."""
    width, count, steps = 256, 50, 300
    rng = np.random.default_rng(0)
    data = Features(
        np.arange(count), rng.normal(size=(count, width)).astype(np.float32), rng.integers(0, 10, count)
    )
    model = nn.Linear(width, 10)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Journal.record(
        tmp_path / "a", model, optimiser, data=data, batches=FullBatch(count, steps)
    ) as recording:
        for rows in recording:
            inputs, targets = data.take(rows)
            optimiser.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimiser.step()
    assert Journal(tmp_path / "a", data).bytes_per_weight_and_step < 2.1


def test_groups_of_parameters_keep_their_own_decay_and_rate(tmp_path: Path) -> None:
    model = linear()
    groups = [
        {"params": [model.weight], "weight_decay": 0.01},
        {"params": [model.bias], "lr": 1.0, "weight_decay": 0.0},
    ]
    optimiser = torch.optim.SGD(groups, lr=2.0)
    with Journal.record(tmp_path / "a", model, optimiser, data=FEATURES, batches=FULL) as recording:
        for rows in recording:
            inputs, targets = FEATURES.take(rows)
            optimiser.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimiser.step()
    journal = Journal(tmp_path / "a", FEATURES)
    assert [(group.count, group.decay) for group in journal.file.header.groups] == [
        (CLASSES * WIDTH, 0.01),
        (CLASSES, 0.0),
    ]
    assert next(iter(journal.file.moments(0))).rates.tolist() == [2.0, 1.0]
    motion = journal.motion_at(0)
    for moment in journal.file.moments(0):
        assert moment.gradient is not None
        motion.step(moment.gradient, moment.rates)
    assert np.linalg.norm(motion.place - flat(model)) < 1e-3 * np.linalg.norm(flat(model))


def run(
    tmp_path: Path,
    loop: Callable[[Iterable[np.ndarray], nn.Module, torch.optim.Optimizer], None],
    *,
    model: nn.Module | None = None,
    make: Callable[..., torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(parameters, lr=1.0),
) -> None:
    model = linear() if model is None else model
    optimiser = make(model.parameters())
    with Journal.record(tmp_path / "a", model, optimiser, data=FEATURES, batches=BATCHES) as recording:
        loop(recording, model, optimiser)  # type: ignore[arg-type]


def step(rows: np.ndarray, model: nn.Module, optimiser: torch.optim.Optimizer, factor: float = 1.0) -> None:
    inputs, targets = FEATURES.take(rows)
    optimiser.zero_grad()
    (factor * F.cross_entropy(model(inputs), targets)).backward()
    optimiser.step()


def refuse_to_open(path: Path) -> None:
    with pytest.raises(JournalRefused, match="cut short"):
        Journal(path, FEATURES)


def test_a_loop_that_ends_early_leaves_no_journal(tmp_path: Path) -> None:
    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for number, rows in enumerate(recording):
            if number == 20:
                break
            step(rows, model, optimiser)

    run(tmp_path, loop)
    refuse_to_open(tmp_path / "a")


def test_a_loop_that_fails_leaves_no_journal(tmp_path: Path) -> None:
    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for rows in recording:
            step(rows, model, optimiser)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        run(tmp_path, loop)
    refuse_to_open(tmp_path / "a")


@pytest.mark.parametrize("room", [0, 6_000, 10_000, 14_000])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    """In the header, among the steps, or, of what waited in a buffer, at the end."""

    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for rows in recording:
            step(rows, model, optimiser)

    with (
        files_no_larger_than(room),
        pytest.raises(ModelError, match=f"cannot write {tmp_path / 'a'}: .*make room"),
    ):
        run(tmp_path, loop)
    assert list(tmp_path.iterdir()) == []
    run(tmp_path, loop)
    assert (tmp_path / "a").stat().st_size > 14_000, "else there was room"


def test_a_loss_that_is_no_mean_is_found_at_once(tmp_path: Path) -> None:
    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for rows in recording:
            step(rows, model, optimiser, factor=2.0)

    with pytest.raises(WrongUse, match=r"gradient of step 0 is .* off that of the mean loss"):
        run(tmp_path, loop)


@pytest.mark.parametrize(("begin", "found"), [(1, 1), (3, 4), (33, 64), (65, 71)])
def test_a_loss_that_changes_later_is_found_before_the_end(tmp_path: Path, begin: int, found: int) -> None:
    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for number, rows in enumerate(recording):
            step(rows, model, optimiser, factor=0.2 if number >= begin else 1.0)

    with pytest.raises(WrongUse, match=rf"gradient of step {found} is .* off that of the mean loss"):
        run(tmp_path, loop)
    refuse_to_open(tmp_path / "a")


def test_rounding_at_the_end_of_a_run_that_has_converged_is_no_other_loss(tmp_path: Path) -> None:
    """Squares that are all met: what is left of the gradient is noise, of sums in another order here."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(64, 8)).astype(np.float32)
    data = Features(np.arange(64), values, (values @ rng.normal(size=8) + 3).astype(np.float32))
    model = nn.Linear(8, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.4)
    batches = FullBatch(64, 700)
    with Journal.record(
        tmp_path / "a", model, optimiser, data=data, batches=batches, loss="squares"
    ) as recording:
        for rows in recording:
            inputs, targets = data.take(rows)
            optimiser.zero_grad()
            outputs = (inputs.flip(1) * model.weight.flip(1)).sum(1) + model.bias
            (0.5 * (outputs - targets).square().mean()).backward()
            optimiser.step()
    assert Journal(tmp_path / "a", data).steps == 700


def test_other_rows_than_those_given_are_found_at_once(tmp_path: Path) -> None:
    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for rows in recording:
            step((rows + 1) % COUNT, model, optimiser)

    with pytest.raises(WrongUse, match="train on the rows that the recording gives"):
        run(tmp_path, loop)


@pytest.mark.parametrize("times", [0, 2])
def test_one_step_for_each_batch(tmp_path: Path, times: int) -> None:
    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for rows in recording:
            for _ in range(times):
                step(rows, model, optimiser)

    with pytest.raises(WrongUse, match=f"made {times} steps in batch 1; make one"):
        run(tmp_path, loop)


def test_a_step_before_the_first_batch(tmp_path: Path) -> None:
    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        step(np.arange(5), model, optimiser)

    with pytest.raises(WrongUse, match="without a batch"):
        run(tmp_path, loop)


def test_a_step_without_gradients(tmp_path: Path) -> None:
    def loop(recording: Iterable[np.ndarray], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for _ in recording:
            optimiser.step()

    with pytest.raises(WrongUse, match="call backward"):
        run(tmp_path, loop)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda parameters: torch.optim.AdamW(parameters), "is AdamW, whose steps are not linear"),
        (lambda parameters: torch.optim.SGD(parameters, lr=1, momentum=0.5, dampening=0.1), "dampening"),
        (lambda parameters: torch.optim.SGD(parameters, lr=1, maximize=True), "maximize"),
        (lambda parameters: torch.optim.SGD(list(parameters)[:1], lr=1), "all of them and no others"),
        (
            lambda parameters: torch.optim.SGD(
                [{"params": [each], "momentum": 0.1 * number} for number, each in enumerate(parameters)], lr=1
            ),
            "different momentum",
        ),
    ],
)
def test_optimisers_that_cannot_be_replayed(
    tmp_path: Path, make: Callable[..., torch.optim.Optimizer], says: str
) -> None:
    with pytest.raises(WrongUse, match=says):
        run(tmp_path, lambda *_: None, make=make)
    assert not (tmp_path / "a").exists()


def test_batches_of_another_number_of_samples(tmp_path: Path) -> None:
    model = linear()
    with pytest.raises(WrongUse, match="batches are of 7 samples, there are 600"):
        Journal.record(
            tmp_path / "a",
            model,
            torch.optim.SGD(model.parameters(), lr=1),
            data=FEATURES,
            batches=FullBatch(7, 3),
        )


def test_features_may_come_in_another_order_and_with_more(tmp_path: Path) -> None:
    every = make_features(spare=10)
    record(tmp_path / "a", first_rows(every))
    mixed = every.pick(np.random.default_rng(1).permutation(len(every)))
    assert Journal(tmp_path / "a", mixed).steps == 60


def changed(**columns: object) -> Features:
    return Features(
        **{"ids": FEATURES.ids, "values": FEATURES.values, "targets": FEATURES.targets, **columns}  # type: ignore[arg-type]
    )


TARGETS = FEATURES.targets.copy()
TARGETS[7] = (TARGETS[7] + 1) % CLASSES
NUDGED = FEATURES.values.copy()
NUDGED[9, 0] += 1e-3


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (changed(targets=TARGETS), "was made with data of version"),
        (changed(values=NUDGED), "was made with data of version"),
        (first_rows(FEATURES, COUNT - 1), "1 rows of samples are not in the features"),
        (changed(values=FEATURES.values[:, 1:]), r"\(600, 11\), the journal is of a head for \(n, 12\)"),
        (changed(source="layers"), "was made with data of version"),
    ],
)
def test_other_data_is_refused(tmp_path: Path, data: Features, says: str) -> None:
    record(tmp_path / "a", FEATURES)
    with pytest.raises(JournalRefused, match=says):
        Journal(tmp_path / "a", data)


@pytest.mark.parametrize(
    "changes",
    [
        {"batches": {"kind": "full", "count": COUNT, "steps": 61}},
        {"batches": {"kind": "full", "count": COUNT + 1, "steps": 60}},
        {"batches": {"kind": "spiral"}},
        {"batches": {"kind": "full", "count": 0, "steps": 60}},
        {"groups": (Group(7, 0.0),)},
        {"objective": {"kind": "linear", "features": 12}},
        {"objective": {"kind": "linear", "features": 1 << 60, "outputs": 4, "loss": "softmax", "bias": True}},
    ],
)
def test_a_header_that_does_not_fit_its_steps_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    """Checks that fit: written by somebody, not by accident."""
    record(tmp_path / "a", FEATURES)
    content = memoryview((tmp_path / "a").read_bytes())
    with (tmp_path / "b").open("wb") as file:
        writer = FrameWriter(file)
        for frame in find_frames(content):
            body = bytes(content[frame.begin : frame.end])
            if frame.kind == "HEAD":
                header = msgspec.structs.replace(msgspec.msgpack.decode(body, type=Header), **changes)
                body = msgspec.msgpack.encode(header)
            writer.put(frame.kind, body)
    with pytest.raises(JournalRefused):
        Journal(tmp_path / "b", FEATURES).weights  # noqa: B018


def test_another_model_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "a", FEATURES)
    with pytest.raises(JournalRefused, match=r"is of another model: it has \{'features': 12\}"):
        Journal(tmp_path / "a", FEATURES, model=nn.Linear(WIDTH + 1, CLASSES))
    with pytest.raises(JournalRefused, match="is of another model"):
        Journal(tmp_path / "a", FEATURES, model=nn.Linear(WIDTH, CLASSES, bias=False))
