"""Which ways a pipeline's samples can be sent, before anything is known of their cost."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from headwater.data.codecs.excerpts import EXCERPT_CUT, EXCERPTS, takes_excerpts
from headwater.data.pipeline import Pipeline
from headwater.plan.offload.uniform import Offload

PIXEL_CODECS = ("zstd", "jxl1", "jxl3")
"""Lossless codecs that are worth a measurement: from the quickest to the tightest."""
_CROP_CODEC = "jxl1"
_EDGE = 1024  # of a photo that stands for all
_DRAWS = 64


def list_ways(pipeline: Pipeline, codecs: Collection[str]) -> tuple[Offload, ...]:
    """The file as it is, every cut, codecs where an image is smallest, and the cuts inside a JPEG.

    All are exact. Of `codecs`, the names that both sides have, only those that can pay are used.
    """
    reach = pipeline.longest_prefix
    ways = [Offload(cut) for cut in range(reach + 1)]
    if reach:
        ways += _coded(pipeline, reach, codecs)
    if reach >= EXCERPT_CUT and takes_excerpts(pipeline):
        ways += [Offload(EXCERPT_CUT, name) for name in EXCERPTS if name in codecs]
    return tuple(ways)


def smallest_cut(pipeline: Pipeline) -> int:
    """The first cut at which a photo has fewest pixels; 0 where no step may run at a store."""
    reach = pipeline.longest_prefix
    return 1 + int(np.argmin(_pixels_at(pipeline, reach))) if reach else 0


def _coded(pipeline: Pipeline, reach: int, codecs: Collection[str]) -> list[Offload]:
    smallest = smallest_cut(pipeline)
    found = [Offload(smallest, name) for name in PIXEL_CODECS if name in codecs]
    crops = reach >= EXCERPT_CUT and pipeline.steps[EXCERPT_CUT - 1].crops
    if crops and smallest != EXCERPT_CUT and _CROP_CODEC in codecs:
        found.append(Offload(EXCERPT_CUT, _CROP_CODEC))
    return found


def _pixels_at(pipeline: Pipeline, reach: int) -> list[float]:
    """Pixels of a large photo after each of the first steps, on average."""
    sizes = np.full((_DRAWS, 2), _EDGE, np.int64)
    first = pipeline.cut(reach)[0]
    rows = first.draw(np.arange(_DRAWS), sizes, seed=0, epoch=0)
    found = []
    for step, row in zip(first.steps, rows, strict=True):
        sizes = step.out_sizes(sizes, row)
        found.append(float(sizes.prod(axis=1).mean()))
    return found
