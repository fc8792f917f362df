"""Which steps of a recorded run are computed when it is followed with other samples; others are approximated.

Unlike plans that are made ahead, this one is made step by step: a `Course` is asked before each step and
told after it.
"""

from __future__ import annotations

from headwater.plan.replay.adaptive import Adaptive
from headwater.plan.replay.course import Course
from headwater.plan.replay.curvature import Curvature, Fitted
from headwater.plan.replay.drift import Inertia
from headwater.plan.replay.lbfgs import lbfgs
from headwater.plan.replay.plan import ReplayPlan
from headwater.plan.replay.policy import Decider, Policy
from headwater.plan.replay.prior import Kronecker, Plain, Prior, Span, find_span
from headwater.plan.replay.published import Published
from headwater.plan.replay.secants import secants
from headwater.plan.replay.spacing import Outlook
from headwater.plan.replay.steadiness import carry, swelling

__all__ = [
    "Adaptive",
    "Course",
    "Curvature",
    "Decider",
    "Fitted",
    "Inertia",
    "Kronecker",
    "Outlook",
    "Plain",
    "Policy",
    "Prior",
    "Published",
    "ReplayPlan",
    "Span",
    "carry",
    "find_span",
    "lbfgs",
    "secants",
    "swelling",
]
