"""How long does it take to forget a sample everywhere, and is a trace of it left?

Two stores in processes of their own serve the same 50,000 small images as replicas, with EfficientNet-Lite0's
frozen layers. Their features are drawn and kept at the stores beforehand, so that no network runs. A head is
fine-tuned on them with a journal, pushed, and labels everything at both stores. Then samples are forgotten,
one request after the other, by the command's own code: survey, replay, new version, delta to the stores, new
version of the dataset, labels renewed, seals, caches, audit. Before and after each, all files of the state
folders, caches, registry and lists are searched for the id, the path and the content.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import simplejpeg

import headwater as hw
from headwater.errors import HeadwaterError
from headwater.models.presets import PRESETS
from headwater.models.registry import Registry
from headwater.store.cabinet import Cabinet
from headwater.store.features import Features
from headwater.store.pushing import push
from headwater.tune.again import HeadAgain
from headwater.tune.forget.places import AtStore
from headwater.tune.forget.survey import Scene, Wish, look_around
from headwater.tune.forget.traces import Marks, find_traces
from headwater.tune.forget.work import forget
from headwater.tune.recipe import Recipe
from headwater.tune.relabel import Access, relabel_at
from headwater.tune.relabel import Wish as LabelWish
from headwater.tune.tuner import Tuner
from measuring import Bar, Options, Report, Table, main
from serving import Store, serve

COUNT, COUNT_QUICK = 50_000, 2_000
REQUESTS, REQUESTS_QUICK = 5, 2
CLASSES, SIZE = 10, 32
TRUNK, NAME, DATASET = "lite0", "classes", "photos"
RECIPE = Recipe(
    epochs=5, runs=1, batch_size=1024, cut="features", more_bytes=True, learning_rate=0.5, seed=17
)
MOST_SECONDS = 60.0
"""Seconds, not minutes."""


@dataclass
class Found:
    """What the requests took, by step, and what was left of the samples."""

    seconds: list[dict[str, float]] = field(default_factory=list)
    traces_before: list[int] = field(default_factory=list)
    traces_after: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Site:
    """All folders of the two stores and of the tuner, below one."""

    folder: Path

    @property
    def photos(self) -> Path:
        return self.folder / DATASET

    @property
    def registry(self) -> Registry:
        return Registry(self.folder / "tuner" / "models")

    @property
    def kept(self) -> list[Path]:
        """All that Headwater keeps; the data are read in place, and stay."""
        return [path for path in self.folder.iterdir() if path != self.photos]

    def state(self, number: int) -> Path:
        return self.folder / f"store-{number}" / "state"

    def write_photos(self, count: int) -> None:
        """Noise, so that no two have the same content."""
        rng = np.random.default_rng(0)
        for number in range(count):
            place = self.photos / f"class-{number % CLASSES}"
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)
            (place / f"{number:06d}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, quality=60))

    def keep_features(self) -> None:
        """Drawn around a centre for each class, the same at both stores."""
        index, rng = hw.open(self.photos, progress=False).index, np.random.default_rng(1)
        version = self.registry.current(TRUNK)
        centres = np.abs(rng.normal(size=(CLASSES, version.features)))
        cabinets = [Cabinet(self.state(number) / "features", most_bytes=1 << 40) for number in range(2)]
        kept = [Features(cabinet, index, dataset=DATASET, version=version) for cabinet in cabinets]
        for begin in range(0, len(index), 4096):
            positions = np.arange(begin, min(begin + 4096, len(index)))
            noise = 2.0 * np.abs(rng.normal(size=(len(positions), version.features)))
            drawn = (centres[index.labels[positions]] + noise).astype(np.float16)
            for features in kept:
                features.put(positions, drawn)
        for cabinet in cabinets:
            cabinet.close()

    @contextmanager
    def stores(self) -> Iterator[list[Store]]:
        with ExitStack() as stack:
            found = []
            for number in range(2):
                with _cache(self.folder / f"store-{number}" / "cache"):
                    words = ("--state", str(self.state(number)), "--feature-bytes", "8GiB")
                    found.append(stack.enter_context(serve(self.photos, further=words)))
            yield found


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """What is started meanwhile keeps its indexes there."""
    before = os.environ.get("HEADWATER_CACHE")
    os.environ["HEADWATER_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("HEADWATER_CACHE") if before is None else os.environ.update(HEADWATER_CACHE=before)


def prepare(site: Site, addresses: Sequence[str]) -> None:
    """A head with a journal, in force at both stores, and labels that it gave."""
    with closing(hw.open([f"{address}/{DATASET}" for address in addresses], progress=False)) as data:
        Tuner(data, TRUNK, registry=site.registry, recipe=RECIPE).fit(NAME, journal=True)
    for sent in push(site.registry, addresses, NAME):
        if sent.error is not None:
            raise sent.error
    for done in relabel_at([f"{address}/{DATASET}" for address in addresses], LabelWish(model=NAME)):
        if done.job is None or done.job.state != "done":
            raise HeadwaterError(f"a store did not label its images: {done}")


def measure(site: Site, addresses: Sequence[str], requests: int) -> Found:
    """Forget samples that the head was trained on, one by one."""
    uris, found = [f"{address}/{DATASET}" for address in addresses], Found()
    registry = site.registry
    places = tuple(AtStore(uri, registry, Access()) for uri in uris)
    scene = Scene(places, registry, lambda: hw.open(uris, progress=False))
    for number in range(requests):
        with closing(scene.open_data()) as data:
            id = int(HeadAgain(data, NAME, registry=registry).ids[1000 * number + 7])
            sample = data.select([id])[0]
            marks = Marks.of(id, sample.key, bytes(sample.data))
        found.traces_before.append(len(find_traces(site.kept, marks)))
        begun = time.perf_counter()
        survey = look_around(scene, Wish(ids=(id,)))
        surveyed = time.perf_counter() - begun
        done = forget(scene, survey)
        found.seconds.append({"survey": surveyed, **done.seconds, "all": time.perf_counter() - begun})
        found.traces_after.append(len(find_traces(site.kept, marks)))
        facts = done.task.facts[NAME]
        found.errors.append(float(facts["error"] or 0.0))
        found.methods.append(str(facts["method"]))
    return found


def table(found: Found) -> Table:
    steps = list(found.seconds[0])
    rows = []
    for step in steps:
        seconds = [one[step] for one in found.seconds]
        spread = f"{min(seconds):.2f}..{max(seconds):.2f}"
        rows.append((step, f"{statistics.median(seconds):.2f}", spread))
    return Table(("step", "s, median", "spread"), tuple(rows))


def bars(found: Found, count: int) -> tuple[Bar, ...]:
    slowest, left = max(one["all"] for one in found.seconds), sum(found.traces_after)
    seen = min(found.traces_before)
    return (
        Bar(
            f"to forget a sample of {count:,} at two stores, end to end",
            f"under {MOST_SECONDS:g} s",
            f"{slowest:.1f} s at most",
            slowest < MOST_SECONDS,
        ),
        Bar("traces of it by id, path and content, after", "0", str(left), left == 0),
        Bar("the same before, as a control", "some", f"{seen} at least", seen > 0),
    )


def run(folder: Path, options: Options) -> Report:
    count, requests = (COUNT_QUICK, REQUESTS_QUICK) if options.quick else (COUNT, REQUESTS)
    site = Site(folder / "site")
    os.environ["HEADWATER_FORGOTTEN"] = str(site.folder / "tuner" / "forgotten")
    with _cache(site.folder / "tuner" / "cache"):
        site.write_photos(count)
        for registry in (site.registry, *(Registry(site.state(number) / "models") for number in range(2))):
            registry.put(PRESETS["efficientnet-lite0"](), name=TRUNK, switch=True)
        site.keep_features()
        with site.stores() as stores:
            addresses = [store.address for store in stores]
            prepare(site, addresses)
            found = measure(site, addresses, requests)
    methods = ", ".join(sorted(set(found.methods)))
    return Report(
        "a sample forgotten everywhere",
        (table(found),),
        bars(found, count),
        (
            f"{requests} requests of one sample each, one after the other; {count:,} samples, features of "
            f"1,280 numbers that were drawn, {CLASSES} classes",
            f"heads were made again by {methods}; estimated errors up to {max(found.errors):.2g} of the "
            "change; approximate, and no certificate",
        ),
        raw=vars(found),
    )


if __name__ == "__main__":
    main(__doc__, run)
