"""How far each sample goes at the store before it crosses the link: options, load, a file per policy."""

from __future__ import annotations

from headwater.plan.offload.load import Load, Rates
from headwater.plan.offload.options import Options
from headwater.plan.offload.plan import OffloadPlan
from headwater.plan.offload.policies import POLICIES, make_plan
from headwater.plan.offload.several import plan_each
from headwater.plan.offload.uniform import Offload

__all__ = ["POLICIES", "Load", "Offload", "OffloadPlan", "Options", "Rates", "make_plan", "plan_each"]
