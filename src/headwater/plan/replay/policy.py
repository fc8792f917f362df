"""When a step is computed and when it is approximated: what every policy answers."""

from __future__ import annotations

from typing import Protocol

from headwater.plan.replay.curvature import Curvature
from headwater.plan.replay.spacing import Outlook


class Decider(Protocol):
    """One replay under a policy. Steps are counted from the first that saw a change, which is 0."""

    def exact(self, step: int, news: float = 0.0) -> bool:
        """Whether this step is to be computed; asked once for each step, in their order.

        `news` is the share of the offset of which no computed step has told anything.
        """
        ...

    def observe(self, outlook: Outlook) -> None:
        """After a computed step: what it says of the error in the end."""
        ...

    @property
    def futile(self) -> bool:
        """Whether so many steps are computed that approximating from here on does not pay."""
        ...


class Policy(Protocol):
    """A rule, with its settings."""

    def begin(self, *, noisy: bool = False, convex: bool = True) -> Decider:
        """For one replay; `noisy` if steps have batches of their own."""
        ...

    def curvature(self, *, noisy: bool, convex: bool) -> Curvature:
        """What predicts; `noisy` if steps have batches of their own."""
        ...

    @property
    def informed(self) -> bool:
        """Whether predictions make use of what is known of the Hessian beside pairs."""
        ...
