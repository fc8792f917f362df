"""A torchvision `Compose` becomes a pipeline that does the same."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from headwater import transforms as T
from headwater.data.compose import Compose
from headwater.data.translate import as_pipeline, from_torchvision
from headwater.errors import WrongUse
from pictures import photo
from referee import as_tensor, v1, v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BICUBIC = v2.InterpolationMode.BICUBIC

PAIRS = [
    (v.__name__.rsplit(".", 1)[-1], theirs(v), ours)
    for v in (v1, v2)
    for theirs, ours in [
        (lambda v: v.Resize(9), T.Resize(9)),
        (lambda v: v.Resize((9, 8), BICUBIC), T.Resize((9, 8), "bicubic")),
        (lambda v: v.Resize(9, max_size=20), T.Resize(9, max_size=20)),
        (lambda v: v.CenterCrop(7), T.CenterCrop(7)),
        (lambda v: v.Pad((1, 2, 3, 4), 5, "edge"), T.Pad((1, 2, 3, 4), 5, "edge")),
        (lambda v: v.RandomCrop(8), T.RandomCrop(8)),
        (
            lambda v: v.RandomCrop(8, (1, 2, 3, 4), True, 5, "reflect"),
            T.RandomCrop(8, (1, 2, 3, 4), True, 5, "reflect"),
        ),
        (
            lambda v: v.RandomResizedCrop(8, (0.5, 1.0), (0.5, 2.0)),
            T.RandomResizedCrop(8, (0.5, 1), (0.5, 2)),
        ),
        (lambda v: v.RandomHorizontalFlip(0.3), T.RandomHorizontalFlip(0.3)),
        (lambda v: v.RandomVerticalFlip(0.3), T.RandomVerticalFlip(0.3)),
        (lambda v: v.ColorJitter(0.4, 0.3, (0.5, 1), 0.1), T.ColorJitter(0.4, 0.3, (0.5, 1), 0.1)),
        (lambda v: v.Grayscale(3), T.Grayscale(3)),
        (lambda v: v.RandomGrayscale(0.2), T.RandomGrayscale(0.2)),
        (lambda v: v.GaussianBlur((3, 5), (0.2, 1)), T.GaussianBlur((3, 5), (0.2, 1))),
        (lambda v: v.TrivialAugmentWide(10), T.TrivialAugmentWide(10)),
        (lambda v: v.RandomErasing(0.3, value=4), T.RandomErasing(0.3, value=4 if v is v1 else (4,))),
        (lambda v: v.RandomErasing(value="random"), T.RandomErasing(value="random")),
        (lambda v: v.Normalize(MEAN, STD), T.Normalize(MEAN, STD)),
        (lambda v: v.PILToTensor(), Compose([])),
        (lambda v: v.ConvertImageDtype(torch.float32), T.ToDtype("float32", True, divide=v is v1)),
    ]
] + [
    ("v2", v2.ToImage(), Compose([])),
    ("v2", v2.ToDtype(torch.float32, scale=True), T.ToDtype("float32", scale=True)),
    ("v2", v2.MixUp(alpha=0.2, num_classes=4), T.MixUp(0.2, 4)),
    ("v2", v2.CutMix(num_classes=4), T.CutMix(1.0, 4)),
    ("v1", v1.ToTensor(), T.ToDtype("float32", True, divide=True)),
    ("v2", v2.Identity(), Compose([])),
]


@pytest.mark.parametrize(("version", "theirs", "ours"), PAIRS, ids=lambda value: str(value)[:40])
def test_each_transform_is_recognised(version, theirs, ours):
    assert from_torchvision(theirs) == Compose([ours])


@pytest.mark.parametrize(
    "theirs",
    [
        v2.RandomInvert(),
        v1.Lambda(lambda image: image),
        v2.Resize(9, interpolation=v2.InterpolationMode.LANCZOS),
        v2.Pad(2, fill={torch.Tensor: 3}),
        v2.ToDtype({torch.Tensor: torch.float32}),
    ],
    ids=str,
)
def test_what_is_not_known_stays_torchvisions_own(theirs):
    pipeline = from_torchvision(theirs)
    assert [step.name for step in pipeline.steps] == ["decode", "callable"]
    assert type(theirs).__name__ in str(pipeline)


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


def run(pipeline, image):
    drawn = pipeline.draw(np.array([5]), np.array([image.shape[:2]]), seed=0, epoch=0)
    value = png(image)
    for step, rows in zip(pipeline.steps, drawn, strict=True):
        value = step.apply(value, rows[0].tolist())
    return torch.from_numpy(np.ascontiguousarray(value.transpose(2, 0, 1)))


@pytest.mark.parametrize(
    "convert", [v1.ConvertImageDtype(torch.float32), v2.ToDtype(torch.float32, scale=True)]
)
def test_a_validation_pipeline_gives_the_same_bits(convert):
    image = photo(60, 47)
    theirs = v2.Compose([v2.Resize(40), v2.CenterCrop(32), convert, v2.Normalize(MEAN, STD)])
    assert torch.equal(run(from_torchvision(theirs), image), theirs(as_tensor(image)))


def test_the_classic_pipeline_gives_the_same_bits_on_pixels_of_the_same_size():
    image = photo(32, 32)
    theirs = v1.Compose([v1.CenterCrop(30), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    assert torch.equal(run(from_torchvision(theirs), image), theirs(Image.fromarray(image)))


def test_containers_are_unfolded():
    inner = torch.nn.Sequential(v2.Resize(9), torch.nn.Sequential(v2.RandomHorizontalFlip()))
    pipeline = from_torchvision(v2.Compose([inner, v1.Compose([v1.ToTensor()])]))
    assert pipeline == Compose(
        [T.Resize(9), T.RandomHorizontalFlip(), T.ToDtype("float32", True, divide=True)]
    )


def test_a_module_of_the_users_own_is_called():
    pipeline = as_pipeline(torch.nn.Sequential(v2.Resize(9), torch.nn.ReLU()))
    assert [step.name for step in pipeline.steps] == ["decode", "resize", "callable"]


def test_as_pipeline_takes_whatever_a_user_passes():
    pipeline = Compose([T.Resize(9)])
    assert as_pipeline(None) == Compose([])
    assert as_pipeline(pipeline) is pipeline
    assert as_pipeline(T.Resize(9)) == pipeline
    assert as_pipeline([T.Resize(9)]) == pipeline
    assert as_pipeline((v2.Resize(9),)) == pipeline
    assert as_pipeline(v1.Compose([v1.Resize(9)])) == pipeline
    assert as_pipeline(torch.relu).steps[1].name == "callable"


@pytest.mark.parametrize("value", [3, "resize", {"size": 9}], ids=str)
def test_as_pipeline_refuses_the_rest(value):
    with pytest.raises(WrongUse, match="neither a transform nor callable"):
        as_pipeline(value)


def test_from_torchvision_wants_torchvision():
    with pytest.raises(WrongUse, match="is not a transform of torchvision"):
        from_torchvision(T.Resize(9))
