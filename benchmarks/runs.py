"""Does a fine-tuning in N overlapped runs take S/N + (N-1)/N max(S,T) + T/N?

S are the seconds until all features are at the tuner, T those of training. The store has one core, the tuner
the other, so that neither slows the other down, and the head is one that takes as long to train as its
features take to come: where S and T are close, runs gain most. S and T are those of the same round's N = 1,
in which nothing overlaps. EfficientNet-Lite0 with int8 layers; features are made anew every time.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headwater.models.registry import Registry
from headwater.plan.finetune import Stages
from measuring import Bar, Cell, Options, Report, Table, close_to_one, main
from serving import CLIENT_CORE, STORE_CORE, demand_two_cores, on_core, serve
from trainers import write_tars
from tuners import INT8, KEEP_NOTHING, Fitted, Tuners, put_int8, put_trunk, state_of

RUNS = (1, 2, 3, 5)
ROUNDS = 5
PHOTOS, PHOTOS_QUICK = 1920, 192
"""Many more in a run than are under way at once, and batches of the same size in all numbers of runs."""
BATCH = 64
DEPTH = 40
PROBED = 2
"""Epochs that tell what one takes."""
WITHIN = 0.15
CLOSE = 1.25
"""How far S and T may be apart, as a ratio, to be called close."""

Rounds = list[dict[int, Fitted]]


def start(folder: Path, options: Options, stack: ExitStack) -> tuple[Tuners, dict[str, Any]]:
    """Tuners on a core of their own, and the settings of a fine-tuning over a store on the other."""
    photos = write_tars(folder, options, copies=1 if options.quick else 3)
    (held, state), registry = state_of(folder / "state"), Registry(folder / "models")
    put_trunk(held, registry)
    put_int8(photos, held, registry)
    with on_core(STORE_CORE):
        store = stack.enter_context(serve(photos, cores=1, further=(*state, *KEEP_NOTHING)))
    with on_core(CLIENT_CORE):
        tuners = stack.enter_context(Tuners(registry))
    count = PHOTOS_QUICK if options.quick else PHOTOS
    return tuners, {"data": [store.photos], "model": INT8, "samples": count, "depth": DEPTH}


def recipe(epochs: int, runs: int) -> dict[str, Any]:
    return {"epochs": epochs, "runs": runs, "batch_size": BATCH, "validation": 0.0, "cut": "features"}


def balance(tuners: Tuners, settings: dict[str, Any]) -> int:
    """Epochs with which training takes as long as the features."""
    tuners.prepare("probe", {**settings, "recipe": recipe(PROBED, 1)})
    tuners.fit("probe")  # the store loads the layers
    found = tuners.fit("probe")
    return max(1, round(PROBED * found.extract / found.train))


def measure(tuners: Tuners, *, rounds: int) -> Rounds:
    """All numbers of runs in turns; a round before the first is not counted."""
    found: Rounds = []
    for number in range(rounds + 1):
        found.append({runs: tuners.fit(f"runs-{runs}") for runs in RUNS})
        times = ", ".join(f"{runs}: {one.seconds:.1f} s" for runs, one in found[-1].items())
        print(f"round {number} of {rounds}: {times}", file=sys.stderr, flush=True)
    return found[1:]


def expect(alone: Fitted, runs: int) -> float:
    """By the formula, from what N = 1 took."""
    return Stages(store=alone.extract, link=0.0, rest=0.0, train=alone.train).seconds(runs)


def ratios(found: Rounds, runs: int) -> list[float]:
    return [one[runs].seconds / expect(one[1], runs) for one in found]


def time_table(found: Rounds) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for runs in RUNS:
        seconds = [one[runs].seconds for one in found]
        expected = statistics.median(expect(one[1], runs) for one in found)
        gained = statistics.median(one[1].seconds / one[runs].seconds for one in found)
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}..{max(seconds):.2f})"
        some = ratios(found, runs)
        part = f"{statistics.median(some):.3f} ({min(some):.3f}..{max(some):.3f})"
        rows.append((runs, f"{expected:.2f}", spread, part, f"{gained:.2f}x"))
    return Table(("runs", "expected s", "seconds", "seconds / expected", "one run / it"), tuple(rows))


def stage_table(found: Rounds) -> Table:
    """What S and T were in each number of runs: overlapped, they should be what they are alone."""
    rows: list[tuple[Cell, ...]] = []
    for runs in RUNS:
        extract, train = (
            statistics.median(getattr(one[runs], name) for one in found) for name in ("extract", "train")
        )
        rows.append((runs, f"{extract:.2f}", f"{train:.2f}"))
    return Table(("runs", "features came for s", "training s"), tuple(rows))


def close_bar(found: Rounds) -> Bar:
    apart = [one[1].extract / one[1].train for one in found]
    middle, spread = statistics.median(apart), f"{min(apart):.2f}..{max(apart):.2f}"
    holds = 1 / CLOSE <= middle <= CLOSE
    return Bar("S / T", f"{1 / CLOSE:.2f} to {CLOSE:.2f}", f"{middle:.2f} ({spread})", holds)


def run(folder: Path, options: Options) -> Report:
    demand_two_cores()
    with ExitStack() as stack:
        tuners, settings = start(folder, options, stack)
        epochs = balance(tuners, settings)
        for runs in RUNS:
            tuners.prepare(f"runs-{runs}", {**settings, "recipe": recipe(epochs, runs)})
        found = measure(tuners, rounds=1 if options.quick else ROUNDS)
    what = "{} runs: seconds over S/N + (N-1)/N max(S,T) + T/N"
    return Report(
        "the time of a fine-tuning in overlapped runs, store and tuner on a core each",
        (time_table(found), stage_table(found)),
        (close_bar(found), *(close_to_one(what.format(n), ratios(found, n), WITHIN) for n in RUNS[1:])),
        (
            f"{settings['samples']} photos, batches of {BATCH}, {epochs} epochs, nothing held out",
            f"the head: one layer of 320 x 320, {DEPTH} times over; its state is written after every epoch",
        ),
        raw={"rounds": [{str(runs): vars(one) for runs, one in each.items()} for each in found]},
    )


if __name__ == "__main__":
    main(__doc__, run)
