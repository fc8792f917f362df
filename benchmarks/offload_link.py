"""Do fewer bytes become shorter epochs on a link of 100 Mbit, also against WebDataset and LitData?

The servers, the photos, the peers and their settings are those of link.py; needs root. `none` and `auto` are
the same loader without and with offloading; the uncounted round before the first is the epoch in which `auto`
tries its ways. Bytes are what the trainer's network interface received; CPU seconds are those of all
processes at either end, curl, nginx and the S3 server among them. Both ends share one machine's cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import headwater as hw
from link import BATCH, LITDATA, WEBDATASET, Setting, qualify, servers
from measuring import (
    Bar,
    Cell,
    Options,
    Rates,
    Report,
    Table,
    at_least,
    compare,
    interleave,
    main,
    rate_table,
)
from netns import RATE_MBIT, demand_root
from serving import make_tars
from trainers import MACHINE_CORES, Cost, Metered, Trainer, mean

OURS = ("none", "auto")
OF_BYTES = 0.9
"""How much of the saving of bytes must show in the time."""
FASTER = 2.1
_FULL = 0.9

Costs = dict[str, list[Cost]]


def race(setting: Setting, names: tuple[str, ...], *, folder: Path, rounds: int) -> tuple[Rates, Costs]:
    """Rates and costs of all in every round."""
    images = len(hw.open(folder / "photos", progress=False))
    with ExitStack() as stack:
        metered = {}
        for offload in OURS:
            settings = {"offload": offload, "batch": BATCH}
            trainer = Trainer(setting.photos, settings, ends=setting.ends, folder=folder)
            metered[offload] = Metered(setting.ends, images, stack.enter_context(trainer).rate)
        for name in names:
            metered[name] = Metered(setting.ends, images, stack.enter_context(setting.peer(name)))
        rates = interleave({name: each.measure for name, each in metered.items()}, rounds=rounds)
    return rates, {name: each.costs[1:] for name, each in metered.items()}


def cost_table(costs: Costs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, found in costs.items():
        cost = mean(found)
        spent = (cost.store_cpu, cost.trainer_cpu, cost.seconds)
        shares = (cost.link_share(RATE_MBIT), cost.cores / MACHINE_CORES, cost.other_cores / MACHINE_CORES)
        texts = (*(f"{value:.1f}" for value in spent), *(f"{share:.2f}" for share in shares))
        rows.append((name, f"{cost.bytes / 1e6:.1f}", *texts))
    columns = ("contender", "MB an epoch", "store CPU s", "trainer CPU s", "seconds")
    return Table((*columns, "of the link", f"of {MACHINE_CORES} cores", "cores of others"), tuple(rows))


def saving_bar(costs: Costs) -> Bar:
    """Speed-up over ratio of bytes, round by round."""
    pairs = list(zip(costs["none"], costs["auto"], strict=True))
    quicker = statistics.median(none.seconds / auto.seconds for none, auto in pairs)
    fewer = statistics.median(none.bytes / auto.bytes for none, auto in pairs)
    shares = [none.seconds / auto.seconds / (none.bytes / auto.bytes) for none, auto in pairs]
    share = statistics.median(shares)
    what = f"auto: {quicker:.2f}x quicker than none with {fewer:.2f}x fewer bytes: of the ratio of bytes"
    found = f"{share:.2f} ({min(shares):.2f}..{max(shares):.2f})"
    return Bar(what, f"at least {OF_BYTES:g}", found, share >= OF_BYTES)


def what_binds(costs: Costs) -> Iterator[str]:
    """For each of ours: whether it is the link that is full, as it should be."""
    for name in OURS:
        cost = mean(costs[name])
        link, cores = cost.link_share(RATE_MBIT), cost.cores / MACHINE_CORES
        others = cost.other_cores / MACHINE_CORES
        used = f"{link:.2f} of the link, {cores:.2f} of {MACHINE_CORES} cores, and {others:.2f} by others"
        if link >= _FULL:
            yield f"{name} is bound by the link: {used}"
        elif cores >= _FULL:
            yield f"{name} is bound by CPU and not by the link, because both ends share the machine: {used}"
        elif cores + others >= _FULL:
            yield f"{name} found no idle core, because others run here; repeat it on an idle machine: {used}"
        else:
            yield f"{name} fills neither the link nor the cores: {used}"


def run(folder: Path, options: Options) -> Report:
    tars = make_tars(folder, options, megabytes=40 if options.quick else 230)
    with servers(folder, tars) as setting:
        tried = qualify(setting)
        names = tuple(max(family, key=lambda name: tried[name]) for family in (WEBDATASET, LITDATA))
        rates, costs = race(setting, names, folder=folder, rounds=options.rounds)
    best = max(names, key=lambda name: statistics.median(rates[name]))
    qualifying = Table(("peer's setting", "images/s"), tuple((n, f"{rate:.1f}") for n, rate in tried.items()))
    # with made-up photos only the first bar means something
    faster = [at_least(compare(rates, "auto", best), FASTER)] if options.data else []
    return Report(
        f"epochs over a link of {RATE_MBIT} Mbit between two network namespaces, with offloading",
        (rate_table(rates, "auto", "images/s"), cost_table(costs), qualifying),
        (saving_bar(costs), *faster),
        (
            *what_binds(costs),
            f"{sum(tar.stat().st_size for tar in tars.iterdir()) / 1e6:.0f} MB of tars, batches of {BATCH}",
        ),
        raw={
            "rates": rates,
            "costs": {name: [vars(cost) for cost in found] for name, found in costs.items()},
            "qualifying": tried,
        },
    )


if __name__ == "__main__":
    demand_root()
    main(__doc__, run)
