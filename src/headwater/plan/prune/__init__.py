"""Which channels of a network can go, and when that is known: masks, their distances, a file per rule.

Early-Bird tickets (You et al., "Drawing Early-Bird Tickets: Toward More Efficient Training of Deep Networks",
ICLR 2020): the mask that pruning by channel scales would give settles early in training.
"""

from __future__ import annotations

from headwater.plan.prune.channels import Channels
from headwater.plan.prune.look import Look
from headwater.plan.prune.mask_distance import MaskDistance
from headwater.plan.prune.plan import PrunePlan, make_plan
from headwater.plan.prune.rules import RULES, Rule
from headwater.plan.prune.settled_mask import SettledMask
from headwater.plan.prune.watch import Watch

__all__ = [
    "RULES",
    "Channels",
    "Look",
    "MaskDistance",
    "PrunePlan",
    "Rule",
    "SettledMask",
    "Watch",
    "make_plan",
]
