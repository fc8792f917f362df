"""Do more stores make more features, until the tuner is the slowest?

One, two and four stores hold the photos between them, each a process that a control group holds to 0.2 of a
core, at the far end of a link of its own of 20 Mbit; needs root. All stores are on one core of the machine,
the tuner on the other. With a light head the stores are all that counts. With a heavy one, training takes as
long as three stores take for the features: there the plan's time model has its knee. It is told what one
store takes for a photo, from the same round, and what training takes. EfficientNet-Lite0 with int8 layers;
features are made anew every time.
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
from netns import demand_root, slow_links
from quota import Group, demand_groups, make_group
from serving import CLIENT_CORE, STORE_CORE, Store, demand_two_cores, on_core, serve
from tuners import INT8, KEEP_NOTHING, Fitted, Tuners, put_int8, put_trunk, state_of

STORES = (1, 2, 4)
CORES, RATE_MBIT = 0.2, 20.0
ROUNDS = 5
KNEE = 3.0
HEADS = {"light": {"depth": 0}, "heavy": {"depth": 16}}
RUNS = {"light": 1, "heavy": 3}
BATCH = 64
QUICK = 64
WITHIN = 0.15
GROWTH = 0.85
"""Of the number of stores, by which images per second must grow where nothing else is slow."""
FEATURE_BYTES = 2 * 1280
NAMES = {1: "one", 2: "two", 4: "photos"}
"""Under which name a store serves its part where there are so many."""

Case = tuple[str, int]
Rounds = list[dict[Case, Fitted]]


@dataclass(frozen=True)
class Fleet:
    """Running stores, the first few of which hold all photos as well, and tuners that ask them."""

    stores: list[Store]
    groups: list[Group]
    tuners: Tuners
    samples: int

    def settings(self, head: str, count: int, *, epochs: int) -> dict[str, Any]:
        recipe = {"epochs": epochs, "runs": RUNS[head], "batch_size": BATCH}
        return {
            **HEADS[head],
            "data": [f"{store.address}/{NAMES[count]}" for store in self.stores[:count]],
            "model": INT8,
            "samples": self.samples,
            "recipe": {**recipe, "validation": 0.0, "cut": "features"},
        }

    def hold(self) -> None:
        """From now on the stores have no more than their share; they started sooner without."""
        for group in self.groups:
            group.limit(CORES)


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
    put_int8(parts[1, 0], registry)
    links = stack.enter_context(slow_links(max(STORES), rate_mbit=RATE_MBIT))
    stores, groups = [], []
    for number, ends in enumerate(links):
        groups.append(stack.enter_context(make_group()))
        held, state = state_of(folder / f"state-{number}")
        held.put(registry.get(INT8), name=INT8, switch=True)
        served = {n: parts[n, number] for n in STORES if (n, number) in parts}
        own = served.pop(max(STORES))
        further = (*(f"{NAMES[n]}={part}" for n, part in served.items()), *state, *KEEP_NOTHING)
        within, place = (*groups[-1].words, *ends.store.entering), f"{ends.store.address}:7077"
        with on_core(STORE_CORE):
            running = serve(own, listen=place, cores=CORES, within=within, further=further)
            stores.append(stack.enter_context(running))
    with on_core(CLIENT_CORE):
        tuners = stack.enter_context(Tuners(registry, within=links[0].trainer.words))
    return Fleet(stores, groups, tuners, QUICK if options.quick else 0)


def prepare(fleet: Fleet) -> tuple[int, int]:
    """All cases; how many photos there are, and epochs that make training as slow as `KNEE` stores."""
    tuners = fleet.tuners
    for count in STORES:
        planned = tuners.prepare(f"light-{count}", fleet.settings("light", count, epochs=1))
        tuners.fit(f"light-{count}")  # stores load the layers
    epoch = tuners.prepare("probe", fleet.settings("heavy", 1, epochs=1))["train"]
    fleet.hold()
    epochs = max(1, round(tuners.fit("light-1").extract / KNEE / epoch))
    for count in STORES:
        tuners.prepare(f"heavy-{count}", fleet.settings("heavy", count, epochs=epochs))
    return int(planned["photos"]), epochs


def measure(tuners: Tuners, *, rounds: int) -> Rounds:
    """All cases in turns; a round before the first is not counted."""
    cases = [(head, count) for head in HEADS for count in STORES]
    found: Rounds = []
    for number in range(rounds + 1):
        found.append({case: tuners.fit("{}-{}".format(*case)) for case in cases})
        times = ", ".join(f"{head} {count}: {one.seconds:.1f} s" for (head, count), one in found[-1].items())
        print(f"round {number} of {rounds}: {times}", file=sys.stderr, flush=True)
    return found[1:]


def expect(found: Mapping[Case, Fitted], case: Case, photos: int) -> float:
    """Images per second, from what one store and training took in the same round."""
    head, count = case
    work = Work(images=photos, train_seconds=found[head, 1].train / photos)
    cut = Cut("features", found["light", 1].extract / photos, FEATURE_BYTES)
    rates = Rates(store_cores=1.0, store_link=RATE_MBIT * 1e6 / 8)
    return photos / Stages.of(cut, work, rates=rates, stores=count).seconds(RUNS[head])


def knee(found: Rounds, head: str) -> float:
    """Stores at which training takes as long as the features."""
    return statistics.median(one["light", 1].extract / max(1e-9, one[head, 1].train) for one in found)


def ratios(found: Rounds, case: Case, photos: int) -> list[float]:
    return [photos / one[case].seconds / expect(one, case, photos) for one in found]


def speed_table(found: Rounds, photos: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in found[0]:
        speeds = [photos / one[case].seconds for one in found]
        expected = statistics.median(expect(one, case, photos) for one in found)
        growth = statistics.median(one[case[0], 1].seconds / one[case].seconds for one in found)
        spread = f"{statistics.median(speeds):.1f} ({min(speeds):.1f}..{max(speeds):.1f})"
        part = statistics.median(ratios(found, case, photos))
        rows.append((*case, f"{expected:.1f}", spread, f"{part:.3f}", f"{growth:.2f}x"))
    columns = ("head", "stores", "expected images/s", "images/s", "/ expected", "/ one store")
    return Table(columns, tuple(rows))


def bars_of(found: Rounds, photos: int) -> Iterator[Bar]:
    for count in STORES[1:]:
        growth = statistics.median(one["light", 1].seconds / one["light", count].seconds for one in found)
        asked = GROWTH * count
        what = f"light head: images/s of {count} stores over those of one"
        yield Bar(what, f"at least {asked:.2f}x", f"{growth:.2f}x", growth >= asked)
    for count in STORES:
        what = f"heavy head, {count} stores, knee at {knee(found, 'heavy'):.1f}: images/s over the expected"
        yield close_to_one(what, ratios(found, ("heavy", count), photos), WITHIN)


def run(folder: Path, options: Options) -> Report:
    demand_two_cores()
    with ExitStack() as stack:
        fleet = start(folder, options, stack)
        photos, epochs = prepare(fleet)
        found = measure(fleet.tuners, rounds=1 if options.quick else ROUNDS)
    return Report(
        f"images/s of a fine-tuning by stores of {CORES:g} cores and {RATE_MBIT:g} Mbit each",
        (speed_table(found, photos),),
        tuple(bars_of(found, photos)),
        (
            f"{photos} photos, divided among the stores; batches of {BATCH}, nothing held out",
            f"light: a linear head, 1 epoch; training takes as long as {knee(found, 'light'):.0f} stores",
            f"heavy: one layer of 512 x 512, 16 times over, {epochs} epochs in {RUNS['heavy']} runs",
            "expected: the plan's time model, from what one store takes, and training",
        ),
        raw={"rounds": [{f"{h} {n}": vars(one) for (h, n), one in each.items()} for each in found]},
    )


if __name__ == "__main__":
    demand_root()
    demand_groups()
    main(__doc__, run)
