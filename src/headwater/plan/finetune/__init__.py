"""Where a model is cut between stores and tuner, in how many overlapped runs, by how many stores."""

from __future__ import annotations

from headwater.plan.finetune.choice import make_plan
from headwater.plan.finetune.convergence import Convergence
from headwater.plan.finetune.cut import Cut
from headwater.plan.finetune.plan import FinetunePlan, Option
from headwater.plan.finetune.stages import Rates, Stages, Work

__all__ = [
    "Convergence",
    "Cut",
    "FinetunePlan",
    "Option",
    "Rates",
    "Stages",
    "Work",
    "make_plan",
]
