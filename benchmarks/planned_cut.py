"""Is the cut that the plan of a fine-tuning finds the quickest, with a real store, link and tuner?

Store and tuner are in two network namespaces with 100 Mbit between them, on a core each; needs root. The same
head for the same photos comes about with whatever the plan chose, with images that cross, with features that
cross, and with two other cuts between the layers: those on either side of the plan's, or, where that is an
end, those that it thought the quickest. The layers of EfficientNet-Lite0 may be shared between store and
tuner. What each takes is compared with what the plan said beforehand, from a few photos. Features are made
anew every time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from headwater.models.registry import Registry
from measuring import Bar, Cell, Options, Rates, Report, Table, compare, interleave, main
from netns import RATE_MBIT, demand_root, slow_link
from serving import CLIENT_CORE, STORE_CORE, demand_two_cores, on_core, serve
from trainers import write_tars
from tuners import INT8, KEEP_NOTHING, TRUNK, Tuners, put_int8, put_trunk, state_of

ENDS = ("images", "features")
PLANNED = "planned"
ROUNDS, EPOCHS, QUICK = 5, 5, 128
SLACK = 0.1
"""By how much the planned cut may be slower than the quickest of those that ran."""
WITHIN = 0.3


def start(folder: Path, options: Options, stack: ExitStack) -> tuple[Tuners, str]:
    """Tuners, and the address of the photos."""
    photos = write_tars(folder, options)
    (held, state), registry = state_of(folder / "state"), Registry(folder / "models")
    put_trunk(held, registry)
    put_int8(photos, held, registry)
    ends = stack.enter_context(slow_link())
    listen, further = f"{ends.store.address}:7077", (*state, *KEEP_NOTHING)
    with on_core(STORE_CORE):
        running = serve(photos, listen=listen, cores=1, within=ends.store.words, further=further)
        store = stack.enter_context(running)
    with on_core(CLIENT_CORE):
        tuners = stack.enter_context(Tuners(registry, within=ends.trainer.words))
    return tuners, f"{store.address}/photos"


def measure(
    tuners: Tuners, address: str, trunk: str, *, options: Options
) -> tuple[Mapping[str, Any], Rates, int]:
    """The plan, photos per second of each way, and how many photos there are."""

    def prepare(name: str, **wish: str) -> dict[str, Any]:
        recipe = {"epochs": EPOCHS, "runs": 1, "validation": 0.0, **wish}
        settings = {"data": [address], "model": trunk, "samples": QUICK if options.quick else 0}
        return tuners.prepare(f"{trunk}-{name}", {**settings, "recipe": recipe})

    plan = prepare(PLANNED)
    forced = (*ENDS, *rivals(plan["cut"], plan["options"]))
    for cut in forced:
        prepare(cut, cut=cut)
    photos = int(plan["photos"])
    ways = {name: partial(_rate, tuners, f"{trunk}-{name}", photos) for name in (PLANNED, *forced)}
    return plan, interleave(ways, rounds=1 if options.quick else ROUNDS), photos


def rivals(cut: str, expected: Mapping[str, float]) -> list[str]:
    """Of the cuts between the layers those beside this one; beside an end, the two of the least seconds."""
    inside = [name for name in expected if name not in ENDS]
    if cut in ENDS:
        return sorted(inside, key=expected.__getitem__)[:2]
    place = inside.index(cut)
    return [*inside[:place][-1:], *inside[place + 1 :][:1]]


def _rate(tuners: Tuners, name: str, photos: int) -> float:
    return photos / tuners.fit(name).seconds


def table_of(trunk: str, plan: Mapping[str, Any], rates: Rates, photos: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for way, found in rates.items():
        cut = plan["cut"] if way == PLANNED else way
        seconds = [photos / rate for rate in found]
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}..{max(seconds):.2f})"
        quicker = f"{compare(rates, way, 'images').median:.2f}x"
        rows.append((way, cut, round(plan["bytes"][cut]), f"{plan['options'][cut]:.2f}", spread, quicker))
    return Table((trunk, "cut", "bytes a photo", "the plan's s", "seconds", "images / it"), tuple(rows))


def bars_of(trunk: str, plan: Mapping[str, Any], rates: Rates, photos: int) -> Iterator[Bar]:
    best = max((way for way in rates if way != PLANNED), key=lambda way: statistics.median(rates[way]))
    longer = 1 / compare(rates, PLANNED, best).median
    what = f"{trunk}: time of the planned cut, {plan['cut']}, over that of the quickest other, {best}"
    yield Bar(what, f"at most {1 + SLACK:g}", f"{longer:.2f}", longer <= 1 + SLACK)
    part = photos / statistics.median(rates[PLANNED]) / plan["options"][plan["cut"]]
    what = f"{trunk}: time of the planned cut over what the plan said"
    yield Bar(what, f"within {WITHIN:.0%}", f"{part:.2f}", abs(part - 1) <= WITHIN)


def run(folder: Path, options: Options) -> Report:
    demand_two_cores()
    with ExitStack() as stack:
        tuners, address = start(folder, options, stack)
        found = {trunk: measure(tuners, address, trunk, options=options) for trunk in (TRUNK, INT8)}
    return Report(
        f"a fine-tuning with the cut that was planned, store and tuner on a core each, {RATE_MBIT} Mbit",
        tuple(table_of(trunk, *each) for trunk, each in found.items()),
        tuple(bar for trunk, each in found.items() for bar in bars_of(trunk, *each)),
        (
            f"{found[TRUNK][2]} photos, a linear head of 10 classes, {EPOCHS} epochs in one run",
            "seconds are those from the first request to the last epoch; planning is not in them",
        ),
        raw={trunk: {"plan": plan, "rates": rates} for trunk, (plan, rates, _) in found.items()},
    )


if __name__ == "__main__":
    demand_root()
    main(__doc__, run)
