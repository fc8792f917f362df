"""The demo's chapters on budgets: less memory, a network that becomes slim, a head without some photos."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from headwater.cli.exhibition import Exhibit
from headwater.cli.exhibition.loader import PIXELS, plain_steps, training_loader
from headwater.cli.printing import say
from headwater.cli.training import Trainer, evaluate, small_network
from headwater.errors import HeadwaterError
from headwater.loader import Batch, DataLoader
from headwater.report import Chapter, Table
from headwater.report.memory import memory_chapter
from headwater.report.tickets import TITLE, ticket_chapter
from headwater.store import Dataset, open
from headwater.train.memory import memory_budget
from headwater.train.replay.batches import FullBatch
from headwater.train.replay.comparing import NOTHING, Comparison, compare_methods
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.tickets.bird import EarlyBird

AGAIN = "Without some photos"

_RATIO, _BATCH = 0.5, 64
_STEPS, _RATE, _DECAY = 300, 0.5, 1e-3
_GONE = 0.01
_MOST, _HELD, _TIMES = 1 << 40, 0.5, 4
_MEMORY = """The network of the first chapter was trained for {steps} steps twice, from the same beginning: as
usual, and within half of the memory that autograd keeps for backward. What did not fit went to a file, or was
computed again. {differing} of {numbers:,} weights differ in the end."""
_SLIM = """The network of the first chapter was trained again from the same beginning, on the same photos.
Meanwhile the scales of its batch norms were watched, and when the choice of channels had settled, or a fifth
of the run was over, the idle half went: the rest of the run trained the slim network. It was labelling
{slim:.1%} of held-back photos rightly in the end, the dense one {dense:.1%}. A slim network is another
network, and one run each says little about accuracy."""
_AGAIN = """A new head was trained on what the network of the first chapter makes of {photos:,} photos, and a
journal was kept of that run. Then {gone} of these photos were to go. Training again without them says what
the head should be; the other ways say how near to that they come, over the distance of doing nothing,
and for how much of the work. Of so few photos a step may be computed sooner than it is predicted:
benchmarks/replay.py has more of them. None of the ways certifies that a photo was forgotten."""
_COLUMNS = ("way", "distance to training again, over that of the old head", "rows gone through", "CPU ms")


@dataclass(frozen=True)
class Slimmed:
    """What became of the network: when, its parameters and multiply-adds before and after, and its worth."""

    step: int
    steps: int
    parameters: tuple[int, int]
    macs: tuple[int, int]
    accuracy: float


def show_budget(photos: Path, *, network: nn.Module, accuracy: float, epochs: int, seed: int) -> Exhibit:
    """Train within half of the memory; a network that becomes slim; and a head without some photos.

    Raises `HeadwaterError` if less memory gave other weights.
    """
    training, held_back = open(photos).split(0.8, 0.2, seed=seed)
    chapter, memory = _show_memory(training, seed=seed)
    chapters, figures = [chapter], {"memory": memory}
    if find_spec("torch_pruning") is None:
        chapters.append(Chapter(TITLE, "This part was left out: it needs pip install 'headwater[train]'"))
    else:
        chapter, slimmed = _show_ticket(training, held_back, accuracy=accuracy, epochs=epochs, seed=seed)
        chapters.append(chapter)
        figures["ticket"] = asdict(slimmed)
    chapter, ways = _show_replay(training, network, seed=seed)
    return Exhibit((*chapters, chapter), {**figures, "replay": ways})


def _show_memory(training: Dataset, *, seed: int) -> tuple[Chapter, dict[str, Any]]:
    loader = training_loader(training, seed)
    batches = list(islice(loader, 2)) * _TIMES
    classes = len(training.classes)
    with memory_budget(_MOST, device="cpu") as budget:
        _learn(batches[:2], classes, seed)
    most = budget.report().peak_before
    plain = _learn(batches, classes, seed)
    with memory_budget(int(_HELD * most), device="cpu") as budget:
        held = _learn(batches, classes, seed)
    report = budget.report()
    differing = sum(int((a != b).sum()) for a, b in zip(plain, held, strict=True))
    if differing:
        raise HeadwaterError(f"{differing} weights differ after training within a memory budget")
    say(str(report))
    numbers = sum(each.numel() for each in plain)
    text = _MEMORY.format(steps=len(batches), differing=differing, numbers=numbers)
    facts = ("budget", "peak_before", "peak", "swapped", "recomputed", "stall_seconds", "late_fetches")
    known = report.to_dict()
    return memory_chapter(report, text=text), {name: known[name] for name in facts} | {"differing": differing}


def _learn(batches: Sequence[Batch], classes: int, seed: int) -> list[torch.Tensor]:
    """What a new network's weights are after a step on each batch."""
    torch.manual_seed(seed)
    model = small_network(classes)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in batches:
        optimiser.zero_grad()
        torch.autograd.backward(cross_entropy(model(batch.inputs), batch.targets))
        optimiser.step()
    return [each.detach() for each in model.state_dict().values()]


