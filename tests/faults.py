"""Random schedules of what goes wrong between a store and its clients, drawn from a seed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self, get_args

from headwater.cli.faults import LASTING, Direction, Fault, Kind
from headwater.cli.proxy import Proxy, Shape

EventKind = Literal["fault", "shape", "cut", "kill", "stop", "full"]
PROCESS_KINDS: tuple[EventKind, ...] = ("kill", "stop", "full")


class ProcessControl(Protocol):
    """What a schedule does to the store's process; `resume` of one that runs must do nothing, nor `free`."""

    def restart(self) -> None:
        """SIGKILL, and start it again at the same address."""

    def suspend(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""

    def fill(self) -> None:
        """Its disk is full: it can write no file."""

    def free(self) -> None:
        """There is room again."""


@dataclass(frozen=True)
class Event:
    """`argument` is the fault, the link's new shape, or how many seconds it is stopped or has a full disk."""

    at_seconds: float
    kind: EventKind
    argument: Fault | Shape | float | None = None


@dataclass(frozen=True)
class Schedule:
    """Events in order of time; the last resets what they left broken, and the link is whole from then on."""

    seed: int
    events: tuple[Event, ...]

    @classmethod
    def random(
        cls, seed: int, *, seconds: float = 3.0, longest_seconds: float = 1.5, processes: bool = True
    ) -> Schedule:
        """The same seed gives the same schedule; nothing in it starts or lasts beyond `seconds`."""
        dice = random.Random(seed)
        others: tuple[EventKind, ...] = ("shape", "cut", *(PROCESS_KINDS if processes else ()))
        starts = sorted(_round(dice.uniform(0.0, 0.9 * seconds)) for _ in range(dice.randint(1, 6)))
        events = [
            _draw(dice, _draw_kind(dice, others), start, min(longest_seconds, seconds - start))
            for start in starts
        ]
        return cls(seed, (*events, Event(seconds, "cut")))

    @property
    def seconds(self) -> float:
        return self.events[-1].at_seconds

    def __str__(self) -> str:
        """For the report of a failure: what happened, in lines that can be pasted into a test."""
        return "\n".join([f"Schedule({self.seed}, (", *(f"    {event!r}," for event in self.events), "))"])

    def apply(self, proxy: Proxy, process: ProcessControl | None = None) -> Playing:
        """Play it in a thread, from now on."""
        wanting = [event for event in self.events if event.kind in PROCESS_KINDS]
        if process is None and wanting:
            raise ValueError(f"no process to {wanting[0].kind}; give one, or draw with processes=False")
        return Playing(self, proxy, process)


class Playing:
    """A schedule under way. However it ends, the process runs and the link is as it was before."""

    def __init__(self, schedule: Schedule, proxy: Proxy, process: ProcessControl | None) -> None:
        self._proxy, self._process, self._shape = proxy, process, proxy.shape
        self._actions = sorted(
            (action for event in schedule.events for action in self._expand(event)), key=lambda pair: pair[0]
        )
        self._stopped, self._error = threading.Event(), None
        self._thread = threading.Thread(target=self._run, name="schedule", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self, timeout_seconds: float = 60.0) -> None:
        """Wait for the end of the schedule; raises what an event raised."""
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the schedule still plays after {timeout_seconds} s")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Leave out the rest."""
        self._stopped.set()
        self.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    _error: Exception | None

    def _run(self) -> None:
        began = time.monotonic()
        try:
            for at_seconds, act in self._actions:
                if self._stopped.wait(max(0.0, began + at_seconds - time.monotonic())):
                    break
                act()
        except Exception as error:  # for the thread that joins
            self._error = error
        finally:
            self._mend()

    def _mend(self) -> None:
        try:
            if self._process is not None:
                self._process.resume()
                self._process.free()
            self._proxy.heal()
            self._proxy.reshape(self._shape)
        except Exception as error:
            self._error = self._error or error

    def _expand(self, event: Event) -> Iterator[tuple[float, Callable[[], None]]]:
        argument, proxy, process = event.argument, self._proxy, self._process
        if isinstance(argument, Fault):
            yield event.at_seconds, lambda: proxy.inject(argument)
        elif isinstance(argument, Shape):
            yield event.at_seconds, lambda: proxy.reshape(argument)
        elif event.kind == "cut":
            yield event.at_seconds, proxy.cut
        elif process is not None and event.kind == "kill":
            yield event.at_seconds, process.restart
        elif process is not None and isinstance(argument, float):
            full = event.kind == "full"
            yield event.at_seconds, process.fill if full else process.suspend
            yield event.at_seconds + argument, process.free if full else process.resume


def _draw_kind(dice: random.Random, others: tuple[EventKind, ...]) -> EventKind:
    return "fault" if dice.random() < 0.7 else dice.choice(others)


def _draw(dice: random.Random, kind: EventKind, start: float, most_seconds: float) -> Event:
    if kind == "fault":
        return Event(start, kind, _draw_fault(dice, dice.choice(get_args(Kind)), most_seconds))
    if kind == "shape":
        shape = Shape(_log_uniform(dice, 1e6, 1e9), dice.choice((0.0, 0.02)), dice.choice((0.0, 0.02)))
        return Event(start, kind, shape)
    if kind in ("stop", "full"):
        return Event(start, kind, _draw_seconds(dice, most_seconds))
    return Event(start, kind)


def _draw_fault(dice: random.Random, kind: Kind, most_seconds: float) -> Fault:
    directions: tuple[Direction, ...] = get_args(Direction)
    # A fault that strikes once may also strike the connections that replace the one it broke.
    lasts = kind in LASTING or dice.random() < 0.3
    by_bytes = kind != "refuse" and dice.random() < 0.5
    return Fault(
        kind,
        dice.choice(directions),
        after_bytes=int(_log_uniform(dice, 1, 1e6)) if by_bytes else None,
        seconds=_draw_seconds(dice, most_seconds) if lasts else None,
        bits_per_second=_log_uniform(dice, 1e5, 1e7) if kind == "slow" else None,
        delay_seconds=_round(dice.uniform(0.005, 0.3)) if kind in ("delay", "jitter") else 0.0,
        mask=1 << dice.randrange(8) if kind == "corrupt" else 1,
    )


def _draw_seconds(dice: random.Random, most_seconds: float) -> float:
    return _round(dice.uniform(min(0.05, most_seconds), most_seconds))


def _log_uniform(dice: random.Random, low: float, high: float) -> float:
    return float(round(low * (high / low) ** dice.random()))


def _round(seconds: float) -> float:
    """Milliseconds are enough, and can be read."""
    return round(seconds, 3)
