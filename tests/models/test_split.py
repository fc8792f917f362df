"""Frozen layers and head together are the model, wherever it is cut; where it cannot be, it says why."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headwater as hw
from headwater.errors import ModelError, WrongUse
from headwater.models.split import Split
from nets import SIZE, InPlace, LongSkip, Moody, Picky, Residual, plain


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def assert_same(parts: Split, model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        features = parts.frozen(images())
        torch.testing.assert_close(parts.head(features), model(images()), rtol=1e-4, atol=1e-5)
    assert features.ndim == 2


@pytest.mark.parametrize("make", [plain, Residual, Picky])
def test_by_default_the_last_linear_layer_is_the_head(make: type[nn.Module]) -> None:
    model = make()
    parts = hw.split(model, image_size=SIZE)
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
    assert type(parts.head) is nn.Linear
    assert parts.head.weight is linear.weight
    assert not {id(value) for value in parts.frozen.parameters()} & {id(linear.weight), id(linear.bias)}
    assert_same(parts, model)


@pytest.mark.parametrize("at", ["stem", "layer1", "layer1.0", "layer2", "layer2.0", "pool", "dropout"])
def test_a_cut_after_any_module_is_the_model(at: str) -> None:
    model = Residual()
    parts = hw.split(model, at, image_size=SIZE)
    assert parts.at == at
    assert_same(parts, model)


def test_every_cut_point_can_be_taken() -> None:
    model = Residual()
    points = hw.split(model, image_size=SIZE).points
    assert [point.at for point in points] == ["stem", "layer1.0", "layer1", "layer2", "pool", None]
    for point in points:
        parts = hw.split(model, point.at, image_size=SIZE)
        with torch.no_grad():
            assert parts.frozen(images(2)).shape[1] * 2 == point.bytes
        assert_same(parts, model)


def test_parts_of_a_sequential_are_its_layers() -> None:
    found = hw.split(plain(), image_size=SIZE).points
    assert [point.at for point in found] == [*map(str, range(10)), None]
    assert found[0].shape == (8, SIZE // 2, SIZE // 2)


def test_seconds_move_from_one_side_to_the_other() -> None:
    points = hw.split(plain(), image_size=SIZE).points
    first, last = points[0], points[-1]
    assert 0 < first.frozen_seconds < last.frozen_seconds
    assert 0 < last.head_seconds < first.head_seconds


def test_bytes_are_compared_with_the_image() -> None:
    points = {point.at: point for point in hw.split(Residual(), image_size=SIZE, image_bytes=100).points}
    assert points["stem"].bytes == 2 * 8 * (SIZE // 2) ** 2
    assert points["stem"].ships_more
    assert points[None].bytes == 64
    assert not points[None].ships_more


def test_a_split_prints_its_cut_points() -> None:
    lines = str(hw.split(Residual(), "layer1", image_size=SIZE, image_bytes=100)).splitlines()
    assert len(lines) == 7
    assert [line for line in lines if line.startswith(">")] == [lines[3]]
    assert "layer1 " in lines[3]
    assert "more than an image of 100" in lines[3]
    assert "more than" not in lines[-1]


def test_a_linear_layer_behind_a_pooled_cut_is_still_linear() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.pool, self.fc = nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.fc(torch.flatten(self.pool(self.body(x)), 1))
            return logits

    model = Pooled()
    parts = hw.split(model, "pool", image_size=SIZE)
    assert parts.head.weight is model.fc.weight
    assert_same(parts, model)


def test_layers_after_the_linear_one_belong_to_the_head() -> None:
    model = nn.Sequential(*plain(), nn.LogSoftmax(dim=1))
    parts = hw.split(model, image_size=SIZE)
    assert type(parts.head) is not nn.Linear
    assert_same(parts, model)


def test_a_head_does_not_write_to_its_features() -> None:
    model = InPlace()
    parts = hw.split(model, "body", image_size=SIZE)
    with torch.no_grad():
        features = parts.frozen(images())
        before = features.clone()
        parts.head(features)
    assert torch.equal(features, before)
    assert (before < 0).any(), "or nothing was there to write"
    assert_same(parts, model)


def test_a_layer_with_two_results_is_no_cut_point() -> None:
    parts = hw.split(InPlace(), image_size=SIZE)
    assert [point.at for point in parts.points] == ["body", "relu", None]
    assert_same(parts, InPlace())
    with pytest.raises(ModelError, match="'twice' gives no tensor"):
        hw.split(InPlace(), "twice", image_size=SIZE)


def test_the_head_can_be_trained_and_the_model_learns_with_it() -> None:
    model = Residual().train()
    parts = hw.split(model, "layer1", image_size=SIZE)
    head = parts.head.train()
    assert any(isinstance(layer, nn.Dropout) and layer.training for layer in head.modules())
    with torch.no_grad():
        features = parts.frozen(images())
    before = model.fc.weight.detach().clone()
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1)
    nn.functional.cross_entropy(head(features), torch.arange(6) % 5).backward()
    optimiser.step()
    assert not torch.equal(model.fc.weight, before)


def test_measuring_leaves_a_head_in_training_alone() -> None:
    model = Residual()
    parts = hw.split(model, "layer1", image_size=SIZE)
    parts.head.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert len(parts.points) == 6
    assert parts.head.training
    assert all(layer.training for layer in parts.head.modules() if isinstance(layer, nn.BatchNorm2d))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_model_is_left_as_it_was() -> None:
    model = Residual().train()
    model.stem.eval()
    state, random = torch.get_rng_state(), {key: value.clone() for key, value in model.state_dict().items()}
    hw.split(model, image_size=SIZE)
    assert model.training
    assert model.layer1.training
    assert not model.stem.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, random[key]) for key, value in model.state_dict().items())
    assert not model.fc._forward_hooks


def test_a_connection_past_the_cut_is_named() -> None:
    with pytest.raises(
        ModelError, match=r"after 'layer1\.0\.first': relu is needed on both sides.*layer1\.0, l"
    ):
        hw.split(Residual(), "layer1.0.first", image_size=SIZE)
    with pytest.raises(ModelError, match="after 'body': images is needed on both sides"):
        hw.split(LongSkip(), "body", image_size=SIZE)


def test_a_long_skip_leaves_the_default() -> None:
    model = LongSkip()
    parts = hw.split(model, image_size=SIZE)
    assert [point.at for point in parts.points] == [None]
    assert_same(parts, model)


@pytest.mark.parametrize(
    ("model", "at", "kind", "says"),
    [
        (Residual, "layer9", WrongUse, "no module 'layer9'; it can be cut after stem, layer1.0, layer1"),
        (Residual, "", WrongUse, "no module ''"),
        (Residual, "relu", ModelError, "'relu' is called 2 times"),
        (Residual, "fc", ModelError, "no weights are left for the head"),
        (Picky, "body", ModelError, "control flow cannot be traced"),
        (Moody, None, ModelError, "does not end with a linear layer"),
    ],
)
def test_what_cannot_be_cut_says_why(
    model: type[nn.Module], at: str | None, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        hw.split(model(), at, image_size=SIZE)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: plain().half(), r"torch.float16.*\.float\(\)"),
        (lambda: plain()[:-2], "returns .* for two images"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3))[:1], "no linear layer"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 3)), r"does not run on images of \(3, 32, 32\)"),
    ],
)
def test_what_is_no_classifier_says_so(model: object, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        hw.split(model(), image_size=SIZE)  # type: ignore[operator]


def test_another_size_of_images_is_an_error_of_the_model() -> None:
    with pytest.raises(ModelError, match="48 pixels; give their image_size"):
        hw.split(Picky(), image_size=48)


def test_efficientnet_lite0_is_cut_between_its_blocks() -> None:
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0", image_size=64).eval()
    parts = hw.split(model, image_size=64)
    names = [point.at for point in parts.points]
    assert [f"_blocks.{place}" for place in range(16)] == [
        name for name in names if name and "blocks" in name
    ]
    assert names[-2:] == ["_avg_pooling", None]
    assert parts.points[-1].shape == (1280,)
    assert parts.head.weight is model._fc.weight
