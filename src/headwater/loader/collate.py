"""From settled samples to a `Batch`: failures, labels, fields, and the batch stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.data.buffers import Buffers
from headwater.data.pipeline import Pipeline
from headwater.data.randomness import Draws
from headwater.data.steps.base import BatchStep, Image
from headwater.data.steps.mix import MixStep
from headwater.data.steps.tensors import to_tensor
from headwater.engine.meter import Meter
from headwater.engine.run import Failure, Task, explain
from headwater.errors import SampleError, WrongUse
from headwater.loader.batch import Batch
from headwater.loader.device import Transfer
from headwater.loader.landing import Arithmetic, Landing
from headwater.store.dataset import Dataset

Collate = Callable[[list[tuple[torch.Tensor, Any]]], tuple[Any, Any]]

ON_ERROR = ("raise", "skip", "substitute")
_SUBSTITUTE = -1  # the step number that keys the choice of substitutes; no pipeline has it


@dataclass(frozen=True)
class Making:
    """How batches are made: what all batches of a loader have in common."""

    dataset: Dataset
    batchwise: Pipeline
    transfer: Transfer
    meter: Meter
    buffers: Buffers | None
    seed: int = 0
    on_error: str = "raise"
    collate_fn: Collate | None = None


class BatchSink:
    """Makes the batches of a run."""

    def __init__(self, making: Making) -> None:
        self._making = making
        self._arithmetic = Arithmetic.of(making.batchwise.steps) if making.transfer.on_cpu else None
        self.batch_bytes = 0

    def open(self, task: Task) -> BatchTarget:
        return BatchTarget(self, task, self._making, self._arithmetic)


class BatchTarget:
    """One batch in the making."""

    def __init__(self, sink: BatchSink, task: Task, making: Making, arithmetic: Arithmetic | None) -> None:
        self._sink, self._task, self._making = sink, task, making
        self._landing = Landing(len(task.ids), arithmetic, making.buffers)
        self._images: dict[int, Image] = {}
        self._fields: dict[str, list[object]] = {}

    def put(self, slot: int, image: Image) -> None:
        if self._making.collate_fn is None:
            self._landing.put(slot, image)
        else:
            self._images[slot] = image

    def put_fields(self, slots: Sequence[int], fields: Mapping[str, Sequence[object]]) -> None:
        for name, values in fields.items():
            column = self._fields.setdefault(name, [None] * len(self._task.ids))
            for slot, value in zip(slots, values, strict=True):
                column[slot] = value

    def settle(self, begin: int, end: int) -> None:
        if self._making.collate_fn is None:
            self._landing.settle(begin, end)

    def finish(self, failures: Sequence[Failure]) -> Batch:
        slots = self._resolve(failures)
        ids = self._task.ids if slots is None else self._task.ids[slots]
        targets = self._targets(slots)
        inputs, targets, done = self._collate(slots, targets)
        self._sink.batch_bytes = getattr(inputs, "nbytes", 0)
        ids_served = torch.from_numpy(np.array(ids))
        batch = Batch(inputs, targets, self._weights(slots, len(ids)), ids_served, self._task.epoch)
        self._making.meter.count(samples=len(ids), batches=1, bytes_raw=self._task.bytes_raw)
        return self._making.transfer.move(batch, lambda moved: self._batch_stage(moved, done))

    def _weights(self, slots: NDArray[np.int64] | None, count: int) -> torch.Tensor:
        weights = self._task.weights
        if weights is None:
            return torch.ones(count)
        return torch.from_numpy(weights if slots is None else weights[slots])

    def _collate(self, slots: NDArray[np.int64] | None, targets: Any) -> tuple[Any, Any, int]:
        """Inputs, targets, and how many batch steps the inputs already went through."""
        if self._making.collate_fn is None:
            whole = self._landing.tensor
            return (
                (whole if slots is None else whole[torch.from_numpy(slots)]),
                targets,
                self._landing.covered,
            )
        order = range(len(self._task.ids)) if slots is None else slots.tolist()
        each = _per_sample(targets, len(order))
        samples = [(to_tensor(self._images[slot]), target) for slot, target in zip(order, each, strict=True)]
        inputs, targets = self._making.collate_fn(samples)
        return inputs, targets, 0

    def _targets(self, slots: NDArray[np.int64] | None) -> Any:
        chosen = slice(None) if slots is None else slots
        labels = torch.from_numpy(
            self._making.dataset.index.labels[self._task.positions[chosen]].astype(np.int64)
        )
        if not self._fields:
            return labels
        places = range(len(self._task.ids)) if slots is None else slots.tolist()
        fields = {name: _column([values[place] for place in places]) for name, values in self._fields.items()}
        return {"label": labels} | fields

    def _batch_stage(self, batch: Batch, done: int) -> Batch:
        steps = self._making.batchwise.steps[done:]
        if not steps:
            return batch
        inputs, targets = batch.inputs, batch.targets
        if not isinstance(inputs, torch.Tensor):
            kind = type(inputs).__name__
            raise WrongUse(f"collate_fn returned a {kind}; {steps[0].name} acts on a tensor, so leave it out")
        ids = batch.ids.numpy()
        for position, step in enumerate(steps, start=self._making.batchwise.offset + done):
            if isinstance(step, MixStep):
                rows = step.draw_pairs(ids, seed=self._making.seed, epoch=self._task.epoch, step=position)
                labels = targets["label"] if isinstance(targets, dict) else targets
                inputs, labels = step.apply_mix(inputs, labels, rows)
                targets = {**targets, "label": labels} if isinstance(targets, dict) else labels
                continue
            assert isinstance(step, BatchStep)
            sizes = np.broadcast_to(np.array(inputs.shape[-2:], np.int64), (len(ids), 2))
            draws = Draws.of(ids, seed=self._making.seed, epoch=self._task.epoch, step=position)
            inputs = step.apply_batch(inputs, step.draw(draws, sizes))
        return replace(batch, inputs=inputs, targets=targets)

    def _resolve(self, failures: Sequence[Failure]) -> NDArray[np.int64] | None:
        """Which slot serves each place of the batch; None when all serve themselves."""
        if not failures:
            return None
        errors = [self._explain(failure) for failure in failures]
        failed = np.array([failure.slot for failure in failures])
        good = np.setdiff1d(np.arange(len(self._task.ids)), failed)
        if self._making.on_error == "raise" or not len(good) or isinstance(errors[0], WrongUse):
            raise errors[0]
        for error, slot in zip(errors, failed.tolist(), strict=True):
            self._making.meter.error(self._key(slot), getattr(error, "reason", None) or repr(error))
        if self._making.on_error == "skip":
            self._making.meter.count(skipped=len(failed))
            return good
        self._making.meter.count(substituted=len(failed))
        slots = np.arange(len(self._task.ids))
        draws = Draws.of(
            self._task.ids[failed], seed=self._making.seed, epoch=self._task.epoch, step=_SUBSTITUTE
        )
        slots[failed] = good[draws.integers(0, 0, len(good))]
        return slots

    def _explain(self, failure: Failure) -> Exception:
        error = explain(failure, id=int(self._task.ids[failure.slot]), key=self._key(failure.slot))
        if isinstance(error, SampleError) and self._making.on_error == "raise":
            error.add_note("to go on without such samples, pass on_error='skip' or 'substitute'")
        return error

    def _key(self, slot: int) -> str:
        return self._making.dataset.index.key(int(self._task.positions[slot]))


def _column(values: list[object]) -> Any:
    """Numbers, and arrays of one shape, become a tensor; anything else, also with a None, stays a list."""
    if not all(isinstance(value, bool | int | float | np.ndarray) for value in values):
        return values
    arrays = [np.asarray(value) for value in values]
    if len({array.shape for array in arrays}) > 1 or any(array.dtype.kind not in "biuf" for array in arrays):
        return values
    stacked = np.stack(arrays)
    return torch.from_numpy(stacked.astype(stacked.dtype.newbyteorder("="), copy=False))


def _per_sample(targets: Any, count: int) -> list[Any]:
    if isinstance(targets, dict):
        return [{name: values[place] for name, values in targets.items()} for place in range(count)]
    return list(targets)
