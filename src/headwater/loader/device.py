"""Getting a finished batch to the training device.

The CUDA path follows PyTorch's documented pattern for side streams. It has not been run on the
project's machines, which have no accelerator; on the CPU every line that does not say `cuda` is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headwater.errors import WrongUse
from headwater.loader.batch import Batch, Device


class Transfer:
    """Moves batches to `device` and runs the batch stage there; with no device they stay on the CPU."""

    def __init__(self, device: Device | None, pin_memory: bool) -> None:
        self.device = torch.device("cpu" if device is None else device)
        self.on_cpu = self.device.type == "cpu"
        cuda = torch.cuda.is_available()
        if self.device.type == "cuda" and not cuda:
            raise WrongUse(f"device is {self.device}, but torch sees no CUDA device here; use device=None")
        self.pinned = cuda and (pin_memory or self.device.type == "cuda")
        self._stream: Any = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def move(self, batch: Batch, stage: Callable[[Batch], Batch]) -> Batch:
        """Called by the thread that finished the batch: copy and batch stage, both on the side stream."""
        if self._stream is None:
            return stage(batch) if self.on_cpu else stage(batch.to(self.device))
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            moved = stage(batch.to(self.device, non_blocking=True))
            # the copy reads pinned memory that must live until it is done, and this thread has time
            self._stream.synchronize()
        return moved

    def hand_over(self, batch: Batch) -> Batch:
        """Called by the training thread: its stream now owns the memory, which may not be reused earlier."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self.device)
            for tensor in (batch.inputs, batch.weights, *_tensors(batch.targets)):
                tensor.record_stream(current)
        return batch


def _tensors(targets: Any) -> list[torch.Tensor]:
    values = targets.values() if isinstance(targets, dict) else [targets]
    return [value for value in values if isinstance(value, torch.Tensor)]
