"""What does it cost to choose medoids piece by piece, and how true is their gradient?

Made-up last-layer gradients of 50,000 samples of 10 classes: early in training (all are hard), in the middle
(half is learned) and late (nine tenths are). 30 % is chosen from whole classes, as CRAIG does, and from
random pieces of 64 samples of a class, as NeSSA does. The error is that of the mean gradient against that of
all samples, root mean square over epochs: of a whole selection; of one step on one piece of every class, as
NeSSA trains; and of batches of 128 from the shuffled selection. Weights are those that training gets,
clipped, but for the steps, which have them unclipped. All three are shown against as many random samples of
each class, and of all; half of the error is asked of the whole selection, which is what is selected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.select.craig import Craig
from headwater.select.fresh import Fresh
from headwater.select.maximisers import Partitioned
from headwater.select.medoids import Medoids
from headwater.select.objectives import FacilityLocation
from headwater.select.parts import Parts
from headwater.select.samples import Samples
from headwater.select.selecting import Selector, make_selection
from measuring import (
    Bar,
    Cell,
    Options,
    Report,
    Table,
    at_least,
    best,
    compare,
    interleave,
    main,
    peak,
    rate_table,
)

COUNT = 50_000
CLASSES = 10
SHARE = 0.3
CHUNK = 64
BATCH = 128
PHASES = {"early": 0.0, "middle": 0.5, "late": 0.9}
FASTER = 40.0
ERROR = 0.5
FLAT = 3.0
SIZES = (10_000, 1_000_000)
MEDOIDS = "medoids, weights"
RANDOM = "random of each class"
PLAIN = "random of all"
RANDOMS = (RANDOM, PLAIN)


def make_samples(count: int, learned: float) -> Samples:
    """Softmax less the target, of logits that favour the target a little, or clearly where it is learned."""
    rng = np.random.default_rng(17)
    rows, labels = np.arange(count), rng.integers(0, CLASSES, count)
    logits = rng.normal(size=(count, CLASSES)).astype(np.float32)
    logits[rows, labels] += np.where(rng.random(count) < learned, rng.normal(6, 2, count), 1)
    vectors = np.exp(logits - logits.max(axis=1, keepdims=True))
    vectors /= vectors.sum(axis=1, keepdims=True)
    vectors[rows, labels] -= 1
    return Samples.of(rows * 7919, labels, vectors=vectors, seed=17, epoch=1)


@dataclass(frozen=True, eq=False)
class Errors:
    """Squared errors of the mean gradient of subsets of some samples."""

    samples: Samples
    found: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, what: str, name: str, places: NDArray[np.int64], weights: NDArray[np.generic]) -> None:
        assert self.samples.vectors is not None
        mean = np.average(self.samples.vectors[places], axis=0, weights=weights)
        off = float(np.square(mean - self.samples.vectors.mean(axis=0)).sum())
        self.found.setdefault((what, name), []).append(off)

    def root_mean_square(self, what: str, name: str) -> float:
        return float(np.sqrt(np.mean(self.found[what, name])))

    def ratio(self, what: str, other: str) -> float:
        """Of weighted medoids to another."""
        return self.root_mean_square(what, MEDOIDS) / self.root_mean_square(what, other)


SELECTORS: Mapping[str, Selector] = {
    RANDOM: Fresh(SHARE),
    MEDOIDS: Medoids(SHARE, chunk=CHUNK, explore=0.0),
    "medoids, no weights": Medoids(SHARE, chunk=CHUNK, weighted=False, explore=0.0),
}
KINDS = ("whole selection", "step on a piece of each class", "shuffled batch")


def measure_errors(samples: Samples, *, epochs: int, batches: int) -> Errors:
    errors = Errors(samples)
    for epoch in range(1, epochs + 1):
        now, rng = replace(samples, epoch=epoch), np.random.default_rng(epoch)
        for name, selector in SELECTORS.items():
            found = make_selection(selector, now)
            _add_selection(errors, name, found.places, found.weights, rng, batches)
        some = rng.choice(len(now), int(SHARE * len(now)), replace=False)
        _add_selection(errors, PLAIN, some, np.ones(len(some)), rng, batches)
        _add_steps(errors, now, rng)
    return errors


def _add_selection(
    errors: Errors,
    name: str,
    places: NDArray[np.int64],
    weights: NDArray[np.generic],
    rng: np.random.Generator,
    batches: int,
) -> None:
    errors.add("whole selection", name, places, weights)
    for _ in range(batches):
        batch = rng.choice(len(places), min(BATCH, len(places)), replace=False)
        errors.add("shuffled batch", name, places[batch], weights[batch])


def _add_steps(errors: Errors, samples: Samples, rng: np.random.Generator) -> None:
    """Medoids of the first piece of each class, and as many random samples of each class, and of all."""
    assert samples.vectors is not None
    classes = Parts.of_classes(samples, np.arange(len(samples)), share=SHARE)
    pieces = classes.split(CHUNK)
    first = pieces.where(np.isin(pieces.begins, classes.begins))
    picks = Partitioned(CHUNK).maximise(FacilityLocation(), samples.vectors, first)
    ones = np.ones(len(picks.places))
    step = KINDS[1]
    errors.add(step, MEDOIDS, picks.places, picks.sizes)
    errors.add(step, "medoids, no weights", picks.places, ones)
    ends = zip(classes.begins, classes.sizes, first.budgets, strict=True)
    some = [begin + rng.choice(size, count, replace=False) for begin, size, count in ends]
    errors.add(step, RANDOM, classes.order[np.concatenate(some)], ones)
    errors.add(step, PLAIN, rng.choice(len(samples), len(ones), replace=False), ones)


def errors_of(found: Mapping[str, Errors]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for what in KINDS:
        for phase, errors in found.items():
            names = (PLAIN, *SELECTORS)
            values = {name: errors.root_mean_square(what, name) for name in names}
            ratios = (f"{errors.ratio(what, other):.2f}" for other in RANDOMS)
            rows.append((what, phase, *(f"{values[name]:.5f}" for name in names), *ratios))
    ratios = (f"{MEDOIDS} / {other}" for other in RANDOMS)
    return Table(("error of the mean gradient", "phase", PLAIN, *SELECTORS, *ratios), tuple(rows))


def measure_costs(sizes: tuple[int, ...]) -> dict[int, tuple[float, float]]:
    """CPU seconds and bytes that choosing piece by piece takes, by the number of samples."""
    found = {}
    for count in sizes:
        call = partial(SELECTORS[MEDOIDS].choose, make_samples(count, 0.5))
        found[count] = best(call, 3, time.process_time), peak(call)
    return found


def per_minute(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return 60 / (time.perf_counter() - begin)


def run(folder: Path, options: Options) -> Report:
    count = COUNT // 10 if options.quick else COUNT
    samples = {phase: make_samples(count, learned) for phase, learned in PHASES.items()}
    contenders = {
        "partitioned": partial(per_minute, partial(SELECTORS[MEDOIDS].choose, samples["middle"])),
        "whole": partial(per_minute, partial(Craig(SHARE).choose, samples["middle"])),
    }
    rates = interleave(contenders, rounds=options.rounds)
    epochs, batches = (3, 20) if options.quick else (20, 100)
    errors = {phase: measure_errors(some, epochs=epochs, batches=batches) for phase, some in samples.items()}
    costs = measure_costs(tuple(size // 10 for size in SIZES) if options.quick else SIZES)
    return Report(
        f"medoids of {SHARE:.0%} of {count:,} x {CLASSES} gradients, in pieces of {CHUNK} and whole",
        (rate_table(rates, "partitioned", "selections/minute"), errors_of(errors), costs_of(costs)),
        (
            at_least(compare(rates, "partitioned", "whole"), FASTER),
            *(bar_of(phase, found, other) for phase, found in errors.items() for other in RANDOMS),
            flat(costs),
        ),
        (
            f"errors are of {epochs} epochs, shuffled batches of {batches} batches of {BATCH} in each",
            *not_judged(errors),
        ),
        raw={"rates": rates},
    )


def bar_of(phase: str, errors: Errors, other: str) -> Bar:
    ratio = errors.ratio(KINDS[0], other)
    what = f"{phase}: error of a selection, {MEDOIDS} / {other}"
    return Bar(what, f"at most {ERROR:g}", f"{ratio:.3f}", ratio <= ERROR)


def not_judged(found: Mapping[str, Errors]) -> Iterator[str]:
    """The other errors, over all phases; nothing is asked of them."""
    for what in KINDS[1:]:
        for other in RANDOMS:
            ratios = [errors.ratio(what, other) for errors in found.values()]
            yield f"not judged: {what}, {MEDOIDS} / {other}: {min(ratios):.2f}..{max(ratios):.2f}"


def costs_of(costs: Mapping[int, tuple[float, float]]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        ("CPU ns/sample", *(f"{1e9 * seconds / count:.0f}" for count, (seconds, _) in costs.items())),
        ("most bytes/sample held", *(f"{held / count:.0f}" for count, (_, held) in costs.items())),
        ("most MB held", *(f"{held / 1e6:.1f}" for _, held in costs.values())),
    ]
    return Table(("partitioned, samples", *(f"{count:.0e}" for count in costs)), tuple(rows))


def flat(costs: Mapping[int, tuple[float, float]]) -> Bar:
    seconds = {count: found[0] / count for count, found in costs.items()}
    factor = seconds[max(seconds)] / seconds[min(seconds)]
    what = f"CPU seconds per sample, {max(seconds):.0e} / {min(seconds):.0e}"
    return Bar(what, f"at most {FLAT:g}", f"{factor:.2f}", factor <= FLAT)


if __name__ == "__main__":
    main(__doc__, run)
