"""The small network that the demo trains, in the kind of loop that a user would write."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from headwater.loader import Batch, DataLoader
from headwater.report.loader import Step
from headwater.train.tickets.bird import EarlyBird

_COMPARED, _RECENT = 3, 20
_RATE, _RISE = 0.01, 0.3


def small_network(classes: int) -> nn.Module:
    """Four convolutions, then the maximum over an image of 64 pixels: about 100,000 parameters."""
    layers: list[nn.Module] = []
    for wide, wider in itertools.pairwise((3, 16, 32, 64, 128)):
        layers += [nn.Conv2d(wide, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    layers[0] = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)  # full resolution costs half the time
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, classes))


@dataclass
class Trainer:
    """A network in training and what was measured; validation does not count as training time.

    With a `bird` it becomes slim when that says so.
    """

    network: nn.Module
    bird: EarlyBird | None = None
    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._optimiser = torch.optim.AdamW(self.network.parameters(), weight_decay=0.01)
        self._recent: deque[torch.Tensor] = deque(maxlen=_RECENT)

    def train_epoch(self, loader: DataLoader) -> Iterator[Batch]:
        """One epoch; yields each batch after the network has learned from it."""
        self.network.train()
        begin = time.perf_counter() - self.seconds
        for batch in loader:
            self._set_rate(loader.done)
            loss, logits = self._learn(batch)
            loader.report(batch, loss=loss, logits=logits)
            right = (logits.argmax(1) == batch.targets).float().mean()
            self.seconds = time.perf_counter() - begin
            self.steps.append(Step(self.seconds, len(batch), float(loss.mean()), float(right)))
            yield batch

    def _set_rate(self, done: float) -> None:
        """Up along half a cosine, then down along another, by the share of the run that lies behind."""
        rising = done < _RISE
        along = done / _RISE if rising else (done - _RISE) / (1 - _RISE)
        height = (1 - math.cos(math.pi * along)) / 2
        for group in self._optimiser.param_groups:
            group["lr"] = _RATE * (0.04 + 0.96 * height if rising else 1 - height)

    def _learn(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.network(batch.inputs)
        loss = cross_entropy(logits, batch.targets, reduction="none")
        self._optimiser.zero_grad()
        torch.autograd.backward((loss * batch.weights).mean())
        if self.bird is None:
            self._optimiser.step()
        else:
            self._step_watched(self.bird, batch)
        return loss.detach(), logits.detach()

    def _step_watched(self, bird: EarlyBird, batch: Batch) -> None:
        self._recent.append(batch.inputs)
        bird.after_backward()
        self._optimiser.step()
        if bird.observe(lr=self._optimiser.param_groups[0]["lr"]):
            bird.slim(self._optimiser, self._recent)
            self._recent.clear()


@torch.no_grad()
def evaluate(network: nn.Module, loader: DataLoader) -> float:
    """The share of samples that the network labels rightly."""
    network.eval()
    right = sum(int((network(inputs).argmax(1) == targets).sum()) for inputs, targets in loader)
    return right / len(loader.dataset)


@dataclass
class ResumeProof:
    """Batches that followed a saved state, kept to be compared with those of a loader that starts from it."""

    at: int
    state: dict[str, object] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def watch(self, step: int, batch: Batch, loader: DataLoader) -> None:
        """See a batch of the straight run go by."""
        if step == self.at:
            self.state = loader.state_dict()
        elif self.at < step <= self.at + _COMPARED:
            self.batches.append(batch)

    def differing_bytes(self, resumed: DataLoader) -> tuple[int, int]:
        """Bytes of ids, labels and pixels that differ in a loader that resumes here, and bytes compared."""
        resumed.load_state_dict(self.state)
        differing = compared = 0
        for ours, theirs in zip(self.batches, resumed, strict=False):
            found = differing_bytes(ours, theirs)
            differing, compared = differing + found[0], compared + found[1]
        return differing, compared


def differing_bytes(ours: Batch, theirs: Batch) -> tuple[int, int]:
    """Bytes of ids, labels and pixels that differ, and bytes compared."""
    differing = compared = 0
    pairs = ((ours.ids, theirs.ids), (ours.targets, theirs.targets), (ours.inputs, theirs.inputs))
    for one, other in pairs:
        left, right = (tensor.contiguous().view(torch.uint8) for tensor in (one, other))
        same = one.dtype == other.dtype and left.shape == right.shape
        differing += int((left != right).sum()) if same else max(left.numel(), right.numel())
        compared += left.numel()
    return differing, compared