def _show_ticket(
    training: Dataset, held_back: Dataset, *, accuracy: float, epochs: int, seed: int
) -> tuple[Chapter, Slimmed]:
    torch.manual_seed(seed)
    model = small_network(len(training.classes))
    loader = training_loader(training, seed, epochs=epochs)
    steps = epochs * len(loader)
    example = torch.zeros(1, 3, PIXELS, PIXELS)
    bird = EarlyBird(model, ratio=_RATIO, steps=steps, round_to=8, example=example)
    _train(Trainer(model, bird=bird), loader, epochs=epochs)
    validation = DataLoader(held_back, plain_steps(), batch_size=_BATCH, progress=False)
    slim = evaluate(model, validation)
    ticket = bird.ticket
    assert ticket is not None  # a fifth of the run was over
    before, after = ticket.before, ticket.after
    found = Slimmed(
        ticket.plan.step,
        steps,
        (before.parameters, after.parameters),
        (before.macs, after.macs),
        slim,
    )
    say(f"{ticket}; {slim:.1%} of held-back photos labelled rightly")
    text = _SLIM.format(slim=slim, dense=accuracy)
    return ticket_chapter(bird.looks, bird.channels, ratio=_RATIO, plan=bird.plan, text=text), found


def _train(trainer: Trainer, loader: DataLoader, *, epochs: int) -> None:
    for _ in range(epochs):
        deque(trainer.train_epoch(loader), maxlen=0)


def _show_replay(training: Dataset, network: nn.Module, *, seed: int) -> tuple[Chapter, dict[str, Any]]:
    data = _features(training, network)
    rng = np.random.default_rng(seed)
    gone = rng.choice(data.ids, max(1, round(_GONE * len(data))), replace=False).tolist()
    with TemporaryDirectory() as folder:
        found = compare_methods(_record(Path(folder) / "head.journal", data, seed), remove=gone)
    say(f"a head again without {len(gone)} of {len(data):,} photos: {found.outcomes['replay']}")
    text = _AGAIN.format(photos=len(data), gone=len(gone))
    ways = {
        name: {"ratio": found.ratios[name], "work": done.work, "cpu_seconds": done.seconds}
        for name, done in found.outcomes.items()
    }
    return Chapter(AGAIN, text, table=_table(found)), {"photos": len(data), "gone": len(gone), "ways": ways}


def _features(training: Dataset, network: nn.Module) -> Features:
    """What the layers before the last make of each photo, with a mean square of 1."""
    assert isinstance(network, nn.Sequential)
    trunk = network[:-1].eval()
    ids, values, targets = [], [], []
    with torch.no_grad():
        for batch in DataLoader(training, plain_steps(), batch_size=_BATCH, progress=False):
            ids.append(batch.ids.numpy())
            values.append(trunk(batch.inputs).numpy())
            targets.append(batch.targets.numpy())
    rows = np.concatenate(values)
    rows /= max(float(np.sqrt(np.mean(np.square(rows)))), 1e-6) * rows.shape[1] ** 0.5
    return Features(ids=np.concatenate(ids), values=rows, targets=np.concatenate(targets))


def _record(path: Path, data: Features, seed: int) -> Journal:
    torch.manual_seed(seed)
    head = nn.Linear(data.values.shape[1], int(data.targets.max()) + 1)
    optimiser = torch.optim.SGD(head.parameters(), lr=_RATE, momentum=0.9, weight_decay=_DECAY)
    batches = FullBatch(len(data), steps=_STEPS)
    with Journal.record(path, head, optimiser, data=data, batches=batches) as recording:
        for rows in recording:
            inputs, classes = data.take(rows)
            optimiser.zero_grad()
            torch.autograd.backward(cross_entropy(head(inputs), classes))
            optimiser.step()
    return Journal(path, data, model=head)


def _table(found: Comparison) -> Table:
    rows = [(NOTHING, "1", "0 %", "0")]
    rows += [
        (name, f"{found.ratios[name]:.2g}", f"{done.work:.1%}", f"{1e3 * done.seconds:.0f}")
        for name, done in found.outcomes.items()
    ]
    return Table(_COLUMNS, tuple(rows))
