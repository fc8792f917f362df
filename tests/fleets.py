"""Fleets for tests: stores in this process with a part of the photos each, and what a run found of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import headwater as hw
from datasets import Photo, write_folder
from headwater.engine.chain import Chain
from headwater.measure.logbook import Logbook, SiteRates
from logbooks import PIPELINE, learn_logbook, make_stretch
from stores import running_daemon


@contextmanager
def running_fleet(parts: Sequence[Sequence[Photo]], folder: Path) -> Iterator[list[str]]:
    """The addresses of a store for each part."""
    with ExitStack() as stack:
        yield [
            f"{stack.enter_context(running_daemon({'photos': where})).serving.address}/photos"
            for where in (write_folder(folder / str(number), part) for number, part in enumerate(parts))
        ]


def learn_fleet(addresses: Sequence[str], rates: Sequence[SiteRates]) -> Logbook:
    """A logbook of a run over these stores, in which each had other rates, in the order of the sites."""
    dataset = hw.open(list(addresses))
    logbook = learn_logbook(dataset)
    sites = dataset.store.sites(Chain(PIPELINE), [hw.Offload(0)])
    logbook.stretches = [make_stretch(its, site=site.name) for site, its in zip(sites, rates, strict=True)]
    return logbook
