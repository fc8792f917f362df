"""What came of training a run again with other samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headwater.errors import WrongUse
from headwater.plan.replay import ReplayPlan
from headwater.train.replay.objective import Vector

EXPERIMENTAL = "experimental: the model is not convex, and replay may be off by much of the change"


@dataclass(frozen=True, eq=False)
class Retrained:
    """New weights, by which `method` they came about, and at what cost.

    `weights` are flat, `tensors` the same by name. `moved` is how they differ from the old ones,
    `change` its length. `work`
    is the share of rows that were gone through of those that training again goes through, `seconds` is CPU
    time. `error` is the estimated distance to training again as a share of the change since a run was last
    trained in full; 0 for `exact`, None where nothing is known. It is measured on the way and no bound:
    none of this certifies that samples were forgotten. `reason` says why the method is not the one that was
    asked for. `journal` is that of the new run.
    """

    method: str
    weights: Vector
    moved: Vector
    tensors: Mapping[str, NDArray[np.float32]]
    change: float
    work: float
    seconds: float
    error: float | None
    plan: ReplayPlan | None = None
    reason: str = ""
    journal: Path | None = None
    experimental: bool = False

    def load_into(self, model: nn.Module) -> None:
        """Put the new weights into a module; raises `WrongUse` for one of other parameters."""
        own = dict(model.named_parameters())
        if {name: tuple(each.shape) for name, each in own.items()} != {
            name: each.shape for name, each in self.tensors.items()
        }:
            raise WrongUse("the weights are those of another model; pass one like that which was trained")
        with torch.no_grad():
            for name, each in own.items():
                each.copy_(torch.from_numpy(np.array(self.tensors[name])))

    def __str__(self) -> str:
        lines = [
            f"{self.method}: weights moved by {self.change:.3g}; {self.work:.1%} of the rows of training "
            f"again, {self.seconds:.3g} s of CPU"
        ]
        if self.plan is not None:
            lines.append(str(self.plan))
        if self.reason:
            lines.append(self.reason)
        if self.experimental:
            lines.append(EXPERIMENTAL)
        return "\n".join(lines)
