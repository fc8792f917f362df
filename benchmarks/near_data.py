"""How much sooner is a head fine-tuned beside the images than with images that cross a link of 100 Mbit?

Store and tuner are in two network namespaces; needs root. The same head for the same photos comes about in
three ways. Near-data: the store makes the features, and they cross. Typical: the images cross, and the tuner
makes the features. Ideal: the images lie at the tuner. Either end may use all cores of the machine, which
they share; nothing is kept from one run to the next.

The prediction is made before the first run that counts, from what each part does alone: a bare stream over
the link, the store asked from its own end of the link, the tuner with images of its own; it is the time model
of the product's plan. Bytes are what the network interfaces received. Prices are flags.

Of a relabel there are three figures. With the store's own SQLite file, beside it, labels cross no link, and
what crosses is the job: how it is begun, and looks at how far it is. With a PostgreSQL at the tuner's end of
the link each label crosses, and what it says of a sample before: once when there are no labels yet, and once
when all are of another head; the job's own messages are in both.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from databases import postgres_at
from headwater.models.registry import Registry
from headwater.plan.finetune import Cut, Rates, Stages, Work
from headwater.store.labels import open_labels
from measuring import Bar, Cell, Options, Report, Table, compare, interleave, main
from measuring import Rates as Speeds
from netns import RATE_MBIT, Ends, demand_root, measure_stream, slow_link
from prices import PRICES, energy_of, money_of
from relabel import with_noise
from serving import PROCESSES, serve
from trainers import MACHINE_CORES, Cost, Metered, mean, received, write_tars
from tuners import INT8, KEEP_NOTHING, TRUNK, Tuners, put_int8, put_trunk, state_of

WAYS = ("near-data", "typical", "ideal")
ROUNDS, ALONE = 5, 3
EPOCHS = 5
COPIES, LABEL_COPIES = 2, 4
WITHIN, PLANNED_WITHIN = 0.15, 0.3
BESIDE = "relabel, labels beside the store"
FIRST, AGAIN = "relabel, labels across the link: the first", "relabel, labels across the link: a new head"
LESS = {"fine-tune": 40.0, BESIDE: 1000.0, FIRST: 1000.0, AGAIN: 1000.0}
HEAD_NOISE = 1e-3
MILLION = 1e6


@dataclass(frozen=True)
class Alone:
    """What each part does by itself: seconds for a photo, in training for an epoch, and bytes per second."""

    store: float
    tuner: float
    train: float
    link: float

    def predict(self, photos: int, sizes: Mapping[str, float]) -> dict[str, float]:
        """Seconds of each way, in one run; `sizes` are bytes of an image and of its features."""
        work = Work(images=photos, epochs=EPOCHS, train_seconds=self.train)
        rates = Rates(store_cores=1.0, store_link=self.link, tuner_cores=1.0)
        cuts = {
            "near-data": Cut("features", self.store, sizes["features"]),
            "typical": Cut("images", 0.0, sizes["images"], self.tuner),
            "ideal": Cut("images", 0.0, 0.0, self.tuner),
        }
        return {way: Stages.of(cut, work, rates=rates, stores=1).seconds(runs=1) for way, cut in cuts.items()}


@dataclass(frozen=True)
class Setting:
    """A running store, tuners at either end of the link, and the photos, at the tuner too."""

    ends: Ends
    address: str
    photos: Path
    here: Tuners
    there: Tuners
    samples: int

    def prepare(self, trunk: str) -> dict[str, Any]:
        """All ways of fine-tuning with these layers; what the product's own plan says about the first two."""
        settings = {"model": trunk, "samples": self.samples}
        remote = {**settings, "data": [f"{self.address}/photos"]}
        one = {"epochs": EPOCHS, "runs": 1, "validation": 0.0}
        features = {**remote, "recipe": {**one, "cut": "features"}}
        self.there.prepare(f"{trunk}-alone", features)
        self.here.prepare(f"{trunk}-near-data", features)
        self.here.prepare(f"{trunk}-typical", {**remote, "recipe": {**one, "cut": "images"}})
        self.here.prepare(f"{trunk}-ideal", {**settings, "data": [str(self.photos)], "recipe": one})
        return self.here.prepare(f"{trunk}-planned", {**remote, "recipe": one})

    def measure_alone(self, trunk: str, photos: int, times: int) -> Alone:
        there = [self.there.fit(f"{trunk}-alone") for _ in range(times)]
        here = [self.here.fit(f"{trunk}-ideal") for _ in range(times)]
        script = str(PROCESSES / "stream.py")
        streams = [measure_stream(self.ends, script, seconds=3.0) for _ in range(times)]
        return Alone(
            store=statistics.median(one.extract for one in there) / photos,
            tuner=statistics.median(one.extract for one in here) / photos,
            train=statistics.median(one.train for one in here) / photos / EPOCHS,
            link=statistics.median(streams) * 1e6 / 8,
        )

    def race(self, trunk: str, photos: int, rounds: int) -> tuple[Speeds, dict[str, Cost]]:
        """Photos per second of each way in every round, and what a run of each costs."""
        metered = {
            way: Metered(self.ends, photos, partial(self._rate, f"{trunk}-{way}", photos)) for way in WAYS
        }
        speeds = interleave({way: one.measure for way, one in metered.items()}, rounds=rounds)
        return speeds, {way: mean(one.costs[1:]) for way, one in metered.items()}

    def _rate(self, name: str, photos: int) -> float:
        return photos / self.here.fit(name).seconds

    def weigh(self, trunk: str, photos: int) -> dict[str, float]:
        """Bytes that cross for a photo, both ways together, with all headers."""
        calls: dict[str, Callable[[], int]] = {
            "typical": lambda: self._fit(f"{trunk}-typical", photos),
            "fine-tune": lambda: self._fit(f"{trunk}-near-data", photos),
            BESIDE: lambda: self._relabel(self.address, trunk),
        }
        return {what: self._crossing(call) for what, call in calls.items()}

    def weigh_labels(self, folder: Path, options: Options) -> dict[str, float]:
        """The same for a label where labels cross: by a store whose label database is at the tuner's end."""
        folder.mkdir()
        photos = write_tars(folder, options, copies=1 if options.quick else LABEL_COPIES)
        held, state = state_of(folder / "state")
        put_trunk(held)
        with postgres_at(self.ends.trainer) as database:
            open_labels(database.here).close()  # tables are made once, and not by a relabel
            place, further = f"{self.ends.store.address}:7078", (*state, "--labels", database.url)
            with serve(photos, listen=place, within=self.ends.store.words, further=further) as store:
                first = self._crossing(lambda: self._relabel(store.address, TRUNK))
                held.put(with_noise(held.get(TRUNK), HEAD_NOISE), name=TRUNK, switch=True)
                again = self._crossing(lambda: self._relabel(store.address, TRUNK))
        return {FIRST: first, AGAIN: again}

    def _relabel(self, store: str, model: str) -> int:
        return int(self.here.relabel(store, model)["labels"])

    def _fit(self, name: str, photos: int) -> int:
        self.here.fit(name)
        return photos

    def _crossing(self, call: Callable[[], int]) -> float:
        before = [received(side) for side in (self.ends.store, self.ends.trainer)]
        photos = call()
        after = [received(side) for side in (self.ends.store, self.ends.trainer)]
        return (sum(after) - sum(before)) / photos


