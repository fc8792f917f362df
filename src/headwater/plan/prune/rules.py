"""What a rule is, and the rules by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from headwater.errors import WrongUse
from headwater.plan.prune.look import Look
from headwater.plan.prune.mask_distance import MaskDistance
from headwater.plan.prune.settled_mask import SettledMask


@runtime_checkable
class Rule(Protocol):
    """When the ticket is drawn; pure, so that the same looks give the same answer."""

    @property
    def memory(self) -> float:
        """What a look's scales keep of those of the look before, 0 to 1."""
        ...

    def interval(self, steps: int) -> int:
        """Steps between two looks, in a run of so many."""
        ...

    def decide(self, looks: Sequence[Look], *, ratio: float, steps: int) -> str | None:
        """Why the ticket is drawn at the last look, in a line; None: not yet."""
        ...


RULES: MappingProxyType[str, Callable[[], Rule]] = MappingProxyType(
    {"distance": MaskDistance, "settled": SettledMask}
)


def find_rule(rule: str | Rule) -> Rule:
    """The rule of this name, or the one that was given."""
    if isinstance(rule, Rule) and not isinstance(rule, type):
        return rule
    if not isinstance(rule, str) or rule not in RULES:
        raise WrongUse(f"there is no rule {rule!r}; choose from {', '.join(RULES)}, or give an object")
    return RULES[rule]()
