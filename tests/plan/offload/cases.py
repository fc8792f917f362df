"""Options for the tests of this folder: random profiles, a small photo set, the optimum by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwater.plan.offload import Offload, Options, Rates
from headwater.plan.offload.workload import Workload

WAYS = (Offload(0), Offload(1), Offload(2), Offload(2, "zstd"), Offload(2, "jxl1"))


def make_options(
    sent: object, store: object, trainer: object = 0.0, *, ways: tuple[Offload, ...] | None = None
) -> Options:
    """Options from nested lists; by default the cuts 0, 1, 2 ... without codec."""
    columns = np.array(sent, np.float64)
    names = ways or tuple(Offload(cut) for cut in range(columns.shape[1]))
    shape = columns.shape
    return Options(
        names,
        columns,
        np.broadcast_to(np.array(store, np.float64), shape).copy(),
        np.broadcast_to(np.array(trainer, np.float64), shape).copy(),
    )


def random_options(
    rng: np.random.Generator, count: int, *, ways: tuple[Offload, ...] = WAYS, trainer: bool = True
) -> Options:
    """Costs of all kinds: equal, zero, absent, smaller, larger."""
    shape = (count, len(ways))
    sent = rng.integers(1, 20, shape).astype(np.float64) * rng.choice([1, 1000], shape)
    sent[:, 1:][rng.random((count, len(ways) - 1)) < 0.2] = np.inf
    store = rng.integers(0, 8, shape) * 1e-3
    store[:, 0] = 0
    seconds = rng.integers(0, 8, shape) * 1e-3 if trainer else np.zeros(shape)
    return Options(ways, sent, store, seconds)


def random_rates(rng: np.random.Generator, *, trainer: bool = True) -> Rates:
    """Any of the four may be the slowest."""
    free = math.inf
    return Rates(
        link=float(10 ** rng.uniform(3, 7)),
        store_cores=float(rng.choice([0.0, 0.1, 0.5, 1, 4, 64])),
        trainer_cores=float(rng.choice([0.1, 0.5, 2, 64])) if trainer else free,
        trainer=float(rng.choice([10, 100, 1000, free])) if trainer else free,
        store_speed=float(rng.choice([0.5, 1, 2])),
    )


def optimum(work: Workload) -> float:
    """The least seconds of all choices there are, for a few samples; the model is written out once more."""
    options, rates, count = work.options, work.rates, len(work.options)
    choices = np.array(list(itertools.product(range(len(options.ways)), repeat=count)))
    rows, visits = np.arange(count), work.visits
    sent = (options.bytes[rows, choices] * visits).sum(axis=1)
    trainer = (options.trainer_seconds[rows, choices] * visits).sum(axis=1) / rates.trainer_cores
    store = (options.store_seconds[rows, choices] * visits).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        store = np.where(store > 0, store / (rates.store_cores * rates.store_speed), 0)
    least = np.maximum.reduce([sent / rates.link, trainer, store]).min()
    return max(float(least), float(visits.sum()) / rates.trainer)


def make_photos(count: int, *, seed: int = 0) -> tuple[Options, NDArray[np.float64]]:
    """Sizes as OpenImages has them, with modelled costs: decode 10 ns a pixel, crop 2 ms. And raw sizes."""
    rng = np.random.default_rng(seed)
    raw = rng.lognormal(math.log(255e3), 0.75, count)
    pixels = np.full(count, 7.5e5)
    decode, crop = pixels * 1e-8, 2e-3
    sent = np.stack([raw, 3 * pixels, np.full(count, 150_528.0), np.full(count, 602_112.0)], axis=1)
    store = np.stack([0 * raw, decode, decode + crop, decode + crop + 1e-3], axis=1)
    return make_options(sent, store, store[:, -1:] - store), raw


seeds = st.integers(0, 2**32 - 1)
