"""Normalising where images land gives the bits of the steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwater import transforms as T
from headwater.data.buffers import Buffers
from headwater.data.steps.base import BatchStep, Step
from headwater.errors import WrongUse
from headwater.loader.landing import Arithmetic, Landing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE = T.ToDtype("float32", scale=True)
NO_ROWS = np.empty((0, 0))


def photos(count: int = 5, side: int = 17) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, side, side + 2, 3), np.uint8)


def land(images: np.ndarray, steps: list[Step]) -> Landing:
    landing = Landing(len(images), Arithmetic.of(steps), Buffers(2))
    for slot, image in enumerate(images):
        landing.put(slot, image)
    landing.settle(0, 2)
    landing.settle(2, len(images))
    return landing


@pytest.mark.parametrize("side", [9, 17, 200])
@pytest.mark.parametrize(
    ("steps", "covered"),
    [
        ([SCALE, T.Normalize(MEAN, STD)], 2),
        ([T.Normalize(MEAN, STD)], 1),
        ([SCALE], 1),
        ([T.ToDtype("float32")], 1),
        ([T.ToDtype("float32", scale=True, divide=True), T.Normalize([0.5], [0.5]), T.RandomErasing()], 2),
        ([T.ToDtype("float32"), T.Normalize([117.0], [60.0])], 2),
        ([T.ToDtype("float16", scale=True), T.Normalize(MEAN, STD)], 0),
        ([T.RandomErasing(), T.Normalize(MEAN, STD)], 0),
        ([], 0),
    ],
    ids=str,
)
def test_the_bits_are_those_of_the_steps(steps: list[BatchStep], covered: int, side: int) -> None:
    images = photos(side=side)
    landing = land(images, list(steps))
    assert landing.covered == covered
    expected = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    for step in steps[:covered]:
        expected = step.apply_batch(expected.clone(), NO_ROWS)
    assert landing.tensor.dtype == expected.dtype
    assert torch.equal(landing.tensor, expected)


def test_numbers_of_a_users_function_are_left_to_the_steps() -> None:
    images = photos().astype(np.float32)
    landing = land(images, [SCALE, T.Normalize(MEAN, STD)])
    assert landing.covered == 0
    assert np.array_equal(landing.tensor.numpy(), images.transpose(0, 3, 1, 2))


def test_a_slot_that_failed_disturbs_nobody() -> None:
    landing = Landing(3, Arithmetic.of([SCALE]), Buffers(2))
    images = photos(3)
    landing.put(0, images[0])
    landing.put(2, images[2])
    landing.settle(0, 3)
    alone = land(images, [SCALE])
    assert torch.equal(landing.tensor[[0, 2]], alone.tensor[[0, 2]])


def test_unlike_images_and_channels_are_refused() -> None:
    landing = Landing(2, None, Buffers(2))
    landing.put(0, np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(WrongUse, match=r"\(4, 4, 3\) uint8 and \(4, 5, 3\) uint8"):
        landing.put(1, np.zeros((4, 5, 3), np.uint8))
    with pytest.raises(WrongUse, match="differ"):
        landing.put(1, np.zeros((4, 4, 3), np.float32))
    with pytest.raises(WrongUse, match="mean has 3 values, the images 1 channels"):
        Landing(1, Arithmetic.of([T.Normalize(MEAN, STD)]), Buffers(2)).put(0, np.zeros((4, 4, 1), np.uint8))
