"""`hw.retrain`: the weights of a run if other samples had been there, by one of several methods."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path

import numpy as np

from headwater.errors import WrongUse
from headwater.plan.replay import Adaptive, Policy, ReplayPlan
from headwater.train.replay.following import Follower
from headwater.train.replay.influence import move_by_influence
from headwater.train.replay.journal import Journal
from headwater.train.replay.keeping import writing
from headwater.train.replay.objective import Vector
from headwater.train.replay.outcome import Retrained
from headwater.train.replay.request import Request
from headwater.train.replay.training import Trainer
from headwater.train.replay.writer import JournalWriter

TOLERANCE, LIMIT = 0.01, 0.1
_SWELLING = 3.0
"""Where errors may come to so many times what an estimate would say, there is none to go by."""
_WARM = 0.1
"""The share of the run's steps that a warm start makes once more."""


def retrain(
    journal: Journal,
    remove: Iterable[int] = (),
    add: Iterable[int] = (),
    *,
    method: str = "replay",
    tolerance: float | None = None,
    limit: float = LIMIT,
    policy: Policy | None = None,
    keep: str | os.PathLike[str] | None = None,
) -> Retrained:
    """The weights of the recorded run without the samples `remove` and with the samples `add`, by their ids.

    Batches are those of the run: who goes leaves a hole, who comes joins batches by its id. Methods are
    `replay`, `exact` (every step computed again), `warm` (a tenth of the steps once more, from the old
    weights) and `influence` (one Newton step). A replay computes as many steps as the `tolerance` asks for,
    a share of how far the weights move (0.01 unless told, and never 0: that is `exact`), or those that a
    `policy` names; where the estimated error passes the `limit`, it is done again exactly. `keep` is
    a file for the journal of the new run, which serves the next request, and may replace the old one. Raises
    `WrongUse` for what is no id and for samples that are not there, or are already, and `JournalRefused`
    where some of the recorded gradients are not those of their batches.
    """
    if method not in METHODS:
        raise WrongUse(f"method is {method!r}; it may be {', '.join(METHODS)}")
    if policy is not None and tolerance is not None:
        raise WrongUse("tolerance and policy are two ways to say the same; give one")
    if tolerance is not None and not (isinstance(tolerance, Real) and 0 < tolerance < 1):
        raise WrongUse(
            f"tolerance is {tolerance!r}; it must be between 0 and 1, and for no error at all say "
            'method="exact" instead'
        )
    if not (isinstance(limit, Real) and limit > 0):
        raise WrongUse(f"limit is {limit!r}; it must be above 0")
    begun = time.process_time()
    policy = policy or Adaptive(TOLERANCE if tolerance is None else tolerance)
    wish = Wish(Request.make(journal, remove, add), policy, limit, _path(keep))
    done = METHODS[method](wish)
    return replace(done, seconds=time.process_time() - begun)


@dataclass(frozen=True, eq=False)
class Wish:
    """A request, and how it is to be met."""

    request: Request
    policy: Policy
    limit: float
    keep: Path | None

    def outcome(self, method: str, weights: Vector, *, rows: int, error: float | None) -> Retrained:
        """What is the same for all methods; the time is filled in later."""
        journal = self.request.journal
        moved = weights - journal.weights
        return Retrained(
            method=method,
            weights=weights,
            tensors=journal.objective.name_weights(weights),
            moved=moved,
            change=float(np.linalg.norm(moved)),
            work=rows / max(self.request.rows, 1),
            seconds=0.0,
            error=error,
            journal=self.keep,
            experimental=journal.objective.experimental,
        )


def _replay(wish: Wish) -> Retrained:
    """Followed; trained again if the estimated error is too large."""
    try:
        with _journal(wish, followed=True) as writer:
            follower = Follower(wish.request, wish.policy, writer=writer)
            if follower.swelling > _SWELLING:
                raise _Unsteady(follower.swelling)
            found = follower.follow()
            if found.plan.error > wish.limit:
                raise _TooFar(found.plan, found.rows)
            if writer is not None:
                writer.seal(found.place, found.speed, error=found.error)
    except _Unsteady as unsteady:
        return replace(_exact(wish), reason=str(unsteady))
    except _TooFar as far:
        return _instead(wish, far)
    done = wish.outcome("replay", found.place, rows=found.rows, error=found.plan.error)
    return replace(done, plan=found.plan, moved=found.moved)


def _instead(wish: Wish, far: _TooFar) -> Retrained:
    done = _exact(wish)
    reason = (
        f"replay was given up: its estimated error, {far.plan.error:.2g} of the change, is above the limit "
        f"of {wish.limit:g}"
    )
    work = done.work + far.rows / max(wish.request.rows, 1)
    return replace(done, plan=far.plan, reason=reason, work=work)


def _exact(wish: Wish) -> Retrained:
    with _journal(wish, followed=False) as writer:
        found = Trainer(wish.request, writer=writer).again()
        if writer is not None:
            writer.seal(found.place, found.speed)
    return wish.outcome("exact", found.place, rows=found.rows, error=0.0)


def _warm(wish: Wish) -> Retrained:
    _refuse_journal(wish, "warm")
    steps = max(1, round(_WARM * wish.request.journal.steps))
    found = Trainer(wish.request).last(steps)
    return wish.outcome("warm", found.place, rows=found.rows, error=None)


def _influence(wish: Wish) -> Retrained:
    _refuse_journal(wish, "influence")
    weights, rows = move_by_influence(wish.request)
    return wish.outcome("influence", weights, rows=rows, error=None)


METHODS: dict[str, Callable[[Wish], Retrained]] = {
    "replay": _replay,
    "exact": _exact,
    "warm": _warm,
    "influence": _influence,
}


class _Unsteady(Exception):  # nor does this one
    def __init__(self, swelling: float) -> None:
        super().__init__(
            "replay was not tried: at the rates of this run steps blow up errors, to "
            f"{swelling:.2g} times what an estimate would say or more"
        )


class _TooFar(Exception):  # never leaves this module
    def __init__(self, plan: ReplayPlan, rows: int) -> None:
        super().__init__(plan, rows)
        self.plan, self.rows = plan, rows


def _journal(wish: Wish, *, followed: bool) -> AbstractContextManager[JournalWriter | None]:
    if wish.keep is None:
        return nullcontext()
    return writing(wish.request, wish.keep, followed=followed)


def _refuse_journal(wish: Wish, method: str) -> None:
    if wish.keep is not None:
        raise WrongUse(f"{method} gives weights, and no run that could be replayed; leave out keep")


def _path(keep: str | os.PathLike[str] | None) -> Path | None:
    """Raises `WrongUse` for what cannot be a file."""
    if keep is None:
        return None
    path = Path(keep)
    if path.is_dir() or not path.name:
        raise WrongUse(f"keep is {path}, a folder; name a file in it, such as {path / 'next.journal'}")
    return path