@dataclass(frozen=True)
class Found:
    """What was found with one trunk: the product's plan, the prediction, rates and costs of each way."""

    trunk: str
    photos: int
    planned: Mapping[str, Any]
    alone: Alone
    expected: Mapping[str, float]
    speeds: Speeds
    costs: Mapping[str, Cost]

    @property
    def factor(self) -> float:
        """By which near-data was expected to be faster than Typical."""
        return self.expected["typical"] / self.expected["near-data"]

    def per_photo(self, way: str) -> float:
        """Bytes that reached the tuner."""
        return self.costs[way].bytes / self.photos


def measure(setting: Setting, trunk: str, options: Options) -> Found:
    rounds, times = (1, 1) if options.quick else (ROUNDS, ALONE)
    planned = setting.prepare(trunk)
    photos = planned["photos"]
    alone = setting.measure_alone(trunk, photos, times)
    expected = alone.predict(photos, planned["bytes"])
    said = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in expected.items())
    print(f"{trunk}, expected before the first run: {said}", file=sys.stderr, flush=True)
    return Found(trunk, photos, planned, alone, expected, *setting.race(trunk, photos, rounds))


def time_table(found: Sequence[Found]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        for way in WAYS:
            seconds = [one.photos / speed for speed in one.speeds[way]]
            middle = statistics.median(seconds)
            ratio = compare(one.speeds, way, "typical")
            rows.append(
                (
                    *(one.trunk, way, f"{one.expected[way]:.1f}"),
                    f"{middle:.1f} ({min(seconds):.1f}..{max(seconds):.1f})",
                    *(f"{one.photos / middle:.0f}", f"{one.expected['typical'] / one.expected[way]:.2f}"),
                    f"{ratio.median:.2f} ({ratio.spread})",
                )
            )
    columns = ("trunk", "way", "expected s", "seconds", "photos/s", "expected, typical / it", "typical / it")
    return Table(columns, tuple(rows))


def alone_table(found: Sequence[Found]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        parts = (one.alone.store, one.alone.tuner, EPOCHS * one.alone.train)
        names = dict.fromkeys(("images", one.planned["cut"], "features"))
        plan = ", ".join(f"{name} {one.planned['options'][name]:.1f}" for name in names)
        link = f"{one.alone.link * 8e-6:.1f}"
        rows.append((one.trunk, *(f"{1e3 * part:.2f}" for part in parts), link, one.planned["cut"], plan))
    columns = ("trunk", "store ms", "tuner ms", "training ms", "link Mbit", "the plan's cut", "the plan's s")
    return Table(columns, tuple(rows))


def cost_table(found: Sequence[Found], prices: Mapping[str, float]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        for way in WAYS:
            cost = one.costs[way]
            spent = (cost.bytes / 1e6, cost.store_cpu, cost.trainer_cpu)
            priced = (of(cost, prices, alone=way == "ideal") for of in (money_of, energy_of))
            cells = (
                *(f"{value:.1f}" for value in spent),
                *(f"{value * MILLION / one.photos:.2f}" for value in priced),
            )
            rows.append((one.trunk, way, round(one.per_photo(way)), *cells))
    columns = ("trunk", "way", "bytes per photo", "MB", "store CPU s", "tuner CPU s")
    return Table((*columns, "price of a million", "kWh of a million"), tuple(rows))


def factor_bar(one: Found) -> Bar:
    ratio = compare(one.speeds, "near-data", "typical")
    what = f"{one.trunk}: near-data is faster than Typical, by the factor that was expected"
    holds = ratio.median > 1 and abs(ratio.median / one.factor - 1) <= WITHIN
    found = f"{ratio.median:.2f}x ({ratio.spread})"
    return Bar(what, f"{one.factor:.2f}x, within {WITHIN:.0%}", found, holds)


def plan_bar(one: Found) -> Bar:
    """What the product itself expects of a few photos, before it begins."""
    options = one.planned["options"]
    factor, ratio = options["images"] / options["features"], compare(one.speeds, "near-data", "typical")
    holds = abs(ratio.median / factor - 1) <= PLANNED_WITHIN
    what = f"{one.trunk}: the same, by the factor that the product's plan gave"
    return Bar(what, f"{factor:.2f}x, within {PLANNED_WITHIN:.0%}", f"{ratio.median:.2f}x", holds)


def byte_bars(one: Found, weights: Mapping[str, float]) -> Iterator[Bar]:
    """Against the files, which are less than what crosses with them."""
    for what, asked in LESS.items():
        found, title = one.planned["file"] / weights[what], f"bytes of a file over those of its {what}"
        yield Bar(title, f"at least {asked:,.0f}x", f"{found:,.2f}x", found >= asked)


def byte_table(one: Found, weights: Mapping[str, float]) -> Table:
    size = one.planned["file"]
    rows = [("the file itself", f"{size:,.2f}", "1.00x")]
    rows += [(what, f"{count:,.2f}", f"{size / count:,.2f}x") for what, count in weights.items()]
    return Table((f"across the link, both ways, {one.trunk}", "bytes per photo", "file / it"), tuple(rows))


def start(folder: Path, options: Options, stack: ExitStack) -> Setting:
    photos = write_tars(folder, options, copies=1 if options.quick else COPIES)
    (held, state), registry = state_of(folder / "state"), Registry(folder / "models")
    put_trunk(held, registry)
    put_int8(photos, held, registry)
    ends = stack.enter_context(slow_link())
    place, further = f"{ends.store.address}:7077", (*state, *KEEP_NOTHING)
    store = stack.enter_context(serve(photos, listen=place, within=ends.store.words, further=further))
    here, there = (Tuners(registry, within=side.words) for side in (ends.trainer, ends.store))
    stack.enter_context(here)
    stack.enter_context(there)
    return Setting(ends, store.address, photos, here, there, samples=128 if options.quick else 0)


def run(folder: Path, options: Options) -> Report:
    with ExitStack() as stack:
        setting = start(folder, options, stack)
        found = [measure(setting, trunk, options) for trunk in (TRUNK, INT8)]
        first = found[0]
        weights = setting.weigh(TRUNK, first.photos)
        weights |= setting.weigh_labels(folder / "labelling", options)
    costs = cost_table(found, options.numbers), byte_table(first, weights)
    fewer = byte_bars(first, weights) if options.data else ()  # made-up photos have other sizes
    return Report(
        f"fine-tuning near the data, with images over {RATE_MBIT} Mbit, and with images at the tuner",
        (time_table(found), alone_table(found), *costs),
        (*map(factor_bar, found), *map(plan_bar, found), *fewer),
        (
            f"{first.photos:,} photos, {MACHINE_CORES} cores; a head of 10 classes, {EPOCHS} epochs in "
            "one run",
            "seconds are those from the first request to the last epoch; planning is not in them",
            "store, tuner, training: for a photo, each alone; the plan's: what the product expects from a "
            "few photos",
            "relabels: labels beside the store stay there, and what crosses is the job; across the link, in "
            f"PostgreSQL, labels cross, of {LABEL_COPIES // COPIES} times as many photos, and the first time "
            "the names of 1,000 classes too",
            "prices: " + ", ".join(f"{name} {value:g}" for name, value in options.numbers.items()),
        ),
        raw={
            one.trunk: {
                "expected": one.expected,
                "alone": vars(one.alone),
                "planned": one.planned,
                "speeds": one.speeds,
                "costs": {way: vars(cost) for way, cost in one.costs.items()},
            }
            for one in found
        },
    )


if __name__ == "__main__":
    demand_root()
    main(__doc__, run, flags=PRICES)
