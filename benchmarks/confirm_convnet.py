"""Does a small convolutional network confirm what heads have shown of selectors?

CIFAR-10 at 32 pixels, moved and mirrored; a residual network of 118,000 weights, trained from nothing by
torch on all cores. Signals are noted batch by batch, as by `loader.report`. Fresh random shares are what
selectors are compared with, at as many steps and in as many CPU seconds, which are those of all cores.

Settings are those of the tables of heads, by the same names: medoids of pieces with weights, and without and
with subset biasing as NeSSA's code has them; buckets as published, and ours; InfoBatch; and what
`iowa_tables` found to be the best, which `--best` names. It is 20,000 of CIFAR-10's images, so that there is
time for as many epochs as heads have: buckets fill slowly, and in half of the epochs they could not save what
is asked.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from convnets import Convnet, make_pixels, read_pixels
from experiments import Difference, Found, Results, Run, begin_with, finals, middle, sooner
from fresh_curves import FRESH, FULL, Curve, cpu_of, named, part_of, steps_of
from imagesets import FOLDERS, work_in
from iowa_tables import CANDIDATES, LOST, SOONER
from iowa_tables import SETTINGS as OF_IOWA
from measuring import Bar, Cell, Flag, Options, Report, Table, main
from nessa_tables import OURS, settings_of
from selecting_runs import Recipe, Setting, train

FLAGS = {
    "seeds": Flag(3, "runs of each setting"),
    "epochs": Flag(16, "of each run"),
    "images": Flag(20_000, "to learn from, at most"),
}
SHARE = 0.3
DATA = "CIFAR-10"
MOST_SECONDS, MOST_METRICS = 20.0, 0.03
BEHIND = 0.5
"""Points that medoids may be behind `fresh` in the mean: with few seeds 0 is easily in the interval."""
MEDOIDS, BUCKETS, INFOBATCH = named(OURS, SHARE), "buckets of ours, random", "infobatch"
PUBLISHED = ("buckets as published, no recall", "buckets as published, random")
NAMES = {"best": tuple(name for name in CANDIDATES if name != "proxy")}
"""A proxy is a smaller network, which there is for heads alone."""
CONTROLS = {name: FRESH[name] for name in (named("fresh", share) for share in (SHARE, 0.7))}
STEPS = ("loading", "forward", "backward")


def choose(best: str | None) -> dict[str, Setting]:
    """The settings, and the best of `iowa_tables`."""
    of_nessa = settings_of(SHARE, classes=False)
    medoids = (MEDOIDS, *(named(name, SHARE) for name in ("medoids PA", "medoids SB+PA")))
    others = (INFOBATCH, BUCKETS, *PUBLISHED, *([best] if best else []))
    return {
        **CONTROLS,
        FULL: Setting(),
        **{name: of_nessa[name] for name in medoids},
        **{name: OF_IOWA[name] for name in others},
    }


def make_all(folder: Path, options: Options, settings: dict[str, Setting]) -> Found:
    """The runs; one that was stopped goes on where it was."""
    quick = options.quick
    pixels = read_pixels(options.data) if options.data else make_pixels(1_000)
    most = {"train": 1_000 if quick else int(options.numbers["images"]), "test": 1_000 if quick else None}
    pixels = {name: values[: most[name.partition("-")[0]]] for name, values in pixels.items()}
    recipe = Recipe(2 if quick else int(options.numbers["epochs"]), batch=128, noted_every=1)
    size = f"{len(pixels['train'])}x{recipe.epochs}"
    path = work_in(folder, options) / f"convnet-{DATA}-{size}.jsonl"
    found = Found(Results(path), DATA, range(2 if quick else int(options.numbers["seeds"])))
    network = Convnet(pixels)

    def make(name: str, seed: int) -> Run:
        run = train(network, settings[name], recipe, seed=seed)
        return replace(run, parts={**run.parts, **network.spent})

    found.make(settings, make)
    return found


def cost_table(found: Found, names: Iterable[str]) -> Table:
    """Where the time of each goes."""
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        runs = found.of(name)
        total, epochs = middle(runs, cpu_of), len(runs[0].steps)
        parts = (*STEPS, "metrics", "scoring", "selecting")
        shares = (f"{middle(runs, part_of(part)) / total:.1%}" for part in parts)
        wall = middle(runs, lambda run: run.wall) / epochs
        saved = middle(found.of(FULL), steps_of) / middle(runs, steps_of)
        rows.append((name, f"{wall:.1f}", f"{total / epochs:.1f}", f"{saved:.2f}x", *shares))
    columns = ("s an epoch", "CPU s an epoch", "fewer steps", *STEPS, "metrics", "scoring", "selecting")
    return Table((f"{found.data}: where time goes", *columns), tuple(rows))


def bars_of(found: Found, curve: Curve, best: str | None) -> Iterator[Bar]:
    full = found.of(FULL)
    for name, what, of, asked, lost in (
        (BUCKETS, "CPU seconds", cpu_of, 1.3, 0.5),
        (INFOBATCH, "steps", steps_of, 1.35, 0.3),
    ):
        runs = found.of(name)
        ratio, apart = middle(full, of) / middle(runs, of), Difference.of(finals(runs), finals(full))
        asks = f"{asked:g}x fewer {what} within {lost:g} points"
        yield Bar(name, asks, f"{ratio:.2f}x, {apart} points", ratio >= asked and apart.mean >= -lost)
    runs = found.of(MEDOIDS)
    for at, of in (("steps", steps_of), ("time", cpu_of)):
        apart = Difference.of(finals(runs), curve.at_equal(of, runs))
        low, high = apart.mean - apart.half, apart.mean + apart.half
        text = f"{apart} ({low:+.2f}..{high:+.2f}): {apart.verdict}"
        holds = apart.verdict != "behind" and apart.mean >= -BEHIND
        asks = f"interval not below 0, mean at least {-BEHIND:g} points"
        yield Bar(f"{MEDOIDS} - fresh at equal {at}", asks, text, holds)
    if best:
        runs = found.of(best)
        ratio, apart = sooner(runs, full, lost=LOST), Difference.of(finals(runs), finals(full))
        asks = f"{SOONER:g}x less time to the full run's accuracy - {LOST:g} points, where it ends too"
        holds = ratio >= SOONER and apart.mean >= -LOST
        yield Bar(f"best of iowa_tables, {best}", asks, f"{ratio:.2f}x, {apart} points", holds)
    share = middle(found.of(BUCKETS), lambda run: (run.parts["metrics"] + run.parts["selecting"]) / run.cpu)
    yield Bar(
        f"{BUCKETS}: metrics and selecting, of the time",
        f"under {MOST_METRICS:.0%}",
        f"{share:.2%}",
        share < MOST_METRICS,
    )
    epoch = middle(full, lambda run: run.wall / len(run.steps))
    yield Bar(
        f"an epoch of all {full[0].visited[0]:,} images",
        f"at most {MOST_SECONDS:g} s",
        f"{epoch:.1f} s",
        epoch <= MOST_SECONDS,
    )


def run(folder: Path, options: Options) -> Report:
    best = options.names["best"]
    settings = choose(best)
    found = make_all(folder, options, settings)
    curve = Curve(found, [*CONTROLS, FULL])
    rows = {name: found.of(name) for name in settings}
    whole = statistics.fmean(finals(found.of(FULL)))
    return Report(
        "test accuracy of a small convolutional network whose epochs leave images out",
        (curve.table(f"{found.data}: accuracy", rows), cost_table(found, settings)),
        tuple(bars_of(found, curve, best)) if options.data else (),  # made images have no accuracy
        (
            f"{found.used}; all of the data comes to {whole:.2f} %",
            "± is half of the 95 % interval of the mean difference of pairs, by Student's t",
        ),
        raw={name: finals(found.of(name)) for name in settings},
    )


if __name__ == "__main__":
    begin_with(OMP_WAIT_POLICY="passive")  # a thread that waits must not spend CPU seconds, which are counted
    main(__doc__, run, flags=FLAGS, folders={"work": FOLDERS["work"]}, names=NAMES)
