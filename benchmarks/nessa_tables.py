"""NeSSA's tables re-made: does a tenth, a third or a half of the data do, and who should choose it?

Heads over features of frozen layers. A fresh random share in every epoch is what a selector must beat, at as
many steps, and in as many CPU seconds, scoring and selecting included; between the shares that ran, its
accuracy is interpolated, seed by seed. Medoids are those of whole classes, or of pieces (PA); with subset
biasing (SB), samples that are learned are dropped, and from then on the share may be smaller (shrunk), by as
much as from three tenths to the published fifth. Without weights they are as the published code has them.

All of them select anew in every epoch. To select from whole classes takes far longer than to train on what is
selected, and grows with the square of their size: that is done on a part of the data, with everything else
beside it. On all of the data there are medoids of pieces, and `fresh`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments import Difference, Found, Results, begin_with, finals
from fresh_curves import CURVE, Curve, cpu_of, named, steps_of
from heads import WIDTH, Head
from headwater.select.craig import Craig
from headwater.select.k_center import FarthestFirst
from headwater.select.medoids import Medoids
from headwater.select.selecting import Selector
from headwater.select.uniform import Uniform
from imagesets import FOLDERS, Examples, open_features, work_in
from measuring import Bar, Flag, Options, Report, Table, main
from selecting_runs import Recipe, Setting, train

FLAGS = {
    "seeds": Flag(10, "runs of each setting"),
    "epochs": Flag(16, "of each run"),
    "samples": Flag(10_000, "to learn from, where medoids of whole classes are looked for"),
}
SHARES = (0.1, 0.3, 0.5)
BATCH = 128
QUICK_SAMPLES = 1_000
DROPPING = 4
"""Subset biasing drops samples every so many epochs."""
LEARNED = 0.1
"""The loss below which a sample is learned, as CREST has it."""
SHRUNK = 2 / 3
"""Of the share, once samples were dropped."""
OURS = "medoids PA, weighted"


def settings_of(share: float, *, classes: bool) -> dict[str, Setting]:
    """Every way to choose a share, but for `fresh`, which has a curve; with `classes` of whole ones too.

    Where all samples are scored, there is nothing to explore.
    """
    pieces = Medoids(share, explore=0.0)
    biased = {"threshold": LEARNED, "every": DROPPING}
    found = {
        name: Setting(selector)
        for name, selector in {
            "medoids PA": replace(pieces, weighted=False),
            OURS: pieces,
            "medoids SB+PA": replace(pieces, weighted=False, **biased),
            "medoids SB+PA, weighted": replace(pieces, **biased),
            **(_on_a_part(share, biased) if classes else {}),
        }.items()
    }
    if classes:
        found["medoids PA, weighted, not scored"] = Setting(replace(pieces, explore=0.05), scored=False)
    return {named(name, share): setting for name, setting in found.items()}


def _on_a_part(share: float, biased: dict[str, Any]) -> dict[str, Selector]:
    """What is tried where there is not too much data."""
    pieces, whole = Medoids(share, explore=0.0), Medoids(share, chunk=None, explore=0.0)
    shrunk = {**biased, "shrunk": SHRUNK * share}
    return {
        "uniform": Uniform(share),
        "medoids SB+PA, shrunk": replace(pieces, weighted=False, **shrunk),
        "medoids SB+PA, shrunk, weighted": replace(pieces, **shrunk),
        "k_center": FarthestFirst(share, weighted=False, explore=0.0),
        "k_center, weighted": FarthestFirst(share, explore=0.0),
        "medoids": replace(whole, weighted=False),
        "craig, or medoids, weighted": Craig(share, explore=0.0),
        "medoids SB": replace(whole, weighted=False, **biased),
        "medoids SB, weighted": replace(whole, **biased),
    }


def all_settings(*, classes: bool) -> dict[str, Setting]:
    parts = [settings_of(share, classes=classes) for share in SHARES]
    return {**CURVE, **{name: setting for part in parts for name, setting in part.items()}}


def make_all(examples: Examples, work: Path, options: Options, settings: dict[str, Setting]) -> Found:
    """The runs of one dataset, or of a part of it."""
    quick, count = options.quick, len(examples.labels)
    recipe = Recipe(6 if quick else int(options.numbers["epochs"]), batch=BATCH)
    found = Found(
        Results(work / f"nessa-each-{examples.name}-{count}x{recipe.epochs}.jsonl"),
        examples.name,
        range(2 if quick else int(options.numbers["seeds"])),
    )
    head = Head(examples)
    found.make(settings, lambda setting, seed: train(head, settings[setting], recipe, seed=seed))
    return found


def tables_of(curve: Curve, found: Found, what: str, *, classes: bool) -> Iterator[Table]:
    """One for what `fresh` does, and one for each share."""
    yield curve.table(f"{what}: the curve", {name: found.of(name) for name in CURVE})
    for share in SHARES:
        names = [named("fresh", share), *settings_of(share, classes=classes)]
        yield curve.table(f"{what}: {share:.0%}", {name: found.of(name) for name in names})


def bars_of(curve: Curve, found: Found, data: str) -> Iterator[Bar]:
    """Weighted medoids against `fresh`: they must not be behind by more than chance."""
    for share in SHARES:
        runs = found.of(named(OURS, share))
        for at, of in (("steps", steps_of), ("time", cpu_of)):
            apart = Difference.of(finals(runs), curve.at_equal(of, runs))
            what = f"{data}, {share:.0%}: {OURS} - fresh at equal {at}, points"
            yield Bar(what, "not below 0", f"{apart}: {apart.verdict}", apart.verdict != "behind")


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    work, tables, bars, notes = work_in(folder, options), [], [], []
    for whole in open_features(folder, options, WIDTH):
        part = whole.some(QUICK_SAMPLES if options.quick else int(options.numbers["samples"]))
        for examples, classes in ((part, True), (whole, False)):
            found = make_all(examples, work, options, all_settings(classes=classes))
            curve, what = Curve(found), f"{found.data}, {len(examples.labels):,}"
            tables += tables_of(curve, found, what, classes=classes)
            bars += bars_of(curve, found, what)
            notes.append(f"{what} samples in batches of {BATCH}; {found.used}")
    return Report(
        "test accuracy of heads that learn from a share of the data",
        tuple(tables),
        tuple(bars) if options.data or options.folders["fashion"] else (),  # made data has no accuracy
        (*notes, "± is half of the 95 % interval of the mean difference of pairs, by Student's t"),
    )


if __name__ == "__main__":
    begin_with(OPENBLAS_NUM_THREADS="1")  # as torch has: CPU seconds of one core are compared
    main(__doc__, run, flags=FLAGS, folders=FOLDERS)
