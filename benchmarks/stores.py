"""Do more stores make a fine-tuning faster, as far as the plan's time model says, and no further?

One, two and four stores hold the photos between them, each a process that a control group holds to 0.2 of a
core, at the far end of a link of its own of 20 Mbit; needs root. All stores are on one core of the machine,
the tuner on the other. Near-data, where stores make the features, the knee is far away: a tuner could train
for many such stores. Where the images cross instead, the tuner's core is full after two or three stores.

The time model is told what one store takes for a photo and what the tuner takes, from the same round, and
what TCP can carry over the link. EfficientNet-Lite0 in fp32; features are made anew every time.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from headwater.models.registry import Registry
from headwater.plan.finetune import Cut, Rates, Stages, Work
from local_photos import shards
from measuring import Bar, Cell, Options, Report, Table, close_to_one, main
from netns import TCP_SHARE, demand_root, slow_links
from quota import Group, demand_groups, make_group
from serving import CLIENT_CORE, STORE_CORE, Store, demand_two_cores, on_core, serve
from tuners import KEEP_NOTHING, TRUNK, Fitted, Tuners, put_trunk, state_of

STORES = (1, 2, 4)
CORES, RATE_MBIT = 0.2, 20.0
ROUNDS = 5
QUICK = 64
"""Photos of a sanity run."""
CUTS = {"near-data": "features", "typical": "images"}
HERE = "at the tuner"
WITHIN = 0.15
GROWTH = 0.85
"""Of the number of stores, by which near-data must grow with them."""
FEATURE_BYTES = 2 * 1280
NAMES = {1: "one", 2: "two", 4: "photos"}
"""Under which name a store serves its part where there are so many."""

Case = tuple[str, int]
"""A way, and the number of stores."""
Round = Mapping[Case, Fitted]


@dataclass(frozen=True)
class Fleet:
    """Running stores, of which the first few hold larger parts as well, all photos, and tuners."""

    stores: list[Store]
    groups: list[Group]
    photos: Path
    tuners: Tuners
    samples: int

    def prepare(self) -> dict[str, Any]:
        """All cases, and all photos at the tuner; what is known of the photos."""
        for way, cut in CUTS.items():
            for count in STORES:
                places = [f"{store.address}/{NAMES[count]}" for store in self.stores[:count]]
                self.tuners.prepare(f"{way}-{count}", self._settings(places, cut=cut))
        return self.tuners.prepare("here", self._settings([str(self.photos)]))

    def _settings(self, data: list[str], **wish: str) -> dict[str, Any]:
        recipe = {"epochs": 1, "runs": 1, "validation": 0.0, **wish}
        return {"data": data, "model": TRUNK, "samples": self.samples, "recipe": recipe}

    def hold(self) -> None:
        """From now on the stores have no more than their share; they started sooner without."""
        for group in self.groups:
            group.limit(CORES)

    def measure(self, *, rounds: int) -> list[Round]:
        """All cases in turns; a round before the first is not counted."""
        found: list[Round] = []
        for number in range(rounds + 1):
            done = {(way, n): self.tuners.fit(f"{way}-{n}") for way in CUTS for n in STORES}
            found.append({**done, (HERE, 0): self.tuners.fit("here")})
            times = ", ".join(f"{way} {n}: {one.seconds:.1f} s" for (way, n), one in found[-1].items())
            print(f"round {number} of {rounds}: {times}", file=sys.stderr, flush=True)
        return found[1:]


def divide(folder: Path, options: Options) -> dict[tuple[int, int], Path]:
    """As many tars as there are stores at most, in folders by number of stores and store."""
    most = max(STORES)
    contents = list(islice(shards(options), most))
    for name, content in contents:
        (folder / f"{name}.tar").write_bytes(content)
    found = {}
    for count in STORES:
        for number in range(count):
            part = folder / f"{NAMES[count]}-{number}"
            part.mkdir()
            for name, _ in contents[number * most // count : (number + 1) * most // count]:
                os.link(folder / f"{name}.tar", part / f"{name}.tar")
            found[count, number] = part
    return found


def start(folder: Path, options: Options, stack: ExitStack) -> Fleet:
    parts, registry = divide(folder, options), Registry(folder / "models")
    put_trunk(registry)
    links = stack.enter_context(slow_links(max(STORES), rate_mbit=RATE_MBIT))
    stores, groups = [], []
    for number, ends in enumerate(links):
        groups.append(stack.enter_context(make_group()))
        held, state = state_of(folder / f"state-{number}")
        held.put(registry.get(TRUNK), name=TRUNK, switch=True)
        served = {n: parts[n, number] for n in STORES if (n, number) in parts}
        own = served.pop(max(STORES))
        further = (*(f"{NAMES[n]}={part}" for n, part in served.items()), *state, *KEEP_NOTHING)
        within, place = (*groups[-1].words, *ends.store.entering), f"{ends.store.address}:7077"
        with on_core(STORE_CORE):
            running = serve(own, listen=place, cores=CORES, within=within, further=further)
            stores.append(stack.enter_context(running))
    with on_core(CLIENT_CORE):
        tuners = stack.enter_context(Tuners(registry, within=links[0].trainer.words))
    return Fleet(stores, groups, parts[1, 0], tuners, QUICK if options.quick else 0)


@dataclass(frozen=True)
class Model:
    """The time model of one round: what a photo takes at one store, at the tuner and in training."""

    photos: int
    file_bytes: float
    store: float
    tuner: float
    train: float

    @classmethod
    def of(cls, found: Round, photos: int, file_bytes: float) -> Model:
        store, here = found["near-data", 1], found[HERE, 0]
        return cls(photos, file_bytes, *(s / photos for s in (store.extract, here.extract, here.train)))

    @property
    def link(self) -> float:
        """Bytes per second of TCP."""
        return RATE_MBIT * TCP_SHARE * 1e6 / 8

    def expect(self, way: str, stores: int) -> float:
        """Images per second."""
        near = way == "near-data"
        cut = (
            Cut("features", self.store, FEATURE_BYTES)
            if near
            else Cut("images", 0.0, self.file_bytes, self.tuner)
        )
        work = Work(images=self.photos, train_seconds=self.train)
        rates = Rates(store_cores=1.0, store_link=self.link, tuner_cores=1.0)
        return self.photos / Stages.of(cut, work, rates=rates, stores=stores).seconds(1)

    def knee(self, way: str) -> float:
        """How many stores are as fast as the tuner."""
        if way == "near-data":
            return self.store / self.train
        return self.file_bytes / self.link / self.tuner


@dataclass(frozen=True)
class Measured:
    """All rounds, and the model of each."""

    rounds: list[Round]
    models: list[Model]

    def speeds(self, case: Case) -> list[float]:
        pairs = zip(self.rounds, self.models, strict=True)
        return [model.photos / found[case].seconds for found, model in pairs]

    def ratios(self, case: Case) -> list[float]:
        """Images per second over the expected."""
        pairs = zip(self.speeds(case), self.models, strict=True)
        return [speed / model.expect(*case) for speed, model in pairs]

    def growth(self, case: Case) -> float:
        """Over one store."""
        return statistics.median(found[case[0], 1].seconds / found[case].seconds for found in self.rounds)

    def knee(self, way: str) -> float:
        return statistics.median(model.knee(way) for model in self.models)


def speed_table(measured: Measured) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for way in CUTS:
        for count in STORES:
            case, speeds = (way, count), measured.speeds((way, count))
            expected = statistics.median(model.expect(*case) for model in measured.models)
            spread = f"{statistics.median(speeds):.1f} ({min(speeds):.1f}..{max(speeds):.1f})"
            part = statistics.median(measured.ratios(case))
            rows.append(
                (way, count, f"{expected:.1f}", spread, f"{part:.3f}", f"{measured.growth(case):.2f}x")
            )
    columns = ("way", "stores", "expected images/s", "images/s", "/ expected", "/ one store")
    return Table(columns, tuple(rows))


def bars_of(measured: Measured) -> Iterator[Bar]:
    for count in STORES[1:]:
        growth, asked = measured.growth(("near-data", count)), GROWTH * count
        what = f"near-data: images/s of {count} stores over those of one"
        yield Bar(what, f"at least {asked:.2f}x", f"{growth:.2f}x", growth >= asked)
        what = f"near-data, {count} stores: images/s over the expected"
        yield close_to_one(what, measured.ratios(("near-data", count)), WITHIN)
    for count in STORES:
        knee = f"{measured.knee('typical'):.1f}"
        what = f"typical, {count} stores, the knee at {knee}: images/s over the expected"
        yield close_to_one(what, measured.ratios(("typical", count)), WITHIN)


def run(folder: Path, options: Options) -> Report:
    demand_two_cores()
    with ExitStack() as stack:
        fleet = start(folder, options, stack)
        known = fleet.prepare()
        fleet.hold()
        rounds = fleet.measure(rounds=1 if options.quick else ROUNDS)
    models = [Model.of(found, known["photos"], known["file"]) for found in rounds]
    measured = Measured(rounds, models)
    return Report(
        f"images/s of a fine-tuning by stores of {CORES:g} cores and {RATE_MBIT:g} Mbit each",
        (speed_table(measured),),
        tuple(bars_of(measured)),
        (
            f"{known['photos']} photos, divided among the stores; a linear head of 10 classes, one epoch",
            f"expected knees: near-data at {measured.knee('near-data'):,.0f} stores, where training takes as "
            f"long as the features; typical at {measured.knee('typical'):.1f}, where its core is full",
        ),
        raw={"rounds": [{f"{way} {n}": vars(one) for (way, n), one in each.items()} for each in rounds]},
    )


if __name__ == "__main__":
    demand_root()
    demand_groups()
    main(__doc__, run)
