"""Logbooks for tests: real plans for photos with modelled costs, and what was measured, by hand."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from headwater import transforms
from headwater.data.pipeline import Pipeline
from headwater.measure.key import Key
from headwater.measure.logbook import Amounts, Logbook, SiteRates, Stretch
from headwater.measure.profile import Profile, Seen
from headwater.plan.offload import Load, Offload, OffloadPlan, Options, make_plan
from headwater.report.balance import to_rates
from headwater.store import Dataset

PIPELINE = transforms.Compose([transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()])
WAYS = [(0, "none"), (1, "none"), (2, "none"), (3, "none"), (3, "zstd"), (2, "jpeg")]
SITE = "grpc://store-a:7077"
SLOW_LINK = SiteRates(link=1e6, store_cores=2, trainer_cores=4)
SAMPLES = 64


def empty_logbook(*, dataset: str = "v1", uri: str = f"{SITE}/photos", policy: str = "hull") -> Logbook:
    """Nothing has happened yet."""
    return Logbook.begin(PIPELINE, WAYS, dataset=dataset, uri=uri, policy=policy, seed=3)


def make_options(count: int = SAMPLES) -> Options:
    """Files of 20 to 60 kB; a decoded one is larger, a crop smaller, and smallest when packed."""
    rng = np.random.default_rng(7)
    file = rng.uniform(20e3, 60e3, count)
    sent = np.stack([file, file * 9, file * 3, np.full(count, 3072.0), np.full(count, 2000.0), file / 3], 1)
    store = np.array([0, 2e-3, 1e-3, 1.2e-3, 1.5e-3, 0.4e-3]) * np.ones((count, 1))
    trainer = np.array([2e-3, 1e-3, 0.4e-3, 0.2e-3, 0.25e-3, 1e-3]) * np.ones((count, 1))
    return Options(tuple(Offload(*way) for way in WAYS), sent, store, trainer)


def make_stretch(
    rates: SiteRates = SLOW_LINK,
    *,
    site: str = SITE,
    epoch: int = 0,
    slower: float = 1.0,
    pushed_back: int = 0,
    options: Options | None = None,
) -> Stretch:
    """A stretch as a real plan wants it; `slower` is what measured seconds are over predicted ones."""
    plan = make_plan("hull", options or make_options(), rates=to_rates(rates))
    predicted = _amounts(plan, plan.after)
    return Stretch(
        epoch=epoch,
        site=site,
        phase="plan",
        measured=msgspec.structs.replace(predicted, seconds=predicted.seconds * slower),
        rates=rates,
        ways=plan.counts.tolist(),
        predicted=predicted,
        none=_amounts(plan, plan.before),
        waited={"read": 1.0, "steps": 0.5},
        held=4.5,
        pushed_back=pushed_back,
        reason=plan.reason,
    )


def make_trial(ways: list[int], *, phase: str = "explore", site: str = SITE) -> Stretch:
    """A stretch without a plan, with so many samples of each way."""
    measured = Amounts(sum(ways), 4e4 * sum(ways), 0.1, 0.2, 1.0)
    return Stretch(epoch=0, site=site, phase=phase, measured=measured, rates=SLOW_LINK, ways=ways)


def make_seen(ways: list[int], *, done: list[bool] | None = None, options: Options | None = None) -> Seen:
    """What comes of these ways, sample by sample, as the options say."""
    numbers, rows = np.array(ways, np.uint8), np.arange(len(ways))
    came = np.ones(len(ways), np.bool_) if done is None else np.array(done)
    taken, costs = np.where(came, numbers, 0), options or make_options(len(ways))
    return Seen(
        positions=rows.astype(np.int64),
        ids=rows.astype(np.int64) + 100,
        epoch=0,
        ways=numbers,
        done=came,
        bytes=costs.bytes[rows, taken].astype(np.int64),
        store_seconds=costs.store_seconds[rows, taken].astype(np.float32),
        trainer_seconds=costs.trainer_seconds[rows, taken].astype(np.float32),
        sizes=np.full((len(ways), 2), 100, np.int32),
        able=np.ones(len(ways), np.bool_),
        file_bytes=costs.bytes[rows, 0].astype(np.int64),
    )


def make_logbook(rates: SiteRates = SLOW_LINK) -> Logbook:
    """A run that tried every way, then followed plans for two epochs."""
    logbook = empty_logbook()
    tried = [0] * 30 + [way for way in range(1, len(WAYS)) for _ in range(6)]
    logbook.count(make_seen(tried))
    logbook.add(make_trial(np.bincount(tried).tolist()))
    for epoch in range(2):
        stretch = make_stretch(rates, epoch=epoch, slower=1.25)
        planned = [way for way, count in enumerate(stretch.ways) for _ in range(count)]
        logbook.count(make_seen(planned))
        logbook.add(stretch)
    return logbook


def learn_logbook(dataset: Dataset, pipeline: Pipeline = PIPELINE) -> Logbook:
    """A logbook of this dataset whose profile has seen every sample on every way."""
    logbook = make_logbook()
    logbook.uri, logbook.steps, logbook.pipeline_text = dataset.uri, pipeline.spec(), str(pipeline)
    logbook.key = Key(dataset.index.version, pipeline.hash, logbook.policy, WAYS)
    profile = Profile(pipeline, WAYS, samples=len(dataset.index), seed=logbook.seed)
    for epoch in range(len(WAYS)):
        profile.add(_visit(dataset, epoch))
    logbook.profile = profile.to_dict()
    return logbook


def _visit(dataset: Dataset, epoch: int) -> Seen:
    count, files = len(dataset), dataset.sizes.astype(np.int64)
    ways = ((np.arange(count) + epoch) % len(WAYS)).astype(np.uint8)
    sizes = dataset.pixel_sizes(progress=False)
    pixels = sizes.prod(axis=1)
    small = np.full(count, 3072)
    sent = np.stack([files, 3 * pixels, 2 * pixels, small, small * 2 // 3, files // 2], 1)
    costs, rows = make_options(count), np.arange(count)
    return Seen(
        positions=dataset.positions(),
        ids=dataset.ids,
        epoch=epoch,
        ways=ways,
        done=np.ones(count, np.bool_),
        bytes=sent[rows, ways],
        store_seconds=costs.store_seconds[rows, ways].astype(np.float32),
        trainer_seconds=costs.trainer_seconds[rows, ways].astype(np.float32),
        sizes=sizes.astype(np.int32),
        able=np.ones(count, np.bool_),
        file_bytes=files,
    )


def _amounts(plan: OffloadPlan, load: Load) -> Amounts:
    assert math.isfinite(load.seconds)
    return Amounts(len(plan), load.bytes, load.store_seconds, load.trainer_seconds, load.seconds)
