"""A head on the same images by other layers: how many of its labels stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

import numpy as np

from headwater.errors import ModelError
from headwater.models.quantise import HELD_OUT
from headwater.store.dataset import Dataset
from headwater.tune.features import FeatureFile, Halves
from headwater.tune.head import Head
from headwater.tune.inflow import Source, Steps, to_rows
from headwater.tune.int8 import Verdict, judge
from headwater.tune.runs import LOT, Places, Runs, Stretch


@dataclass(frozen=True, eq=False)
class Comparison:
    """Some of the images that a head was trained for, with the features that it was trained on.

    They are spread over those held out and, where these are too few, over those of the first run.
    """

    runs: Runs
    file: FeatureFile
    dataset: Dataset
    steps: Steps

    def judge(self, head: Head, ways: Sequence[Callable[[], Source]], *, bound: float) -> tuple[Verdict, int]:
        """Whether enough labels stay by other layers, and the bytes that crossed to know it.

        The first of the ways to their features is taken that can be; what the last one raises is raised.
        """
        for way in ways[:-1]:
            with suppress(ModelError):
                return self._judge_by(way(), head, bound)
        return self._judge_by(ways[-1](), head, bound)

    def _judge_by(self, source: Source, head: Head, bound: float) -> tuple[Verdict, int]:
        with closing(source):
            return judge(*self._count_same(head, source), bound=bound), source.bytes_moved

    def _count_same(self, head: Head, source: Source) -> tuple[int, int]:
        """Of how many images the head says the same, and how many there are."""
        same = images = 0
        for stretch, numbers in self._choose():
            rows = stretch.first + numbers
            others = self._fetch(stretch, numbers, source)
            sound = self.file.sound(rows) & ~np.isnan(others[:, 0])
            one, two = head.labels(self.file.take(rows[sound])), head.labels(others[sound])
            same, images = same + int((one == two).sum()), images + int(sound.sum())
        return same, images

    def _choose(self) -> Iterator[tuple[Stretch, Places]]:
        left, stretches = HELD_OUT, self.runs.lots.stretches
        for stretch in (*(one for one in stretches if one.held), stretches[0]):
            count = min(left, len(stretch.places))
            if count:
                yield stretch, np.arange(count) * len(stretch.places) // count
            left -= count

    def _fetch(self, stretch: Stretch, numbers: Places, source: Source) -> Halves:
        positions = self.dataset.positions(stretch.places[numbers])
        ids = self.dataset.index.ids[positions]
        batches = source.run(positions, ids, steps=self.steps.of(stretch), variant=stretch.variant)
        parts = [ids[start : start + LOT] for start in range(0, len(ids), LOT)]
        return np.concatenate([to_rows(part, batch) for part, batch in zip(parts, batches, strict=True)])
