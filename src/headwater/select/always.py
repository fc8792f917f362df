"""A selector that is wanted whatever it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.select.samples import Samples
from headwater.select.selection import Choice

if TYPE_CHECKING:
    from headwater.select.selecting import Selector


@dataclass(frozen=True)
class Always:
    """Selects as `selector` does; neither a loader nor an `hw.Beside` ends it for what it costs.

    An experiment wants it so.
    """

    selector: Selector

    @property
    def name(self) -> str:
        return self.selector.name

    @property
    def needs(self) -> tuple[str, ...]:
        return self.selector.needs

    @property
    def explore(self) -> float | None:
        return self.selector.explore

    def choose(self, samples: Samples) -> Choice:
        return self.selector.choose(samples)
