"""Every integer-exact transform, and a digest of what they make: a process of another CPU kind must agree.

Imports nothing that a subprocess would wait for.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Image, Rows
from pictures import photo

EXACT = [
    T.RandomResizedCrop(16),
    T.RandomResizedCrop((12, 20), interpolation="bicubic"),
    T.RandomCrop(18, padding=4, pad_if_needed=True),
    T.RandomCrop(18, pad_if_needed=True, padding_mode="reflect"),
    T.CenterCrop((14, 30)),
    T.Resize(21),
    T.Resize((30, 13), antialias=False),
    T.Resize((30, 13), "nearest"),
    T.Pad((1, 2, 3, 4), fill=9),
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(),
]


def undecoded(transforms: list[Any]) -> Pipeline:
    """Without decoding: these tests begin with pixels."""
    return Pipeline(T.Compose(transforms).steps[1:], 1)


def draw(pipeline: Pipeline, ids: Any, sizes: Any) -> list[Rows]:
    """With the one seed and epoch of these tests."""
    return pipeline.draw(np.asarray(ids), np.asarray(sizes), seed=11, epoch=2)


def run(pipeline: Pipeline, image: Image, rows: list[list[float]]) -> Image:
    """All steps on one image."""
    for step, row in zip(pipeline.steps, rows, strict=True):
        image = step.apply(image, row)
    return image


def digest() -> str:
    """A digest of what every exact transform makes of a colour and a grey picture."""
    content = hashlib.sha256()
    for number, transform in enumerate(EXACT):
        for channels in (1, 3):
            image = photo(61, 83, channels=channels, seed=number)
            pipeline = undecoded([transform])
            rows = [row[0].tolist() for row in draw(pipeline, [number], [image.shape[:2]])]
            content.update(np.ascontiguousarray(run(pipeline, image, rows)).tobytes())
    return content.hexdigest()
