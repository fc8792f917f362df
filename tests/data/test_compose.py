"""From transforms as a user writes them to a pipeline."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from headwater import transforms as T
from headwater.data.compose import Compose
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.data.steps.calls import Call
from headwater.data.steps.decode import Decode
from headwater.errors import WrongUse
from pictures import photo
from referee import F, as_image, as_tensor, v1


def names(pipeline):
    return [step.name for step in pipeline.steps]


def apply_with(transform, image, **key):
    """Run a transform's steps on an array, and return it with what was drawn."""
    steps = Pipeline(Compose([transform]).steps[1:], 1)
    drawn = steps.draw(np.array([77]), np.array([image.shape[:2]]), **key)
    for step, rows in zip(steps.steps, drawn, strict=True):
        image = step.apply(image, rows[0].tolist())
    return image, [rows[0].tolist() for rows in drawn]


def test_decoding_comes_first_unless_given():
    assert Compose([]).steps == (Decode(),)
    assert Compose([T.Decode("L"), T.Pad(1)]).steps[0] == Decode("L")
    assert names(Compose([T.RandomResizedCrop(8)])) == ["decode", "random_area", "resize"]


def test_pipelines_within_are_unfolded():
    inner = Compose([T.Resize(9), Compose([T.RandomHorizontalFlip()])])
    outer = Compose([inner, Compose([T.Pad(2)]), T.ToDtype("float32", scale=True)])
    assert names(outer) == ["decode", "resize", "random_horizontal_flip", "pad", "to_dtype"]
    assert Compose([Compose([T.Decode("L")]), T.Pad(2)]).steps[0] == Decode("L")


def test_a_function_becomes_a_call_at_the_trainer():
    pipeline = Compose([T.Pad(1), torch.Tensor.contiguous, T.RandomHorizontalFlip()])
    assert names(pipeline) == ["decode", "pad", "callable", "random_horizontal_flip"]
    assert pipeline.longest_prefix == 2
    assert isinstance(pipeline.steps[2], Call)
    assert pipeline.hash == Compose(list(pipeline.steps)).hash


@pytest.mark.parametrize(
    ("transforms", "steady"),
    [
        ([], 1),
        ([T.RandomResizedCrop(8), T.Pad(1)], 1),
        ([T.Resize(9), T.CenterCrop(8), T.RandomHorizontalFlip(), T.Pad(1)], 4),
        ([T.Resize(9), torch.Tensor.contiguous, T.Pad(1)], 2),
        ([T.Resize(9), T.ToDtype("float32", scale=True)], 3),
    ],
    ids=str,
)
def test_steps_are_steady_up_to_the_first_that_may_draw(transforms, steady):
    pipeline, ids = Compose(transforms), np.arange(9)
    sizes = np.full((9, 2), 20)
    assert pipeline.steady_prefix == steady
    (rows,) = {
        tuple(row.tobytes() for row in pipeline.cut(steady)[0].draw(ids, sizes, seed=3, epoch=epoch))
        for epoch in range(3)
    }
    assert len(rows) == steady


def test_a_function_is_never_sent():
    spec = msgspec.json.decode(msgspec.json.encode(Compose([torch.relu]).spec()))
    with pytest.raises(WrongUse, match="no step is called 'callable'"):
        Pipeline.from_spec(spec, catalogue())


def test_torchvisions_transforms_may_stand_among_ours():
    pipeline = Compose([v1.Resize(9), T.RandomHorizontalFlip(), v1.RandomInvert()])
    assert names(pipeline) == ["decode", "resize", "random_horizontal_flip", "callable"]


def test_the_batch_stage_begins_after_the_last_sample_step():
    pipeline = Compose(
        [T.ToDtype("float32", scale=True), T.Pad(1), T.Normalize([0.5], [0.5]), T.RandomErasing()]
    )
    assert names(pipeline.samplewise) == ["decode", "to_dtype", "pad"]
    assert names(pipeline.batchwise) == ["normalize", "random_erasing"]


@pytest.mark.parametrize("epoch", range(4))
def test_random_resized_crop_is_torchvisions_for_the_drawn_box(epoch):
    image = photo(60, 90)
    made, rows = apply_with(T.RandomResizedCrop((20, 24)), image, seed=1, epoch=epoch)
    assert (made == as_image(F.resized_crop(as_tensor(image), *map(int, rows[0]), [20, 24]))).all()


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("size", [(32, 32), (20, 40), (17, 17)])
def test_random_crop_is_torchvisions_for_the_drawn_box(mode, size):
    image = photo(*size)
    crop = T.RandomCrop(32, padding=(1, 2, 3, 4), pad_if_needed=True, fill=9, padding_mode=mode)
    made, rows = apply_with(crop, image, seed=1, epoch=0)
    sides = np.array([2 + 4, 1 + 3])
    lacking = np.maximum(32 - np.array(size) - sides, 0)
    padding = [1 + lacking[1], 2 + lacking[0], 3 + lacking[1], 4 + lacking[0]]
    theirs = F.pad(as_tensor(image), list(map(int, padding)), fill=9, padding_mode=mode)
    assert (made == as_image(F.crop(theirs, *map(int, rows[1])))).all()


@pytest.mark.parametrize("size", [(40, 50), (41, 33), (20, 50), (10, 12)])
def test_center_crop_is_torchvisions(size):
    image = photo(*size)
    made, _ = apply_with(T.CenterCrop((33, 32)), image, seed=0, epoch=0)
    assert (made == as_image(F.center_crop(as_tensor(image), [33, 32]))).all()


def test_random_crop_pads_only_if_asked():
    assert names(Compose([T.RandomCrop(8)])) == ["decode", "random_box"]
    assert names(Compose([T.RandomCrop(8, padding=4)])) == ["decode", "pad", "random_box"]
    assert names(Compose([T.RandomCrop(8, pad_if_needed=True)])) == ["decode", "pad_to_fit", "random_box"]


@pytest.mark.parametrize(
    ("transforms", "text"),
    [
        ([T.Pad(1), T.Decode()], "decode comes after pad; it must be the first"),
        (
            [T.MixUp(num_classes=3), T.Normalize([0.5], [0.5])],
            "mixup comes before normalize; it must be the last",
        ),
        ([T.RandomHorizontalFlip], r"RandomHorizontalFlip is a class; write RandomHorizontalFlip\(...\)"),
        ([3], "3 is neither a transform nor callable"),
        (T.Pad(1), "Compose takes a list of transforms, not Pad"),
        ("resize", "Compose takes a list of transforms, not str"),
        ([Compose([T.Pad(1)]).cut(1)[1]], "a pipeline cut at step 1"),
    ],
)
def test_what_cannot_be_composed_is_refused(transforms, text):
    with pytest.raises(WrongUse, match=text):
        Compose(transforms)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: T.RandomResizedCrop(0), "size is 0"),
        (lambda: T.RandomResizedCrop(8, scale=(1, 0.5)), "scale is"),
        (lambda: T.RandomResizedCrop(8, interpolation="box"), "interpolation is 'box'; allowed"),
        (lambda: T.RandomResizedCrop(8, antialias=None), "antialias is None"),
        (lambda: T.RandomCrop(8, padding=-1), "padding is -1"),
        (lambda: T.RandomCrop(8, padding_mode="wrap"), "padding_mode is 'wrap'; allowed"),
        (lambda: T.CenterCrop((1, 2, 3)), "size is"),
    ],
)
def test_wrong_arguments_are_named(make, text):
    with pytest.raises(WrongUse, match=text):
        make()
