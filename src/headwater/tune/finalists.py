"""Cuts between the layers that look best, run as they would be: what estimates leave out is in the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwater.data.pipeline import Pipeline
from headwater.plan.finetune import Cut, Rates, Work
from headwater.plan.finetune.stages import Stages
from headwater.store.dataset import Dataset
from headwater.tune.measuring import SAMPLES, seconds_per_image
from headwater.tune.runs import LOT
from headwater.tune.sources import Sources

MOST = 2
"""How many are run."""


def run_finalists(
    cuts: Sequence[Cut], dataset: Dataset, sources: Sources, *, steps: Pipeline, rates: Rates, stores: int
) -> list[Cut]:
    """The same cuts; those estimates that are quicker than all that was measured have become measurements.

    A few images go through stores, link and layers at once, as all will. By how much that takes longer than
    the time model says is put on both ends alike: rounding, checking and carrying take CPU at either.
    """

    def expected(cut: Cut, images: int = len(dataset)) -> float:
        return Stages.of(cut, Work(images, lot=LOT), rates=rates, stores=stores).extract

    def run(cut: Cut) -> Cut:
        source, images = sources.behind(cut.name, stores), _count_timed(dataset)
        try:
            spent = images * seconds_per_image(source, dataset, steps)
        finally:
            source.close()
        times = spent / expected(cut, images)
        return replace(
            cut,
            store_seconds=times * cut.store_seconds,
            tuner_seconds=times * cut.tuner_seconds,
            estimated=False,
        )

    best = min((expected(cut) for cut in cuts if not cut.estimated), default=0.0)
    quicker = sorted((cut for cut in cuts if cut.estimated and expected(cut) < best), key=expected)
    chosen = {cut.name for cut in quicker[:MOST]}
    return [run(cut) if cut.name in chosen else cut for cut in cuts]


def _count_timed(dataset: Dataset) -> int:
    """Images of the time: the first lot only warms up, if there is another."""
    return min(SAMPLES, len(dataset)) - LOT if len(dataset) > LOT else len(dataset)
