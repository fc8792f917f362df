"""What a link is like, and what can go wrong with it: the values that the proxy takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from headwater.errors import WrongUse

Kind = Literal[
    "delay",
    "jitter",
    "slow",
    "pause",
    "hold",
    "swallow",
    "refuse",
    "corrupt",
    "half-close",
    "truncate",
    "reset",
]
Direction = Literal["up", "down", "both"]

LASTING: frozenset[Kind] = frozenset({"delay", "jitter", "slow", "pause", "hold", "swallow", "refuse"})
"""Kinds that go on for a time; the others strike once."""


@dataclass(frozen=True)
class Shape:
    """A link: a rate that all connections share, one for each direction, and a delay one way.

    Jitter adds between nothing and `jitter_seconds`, and never changes the order of bytes. TCP's own
    handshake is not delayed: the proxy answers it itself.
    """

    bits_per_second: float | None = None
    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.bits_per_second)
        for name in ("delay_seconds", "jitter_seconds"):
            _check_time(name, getattr(self, name))


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, in one direction ("up" is from the client to the server) or in both.

    It starts after `after_bytes` of the direction's stream, or `at_seconds` after the connection opened
    (or after the fault was injected); with neither, at once. What does not strike once lasts for
    `seconds`, by default for ever.

    delay, jitter   `delay_seconds` more on the way, or up to as much
    slow            `bits_per_second` for this connection alone
    pause           nothing is read, so the sender's window closes
    hold            a black hole whose bytes arrive late: taken from the sender, delivered afterwards
    swallow         a black hole whose bytes are lost
    refuse          new connections are reset at once, without a connection to the server
    corrupt         the next byte is changed by exclusive or with `mask`
    half-close      the receiver sees the end of the stream, and what the sender adds is lost
    truncate        both ends see the end of the stream
    reset           both ends see a reset
    """

    kind: Kind
    direction: Direction = "both"
    after_bytes: int | None = None
    at_seconds: float | None = None
    seconds: float | None = None
    bits_per_second: float | None = None
    delay_seconds: float = 0.0
    mask: int = 0x01

    def __post_init__(self) -> None:
        _check_member("kind", self.kind, get_args(Kind))
        _check_member("direction", self.direction, get_args(Direction))
        self._check_start()
        _check_rate(self.bits_per_second)
        if self.kind == "slow" and self.bits_per_second is None:
            raise WrongUse("a slow fault without bits_per_second; say how slow")
        if self.kind in ("delay", "jitter") and not 0 < self.delay_seconds < math.inf:
            raise WrongUse(f"a {self.kind} of {self.delay_seconds} s; delay_seconds must be above 0")
        if not 0 < self.mask < 256:
            raise WrongUse(f"mask is {self.mask}; the bits to flip in one byte are 1 to 255")

    def _check_start(self) -> None:
        started = self.after_bytes is not None or self.at_seconds is not None
        if self.after_bytes is not None and self.at_seconds is not None:
            raise WrongUse("a fault starts after_bytes or at_seconds, not both")
        if self.kind == "refuse" and started:
            raise WrongUse(
                "a refused connection has neither bytes nor time before it; leave out when it starts"
            )
        if self.after_bytes is not None and self.after_bytes < 0:
            raise WrongUse(f"after_bytes is {self.after_bytes}; a position is 0 or more")
        for name in ("at_seconds", "seconds"):
            _check_time(name, getattr(self, name) or 0.0)

    @property
    def lasts_seconds(self) -> float:
        """How long it goes on: for ever unless told, and no time for what strikes once."""
        if self.seconds is not None:
            return self.seconds
        return math.inf if self.kind in LASTING else 0.0

    def affects(self, direction: Direction) -> bool:
        return self.direction in (direction, "both")


@dataclass(frozen=True)
class Standing:
    """A fault that was injected, for connections that open later; `start` is a time of the clock."""

    fault: Fault
    start: float

    @property
    def until(self) -> float:
        return self.start + self.fault.lasts_seconds

    def rest(self, now: float) -> Fault:
        """The fault with what is left of its times."""
        left = self.until - max(now, self.start)
        seconds = None if left == math.inf else left
        if self.fault.at_seconds is None:
            return replace(self.fault, seconds=seconds)
        return replace(self.fault, seconds=seconds, at_seconds=max(0.0, self.start - now))


def _check_rate(bits_per_second: float | None) -> None:
    if bits_per_second is not None and not 0 < bits_per_second < math.inf:
        raise WrongUse(f"bits_per_second is {bits_per_second}; it must be above 0, or None for no limit")


def _check_time(name: str, seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise WrongUse(f"{name} is {seconds}; it must be 0 or more")


def _check_member(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise WrongUse(f"{name} is {value!r}; known are {', '.join(known)}")
