"""How many images per second, against PyTorch in channels_last on the same cores, and what makes that?

EfficientNet-Lite0 at 224 pixels, every contender in a process of its own with all cores of the machine. First
from pixels in memory: normalise, infer, label; the engine as a store runs it, a session with one thread for
each core and so many images at once; torch with all cores on a batch, and in two ways that might suit it
better. Then from files, by the loop that a store's jobs run, one optimisation after the other: the last row
has them all. The int8 model is calibrated on 64 photos; its labels are compared with those of fp32, and with
the true ones, on the others.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from classifiers import Classifier, Photos, nbytes, open_photos
from headwater.models.model import Model
from headwater.models.presets import PRESETS
from headwater.models.quantise import Quantised, compare, divide, quantise
from headwater.models.registry import Registry
from headwater.models.runtime import CHUNK, Engine
from headwater.store.server.engines import AT_ONCE
from measuring import Bar, Cell, Options, Rates, Report, Table, at_least, interleave, main, rate_table
from measuring import compare as ratio
from processes.classifier import BATCH

MOST_POINTS_LOST = 1.0
LEAST = {"fp32": 3.5, "int8": 8.0}
"""Times torch."""
CORES = len(os.sched_getaffinity(0))

STAGES: dict[str, dict[str, Any]] = {
    "naive": {"engine": "torch", "source": "files", "overlap": False, "at_once": 1},
    "+ pipelining": {"engine": "torch", "source": "files", "at_once": 1},
    "+ stored tensors": {"engine": "torch", "source": "tensors", "at_once": 1},
    "+ fusion": {"engine": "fp32", "source": "tensors", "at_once": 1},
    "+ int8": {"engine": "int8", "source": "tensors", "at_once": 1},
    "+ batch size": {"engine": "int8", "source": "tensors", "at_once": AT_ONCE},
}
ENGINES: dict[str, dict[str, Any]] = {
    "int8": {"engine": "int8", "at_once": AT_ONCE},
    "fp32": {"engine": "fp32", "at_once": AT_ONCE},
    "torch": {"engine": "torch", "overlap": False},
    "torch, a core each": {"engine": "torch", "at_once": CHUNK},
    "torch, one by one": {"engine": "torch", "at_once": 1},
}
TORCH = [name for name, settings in ENGINES.items() if settings["engine"] == "torch"]


def rates_of(
    contenders: Mapping[str, Mapping[str, Any]], common: Mapping[str, str], options: Options, seconds: float
) -> Rates:
    """Rates of classifiers that differ in these settings, interleaved; versions are named by digest."""
    with ExitStack() as stack:
        running = {}
        for name, settings in contenders.items():
            known = {"registry": common["registry"], "pixels": common["pixels"], "photos": common["photos"]}
            engine = common.get(settings["engine"], "torch")
            child = Classifier({**settings, **known, "engine": engine}, seconds=seconds)
            running[name] = stack.enter_context(child).measure
        return interleave(running, rounds=options.rounds)


def top1(model: Model, photos: Photos, places: list[int]) -> float:
    found = Engine(model, threads=CORES).classify(photos.pixels[places])
    return float((found.labels == photos.labels[places]).mean())


def accuracy(fp32: Model, found: Quantised, photos: Photos) -> tuple[Table, list[Bar]]:
    """Labels of both models on every photo that did not calibrate."""
    calibrating, _ = divide(range(len(photos.pixels)))
    places = sorted(set(range(len(photos.pixels))) - set(calibrating))
    same = compare(fp32, found.model, photos.pixels[places], threads=CORES)
    rows: list[tuple[Cell, ...]] = [
        ("photos that did not calibrate", len(places)),
        ("int8 agrees with fp32", f"{same.labels:.1%}"),
        ("correlation of logits", round(same.correlation, 4)),
        ("bytes, fp32", nbytes(fp32)),
        ("bytes, int8", nbytes(found.model)),
    ]
    bars = [Bar("int8 was accepted", "yes", found.reason, found.accepted)]
    if photos.labelled:  # made photos are of no class
        scores = {
            name: top1(model, photos, places) for name, model in (("fp32", fp32), ("int8", found.model))
        }
        rows[1:1] = [(f"top-1, {name}", f"{score:.2%}") for name, score in scores.items()]
        lost = 100 * (scores["fp32"] - scores["int8"])
        bars.append(
            Bar(
                "points of top-1 that int8 loses",
                f"at most {MOST_POINTS_LOST:g}",
                f"{lost:.2f}",
                lost <= MOST_POINTS_LOST,
            )
        )
    return Table(("int8 against fp32", "found"), tuple(rows)), bars


def ablation(rates: Rates) -> Table:
    """Each stage against the one before it and against the first."""
    rows: list[tuple[Cell, ...]] = []
    before = first = next(iter(rates))
    for name, found in rates.items():
        gains = (f"{ratio(rates, name, other).median:.2f}" for other in (before, first))
        rows.append((name, round(statistics.median(found), 1), f"{min(found):.1f}..{max(found):.1f}", *gains))
        before = name
    return Table(("stage", "images/s", "min..max", "/ the one before", "/ naive"), tuple(rows))


def run(folder: Path, options: Options) -> Report:
    photos, seconds = open_photos(folder, options), 2.0 if options.quick else 8.0
    registry, fp32 = Registry(folder / "models"), PRESETS["efficientnet-lite0"]()
    found = quantise(fp32, photos.pixels, threads=CORES)
    base = registry.put(fp32, name="lite0", parent=None, made={"by": "push"})
    int8 = registry.put(found.model, name="lite0-int8", parent=base.digest, made=found.made)
    common = {
        **{"fp32": base.digest, "int8": int8.digest, "registry": str(folder / "models")},
        **{"photos": str(photos.folder), "pixels": str(photos.save(folder))},
    }
    table, bars = accuracy(fp32, found, photos)
    engines = rates_of(ENGINES, common, options, seconds)
    stages = rates_of(STAGES, common, options, seconds)
    fastest = max(TORCH, key=lambda name: statistics.median(engines[name]))
    pairs = [(name, torch) for name in LEAST for torch in dict.fromkeys(("torch", fastest))]
    speed = [at_least(ratio(engines, name, torch), LEAST[name]) for name, torch in pairs]
    return Report(
        "EfficientNet-Lite0 at 224 pixels: images/s from pixels in memory, labels, and what each stage adds",
        (rate_table(engines, "int8", "images/s"), table, ablation(stages)),
        (*speed, *bars),
        (
            f"{len(photos.pixels)} photos, {CORES} cores; at least {seconds:g} s a measurement",
            f"from memory, torch: {BATCH} images at once with all cores; a core each: {CHUNK} with each, "
            "as the engine's own; one by one: one image with each",
            "naive: a photo is read, decoded, resized and classified by torch, then the next one",
        ),
        raw={"engines": engines, "stages": stages},
    )


if __name__ == "__main__":
    main(__doc__, run)
