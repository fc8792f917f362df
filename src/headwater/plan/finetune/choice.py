"""From measurements to a plan: of the quickest cuts the one that ships least, and few stores and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headwater.errors import WrongUse
from headwater.plan.finetune.convergence import USUAL_RUNS, Convergence
from headwater.plan.finetune.cut import Cut
from headwater.plan.finetune.plan import FinetunePlan, Option
from headwater.plan.finetune.stages import Rates, Stages, Work

SLACK = 0.02
"""By how much of the time a store or a run that is left out may make it longer."""
TIE = 0.05
"""By how much of the time a cut that ships fewer bytes may take longer."""
DOUBT = 1.3
"""Times as long as was estimated: so it must be quicker still, or what was measured is preferred."""


@dataclass(frozen=True)
class Wish:
    """What the user has decided already; None and False leave it to the plan.

    `cut` names one. `runs` and `stores` are numbers to keep to. `more_bytes` allows cuts that ship more
    than the image.
    """

    cut: str | None = None
    runs: int | None = None
    stores: int | None = None
    more_bytes: bool = False


def make_plan(
    cuts: Sequence[Cut],
    work: Work,
    *,
    rates: Rates,
    stores: int,
    image_bytes: float,
    convergence: Convergence,
    steps: float,
    wish: Wish | None = None,
) -> FinetunePlan:
    """Choose cut, stores and runs; `stores` is how many there are, `steps` those of training in all.

    The same plan for the same numbers, always. Raises `WrongUse` for wishes that cannot be, and where every
    cut ships more bytes than an image of `image_bytes`.
    """
    wish = wish or Wish()
    _check(wish, stores=stores, images=work.images)
    limit = max(USUAL_RUNS, wish.runs or 1)
    bound = convergence.most_runs(samples=work.images, steps=steps, limit=limit)
    most = wish.runs or bound
    there = wish.stores or stores

    def stages(cut: Cut, some: int) -> Stages:
        return Stages.of(cut, work, rates=rates, stores=some)

    options = tuple(
        Option(cut, stages(cut, there).seconds(most), work.extractions * cut.bytes, cut.bytes > image_bytes)
        for cut in cuts
    )
    cut = _choose_cut(options, wish, image_bytes)
    some = wish.stores or _fewest(range(1, stores + 1), lambda number: stages(cut, number).seconds(most))
    runs = wish.runs or _fewest(range(1, most + 1), stages(cut, some).seconds)
    found = stages(cut, some)
    return FinetunePlan(
        cut=cut,
        stores=some,
        runs=runs,
        stages=found,
        bytes=work.extractions * cut.bytes,
        drift=convergence.drift(work.images / runs),
        options=options,
        reason=f"{_explain_cut(options, wish, cut)}; {_explain_runs(wish, runs, bound)}",
    )


def _check(wish: Wish, *, stores: int, images: int) -> None:
    if stores < 1:
        raise WrongUse(f"stores={stores}; features come from at least 1")
    if wish.stores is not None and not 1 <= wish.stores <= stores:
        raise WrongUse(f"{wish.stores} stores are asked for, and there are {stores}")
    if wish.runs is not None and not 1 <= wish.runs <= images:
        raise WrongUse(f"{wish.runs} runs are asked for; {images:,} images make 1 to {images:,}")


def _choose_cut(options: Sequence[Option], wish: Wish, image_bytes: float) -> Cut:
    """Of those about as quick as the quickest the one that ships least; estimates count for longer."""
    named = [option for option in options if wish.cut in (None, option.cut.name)]
    if not named:
        names = ", ".join(option.cut.name for option in options)
        raise WrongUse(f"the model cannot be cut at {wish.cut!r}; choose from {names}")
    allowed = [option for option in named if wish.more_bytes or not option.ships_more]
    if not allowed:
        least = min(named, key=lambda option: option.cut.bytes)
        raise WrongUse(
            f"cut at {least.cut.name!r}, {least.cut.bytes:,.0f} bytes would cross for an image of "
            f"{image_bytes:,.0f}; let the images cross instead, or allow it with more_bytes"
        )
    enough = (1 + TIE) * min(map(_sure_seconds, allowed))
    close = [option for option in allowed if _sure_seconds(option) <= enough]
    return min(close, key=lambda option: (option.bytes, _sure_seconds(option))).cut


def _sure_seconds(option: Option) -> float:
    return option.seconds * (DOUBT if option.cut.estimated else 1.0)


def _fewest(numbers: Iterable[int], seconds: Callable[[int], float]) -> int:
    """The smallest number with which it takes hardly longer than with any."""
    times = {number: seconds(number) for number in numbers}
    enough = (1 + SLACK) * min(times.values())
    return min(number for number, time in times.items() if time <= enough)


def _explain_cut(options: Sequence[Option], wish: Wish, cut: Cut) -> str:
    if wish.cut is not None:
        return "this cut was asked for"
    refused = [option.cut.name for option in options if option.ships_more and not wish.more_bytes]
    without = f", {', '.join(refused)} left out: more bytes than an image" if refused else ""
    if len(options) == 1:
        return f"there is no other cut{without}"
    allowed = [option for option in options if option.cut.name not in refused]
    return f"{_compare(allowed, cut, len(options))}{without}"


def _compare(allowed: Sequence[Option], cut: Cut, count: int) -> str:
    chosen = next(option for option in allowed if option.cut.name == cut.name)
    quickest = min(allowed, key=_sure_seconds)
    if _sure_seconds(quickest) < _sure_seconds(chosen):
        doubt = ", which is an estimate," if quickest.cut.estimated and not cut.estimated else ""
        return f"of {count} cuts about as quick as {quickest.cut.name}{doubt} and ships less"
    quicker = sum(option.cut.estimated and option.seconds < chosen.seconds for option in allowed)
    if not cut.estimated and quicker:
        return f"of {count} cuts {quicker} may be quicker, by less than estimates err"
    return f"the quickest of {count} cuts"


def _explain_runs(wish: Wish, runs: int, bound: int) -> str:
    if wish.runs is not None:
        more = f", more than the {bound} that the bound on drift allows" if bound < runs else ""
        return f"the number of runs was asked for{more}"
    if bound == 1:
        return "one run, because smaller ones would forget what the last one learnt"
    if runs == 1:
        return "one run, because there is hardly anything to overlap"
    return f"of at most {bound} runs that may follow one another these are enough"
