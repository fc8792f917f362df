"""IOWA's tables re-made: buckets and four baselines against all of the data; InfoBatch; the best of them all.

Heads over features of frozen layers. Buckets are as published, with another score, and as ours, each without
recall and with a random one; where near-duplicates are planted, they are dropped, or serve for each other. A
fresh random share in every epoch is there to compare with, at as many steps and in as many CPU seconds, which
count all that selecting takes. The best selector of all is found with half of the seeds, and judged by the
others, by the time that it and the full run take to one accuracy. `fresh`, which looks at no sample, is one
of them; so the best of those that do look is told beside it.
What metrics cost beside a real network is told by `confirm_convnet`: a head is quicker than they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from experiments import Difference, Found, Results, Run, begin_with, finals, middle, sooner
from fresh_curves import CURVE, FULL, Curve, cpu_of, steps_of
from heads import WIDTH, Head
from headwater.select.active_bias import ActiveBias
from headwater.select.biggest_losers import BiggestLosers
from headwater.select.buckets import Buckets
from headwater.select.infobatch import InfoBatch
from headwater.select.loss_rank import LossRank
from headwater.select.medoids import Medoids
from headwater.select.proxy import Proxy
from headwater.select.scoring import score
from headwater.select.uniform import Uniform
from imagesets import FOLDERS, Examples, open_features, work_in
from measuring import Bar, Cell, Flag, Options, Report, Table, main
from selecting_runs import NOTHING, Before, Recipe, Setting, train

FLAGS = {
    "seeds": Flag(10, "runs of each setting"),
    "epochs": Flag(16, "of each run"),
    "planted": Flag(0.1, "share of near-duplicates, for those settings that are about them"),
}
PROXY_HIDDEN, PROXY_EPOCHS = 16, 4
"""The proxy is a head with an eighth of the width, trained for a quarter of the epochs."""
SLACK = 0.1
"""Points that the best selector must have in reserve with those seeds that choose it."""
LOST, SOONER = 0.3, 1.5
"""What is asked of it: points at most, and how many times less time."""

_PUBLISHED = Buckets(published=True, whole_end=False, explore=0.0)
BASELINES = {
    "uniform, 50%": Setting(Uniform(0.5)),
    "loss_rank": Setting(LossRank(0.5)),
    "active_bias": Setting(ActiveBias(0.5)),
    "biggest_losers": Setting(BiggestLosers()),
    "proxy": Setting(Proxy(0.5)),
    "loss_rank, corrected": Setting(LossRank(0.5, corrected=True)),
    "active_bias, corrected": Setting(ActiveBias(0.5, corrected=True)),
    "biggest_losers, corrected": Setting(BiggestLosers(corrected=True)),
}
BUCKETS = {
    "buckets as published, no recall": Setting(replace(_PUBLISHED, recall="none")),
    "buckets as published, random": Setting(_PUBLISHED),
    "buckets with -ln p, no recall": Setting(replace(_PUBLISHED, published=False, recall="none")),
    "buckets with -ln p, random": Setting(replace(_PUBLISHED, published=False)),
    "buckets of ours, no recall": Setting(Buckets(recall="none")),
    "buckets of ours, random": Setting(Buckets()),
}
INFOBATCH = {"infobatch": Setting(InfoBatch()), "infobatch, 0.75": Setting(InfoBatch(0.75))}
MEDOIDS = {
    "medoids, 50%": Setting(Medoids(0.5, explore=0.0)),
    "medoids, not scored, 50%": Setting(Medoids(0.5, explore=0.05), scored=False),
}
SETTINGS = {**CURVE, **BASELINES, **BUCKETS, **INFOBATCH, **MEDOIDS}
CANDIDATES = tuple(name for name in SETTINGS if name != FULL)
SELECTORS = tuple(name for name in CANDIDATES if name not in CURVE and not name.startswith("uniform"))
"""Those that look at samples; all others choose at random."""
PLANTED = {
    FULL: Setting(),
    "full, drop": Setting(redundancy="drop"),
    "full, repeat": Setting(redundancy="repeat"),
    "buckets": Setting(Buckets()),
    "buckets, drop": Setting(Buckets(), redundancy="drop"),
    "buckets, repeat": Setting(Buckets(), redundancy="repeat"),
}


class Bench:
    """Runs on one dataset, as it is or with near-duplicates planted."""

    def __init__(self, examples: Examples, work: Path, options: Options, *, planted: float = 0.0) -> None:
        quick, self.name = options.quick, examples.name
        self._recipe = Recipe(6 if quick else int(options.numbers["epochs"]))
        self._examples, groups = plant(examples, planted)
        self._before = Before({"group": groups}) if planted else NOTHING
        self._head = Head(self._examples)
        size = f"{len(self._examples.labels)}x{self._recipe.epochs}"
        seeds = range(2 if quick else int(options.numbers["seeds"]))
        self.found = Found(Results(work / f"iowa-{self.name}-{size}.jsonl"), self.name, seeds)

    def make(self, settings: dict[str, Setting]) -> Found:
        def run(name: str, seed: int) -> Run:
            before = self._ask_proxy(seed) if name == "proxy" else self._before
            return train(self._head, settings[name], self._recipe, seed=seed, before=before)

        self.found.make(settings, run)
        return self.found

    def _ask_proxy(self, seed: int) -> Before:
        """What a smaller head says of each sample, and the time that it takes to train it."""
        proxy = Head(self._examples, hidden=PROXY_HIDDEN)
        spent = train(proxy, Setting(), Recipe(PROXY_EPOCHS, self._recipe.batch), seed=seed).cpu
        labels = self._examples.labels
        said = score(proxy.score(np.arange(len(labels))), labels)
        return Before({"probability": said.probability, "margin": said.margin}, spent)


def plant(examples: Examples, share: float) -> tuple[Examples, np.ndarray]:
    """With so many more samples, each like one that was there but for a little; and which are alike."""
    count, rng = len(examples.labels), np.random.default_rng(17)
    alike = rng.permutation(count)[: int(count * share)]
    noise = rng.normal(0, 0.05, (len(alike), examples.train.shape[1])).astype(np.float32)
    groups = np.full(count, -1, np.int32)
    groups[alike] = np.arange(len(alike))
    more = replace(
        examples,
        train=np.concatenate((examples.train, examples.train[alike] + noise)),
        labels=np.concatenate((examples.labels, examples.labels[alike])),
    )
    return more, np.concatenate((groups, groups[alike]))


@dataclass(frozen=True)
class Best:
    """The selector that was as good as asked in the least time, with the seeds that chose it."""

    name: str
    sooner: float
    """Times less CPU time until it is, than the full run takes to be so."""
    faster: float
    """Times less CPU time in all than all of the full run."""
    apart: Difference

    @property
    def holds(self) -> bool:
        return self.sooner >= SOONER and self.apart.mean >= -LOST

    def __str__(self) -> str:
        return (
            f"{self.sooner:.2f}x less than the full run's own time to it; "
            f"{self.faster:.2f}x less than all of the full run, {self.apart} points"
        )


def find_best(found: Found, names: Sequence[str]) -> Best:
    """Of these, chosen with the first half of the seeds, judged by the others."""
    half = len(found.seeds) // 2

    def merit(name: str) -> tuple[bool, float]:
        """Whether it ends as good as asked; and how soon it is so."""
        runs, full = (found.of(one)[:half] for one in (name, FULL))
        ends = Difference.of(finals(runs), finals(full)).mean >= SLACK - LOST
        return ends, sooner(runs, full, lost=LOST - SLACK)

    name = max(names, key=merit)
    runs, full = (found.of(one)[half:] for one in (name, FULL))
    faster = middle(full, cpu_of) / middle(runs, cpu_of)
    return Best(name, sooner(runs, full, lost=LOST), faster, Difference.of(finals(runs), finals(full)))


def bars_of(found: Found, best: Best, looking: Best) -> Iterator[Bar]:
    """`looking` is the best of those that look at samples; it is told, not judged."""
    full = found.of(FULL)
    for name, what, of, asked, lost in (
        ("buckets of ours, no recall", "CPU seconds", cpu_of, 1.3, 0.5),
        ("buckets of ours, random", "CPU seconds", cpu_of, 1.3, 0.5),
        ("infobatch", "steps", steps_of, 1.35, 0.3),
    ):
        runs = found.of(name)
        ratio, apart = middle(full, of) / middle(runs, of), Difference.of(finals(runs), finals(full))
        text = f"{ratio:.2f}x, {apart} points"
        asks = f"{asked:g}x fewer {what} within {lost:g} points"
        yield Bar(f"{found.data}: {name}", asks, text, ratio >= asked and apart.mean >= -lost)
    asks = f"{SOONER:g}x less time to the full run's accuracy - {LOST:g} points, where it ends too"
    text = f"{best}; the best that looks at samples, {looking.name}: {looking}"
    yield Bar(f"{found.data}: best selector, {best.name}", asks, text, best.holds)


def speed_table(found: Found) -> Table:
    """What it saves, and the time until it is as good as all of the data but for some points."""
    full = found.of(FULL)
    wanted = [statistics.fmean(finals(full)) - lost for lost in (0.5, 0.3)]
    rows: list[tuple[Cell, ...]] = []
    for name in SETTINGS:
        runs = found.of(name)
        ratios = [middle(full, of) / middle(runs, of) for of in (visited_of, steps_of, cpu_of)]
        worth = statistics.fmean(sum(run.effective) / sum(run.visited) for run in runs)
        times = [middle(runs, lambda run, asked=asked: run.seconds_to(asked)) for asked in wanted]
        shown = (f"{middle(full, cpu_of) / spent:.2f}x" if np.isfinite(spent) else "never" for spent in times)
        rows.append((name, *(f"{ratio:.2f}x" for ratio in ratios), f"{worth:.0%}", *shown))
    columns = ("fewer samples", "fewer steps", "less CPU time", "worth", "to full - 0.5", "to full - 0.3")
    return Table((f"{found.data}: speed-up", *columns), tuple(rows))


def planted_table(found: Found) -> Table:
    full = found.of(FULL)
    rows: list[tuple[Cell, ...]] = []
    for name in PLANTED:
        runs = found.of(name)
        apart = Difference.of(finals(runs), finals(full))
        ratios = (f"{middle(full, of) / middle(runs, of):.2f}x" for of in (visited_of, cpu_of))
        stood = middle(runs, lambda run: sum(run.stood_in) / sum(run.visited))
        rows.append((name, f"{statistics.fmean(finals(runs)):.2f}", str(apart), *ratios, f"{stood:.1%}"))
    columns = ("accuracy, %", "- full", "fewer samples", "less CPU time", "served from the cache instead")
    return Table((f"{found.data}, near-duplicates planted", *columns), tuple(rows))


def visited_of(run: Run) -> float:
    return float(sum(run.visited))


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    work, tables, bars, notes = work_in(folder, options), [], [], []
    for examples in open_features(folder, options, WIDTH):
        found = Bench(examples, work, options).make(SETTINGS)
        planted = Bench(examples, work, options, planted=options.numbers["planted"]).make(PLANTED)
        rows = {name: found.of(name) for name in SETTINGS}
        tables += [
            Curve(found).table(f"{found.data}: accuracy", rows),
            speed_table(found),
            planted_table(planted),
        ]
        bars += bars_of(found, find_best(found, CANDIDATES), find_best(found, SELECTORS))
        notes.append(f"{found.data}: {len(examples.labels):,} samples; {found.used}; planted: {planted.used}")
    return Report(
        "test accuracy and time of heads whose epochs leave samples out",
        tuple(tables),
        tuple(bars) if options.data or options.folders["fashion"] else (),  # made data has no accuracy
        (
            *notes,
            "± is half of the 95 % interval of the mean difference of pairs, by Student's t",
            "worth: samples of equal weight that the visited ones are worth, of those",
            "to full - 0.5: how many times less than the full run it takes until an epoch ends within 0.5 "
            "points of the full run's last; the full run's own row tells when that does itself",
            "drop: one of a group of near-duplicates is visited for all; repeat: those in a cache of a fifth "
            "of the samples serve for the others of their group",
        ),
    )


if __name__ == "__main__":
    begin_with(OPENBLAS_NUM_THREADS="1")  # as torch has: CPU seconds of one core are compared
    main(__doc__, run, flags=FLAGS, folders=FOLDERS)
