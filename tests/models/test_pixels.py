"""One multiplication and one addition are the batch stage of a pipeline."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exports import MEAN, STD
from headwater import transforms as T
from headwater.errors import ModelError
from headwater.models.pixels import TOLERANCE, Affine
from pictures import photo

STAGES = {
    "normalise": [T.Normalize(MEAN, STD)],
    "convert, normalise": [T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)],
    "one value for all": [T.Normalize([0.5], [0.25])],
    "unscaled": [T.ToDtype("float32"), T.Normalize([127.0] * 3, [128.0] * 3)],
    "scaled only": [T.ToDtype("float32", scale=True)],
    "twice": [T.Normalize(MEAN, STD), T.Normalize([0.1] * 3, [2.0] * 3)],
    "already float": [T.Normalize(MEAN, STD), T.ToDtype("float32", scale=True)],
}


@pytest.mark.parametrize("name", STAGES)
def test_it_is_what_the_steps_do(name: str) -> None:
    pipeline = T.Compose([T.CenterCrop(20), *STAGES[name]])
    pixels = np.stack([photo(20, 24, seed=seed) for seed in range(3)])
    batch = torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2)
    for step in pipeline.batchwise.steps:
        batch = step.apply_batch(batch, np.empty((3, 0)))  # type: ignore[attr-defined]
    found = Affine.of(pipeline.spec()).apply(pixels)
    assert found.flags.c_contiguous
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, batch.numpy(), atol=TOLERANCE)


def test_without_a_batch_stage_values_stay() -> None:
    pixels = photo(9, 7)[None]
    found = Affine.of(T.Compose([T.CenterCrop(9)]).spec()).apply(pixels)
    np.testing.assert_array_equal(found, pixels.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ([T.Normalize(MEAN, STD), T.RandomErasing(p=1.0)], "'normalize' before its end"),
        ([T.RandomErasing(p=1.0)], "'random_erasing' before its end"),
        ([T.ToDtype("float32"), T.Resize(8), T.Normalize(MEAN, STD)], "'to_dtype' before its end"),
        ([T.ToDtype("float16", scale=True)], "converts to float16"),
    ],
)
def test_another_batch_stage_is_refused(stage: list[T.Normalize], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Affine.of(T.Compose(stage).spec())
