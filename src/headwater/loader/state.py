"""Where a loader stands, as a few numbers that outlive the process."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from headwater.errors import StateMismatch

FORMAT = 1
SHUFFLES: Mapping[object, str] = {False: "no", True: "full", "blocks": "blocks"}
"""What `DataLoader(shuffle=...)` takes, and what the state calls it."""


class LoaderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position in an epoch, over all ranks, and what it is a position in.

    `start` counts the places of the epoch's order that have been handed out, on all ranks together;
    it says nothing about ranks, workers or batch size, so a run may go on with others.
    """

    epoch: int
    start: int
    seed: int
    shuffle: str
    count: int
    dataset: str
    pipeline: str
    format: int = FORMAT
    select: str = ""
    """The selector's name; empty without one."""
    signals: str = ""
    """The digest of the file that holds what it knows, and what it selected."""

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        if not self.select:  # a state without a selector is as it always was
            del plain["select"], plain["signals"]
        return plain

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> LoaderState:
        """Raises `StateMismatch` for what is not a loader's state."""
        if isinstance(state, Mapping) and state.get("format") != FORMAT:
            raise StateMismatch(
                f"the state has format {state.get('format')!r}, this version of headwater reads {FORMAT}; "
                "load it with the version that saved it"
            )
        try:
            return msgspec.convert(state, cls)
        except msgspec.ValidationError as error:
            raise StateMismatch(f"this is not a state of a headwater loader: {error}") from error

    def check(self, own: LoaderState) -> None:
        """Raise unless `own`, a loader's present state, is of the same data in the same order."""
        for name, remedy in (
            ("dataset", "open the data as it was, or start a new run"),
            ("count", "open the data as it was, or start a new run"),
            ("seed", f"pass seed={self.seed}"),
            ("shuffle", _remedy(self.shuffle)),
            ("select", f"pass select={self.select or None!r}, with the same settings"),
        ):
            saved, here = getattr(self, name), getattr(own, name)
            if saved != here:
                raise StateMismatch(
                    f"the state was saved with {name} {saved}, this loader has {here}; {remedy}"
                )
        if not 0 <= self.start <= self.count or self.epoch < 0:
            raise StateMismatch(f"the state stands at {self.start} of {self.count} in epoch {self.epoch}")
        if self.pipeline != own.pipeline:
            warnings.warn(
                "the state was saved with other transforms or library versions; the same samples follow, "
                "but their pixels may differ from the first run's",
                stacklevel=3,
            )


def _remedy(shuffle: str) -> str:
    named = {name: argument for argument, name in SHUFFLES.items() if name != "blocks"}
    return f"pass shuffle={named[shuffle]!r}" if shuffle in named else "shuffle by blocks of the same number"
