"""Number types and normalisation: bit for bit torchvision's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwater.data.steps.dtype import DTYPES, Normalize, ToDtype
from headwater.errors import WrongUse
from pictures import photo
from referee import F, as_tensor, v1

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NO_ROWS = np.empty((2, 0))


def batch_of(count=2):
    return torch.stack([as_tensor(photo(33, 21, seed=seed)) for seed in range(count)])


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_to_dtype_is_torchvisions_both_ways(name, scale):
    dtype = getattr(torch, name)
    there = ToDtype(dtype, scale=scale).apply_batch(batch_of(), NO_ROWS)
    assert torch.equal(there, F.to_dtype(batch_of(), dtype, scale=scale))
    back = ToDtype("uint8", scale=scale).apply_batch(there.clone(), NO_ROWS)
    assert torch.equal(back, F.to_dtype(there, torch.uint8, scale=scale))


def test_dividing_is_what_the_first_torchvision_does():
    image = photo(40, 40)
    ours = ToDtype("float32", scale=True, divide=True).apply_batch(as_tensor(image)[None], NO_ROWS)
    assert torch.equal(ours[0], v1.functional.to_tensor(image))
    multiplied = ToDtype("float32", scale=True).apply_batch(as_tensor(image)[None], NO_ROWS)
    assert not torch.equal(ours, multiplied)


def test_normalize_is_torchvisions():
    floats = F.to_dtype(batch_of(), torch.float32, scale=True)
    theirs = F.normalize(floats, list(MEAN), list(STD))
    assert torch.equal(Normalize(MEAN, STD).apply_batch(floats.clone(), NO_ROWS), theirs)
    assert torch.equal(Normalize(MEAN, STD).apply_batch(batch_of(), NO_ROWS), theirs)


def test_one_image_gets_the_bits_that_a_batch_gets():
    image = photo(33, 21, seed=1)
    whole = Normalize(MEAN, STD).apply_batch(batch_of(), NO_ROWS)
    alone = Normalize(MEAN, STD).apply(image, ())
    assert (alone == whole[1].permute(1, 2, 0).numpy()).all()
    assert (image == photo(33, 21, seed=1)).all()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ToDtype("int3"), "dtype is 'int3'; allowed: bfloat16"),
        (lambda: ToDtype("float32", scale=1), "scale is 1"),
        (lambda: Normalize(MEAN, (1, 0, 1)), "no value may be 0"),
        (lambda: Normalize(MEAN, (1, 1)), "mean has 3 values and std 2"),
        (lambda: Normalize((0.1, 0.2), (1, 1)).apply_batch(batch_of(), NO_ROWS), "3 channels"),
    ],
)
def test_wrong_arguments_are_named(make, text):
    with pytest.raises(WrongUse, match=text):
        make()
