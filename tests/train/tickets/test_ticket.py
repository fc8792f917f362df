"""A slim model on disk and in a registry: code, a manifest and safetensors make it again."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import headwater as hw
from headwater import transforms as T
from headwater.errors import ModelError, ModelNotFound, ModelRefused
from headwater.models import Registry
from headwater.models.export import export
from headwater.models.runtime import Engine
from headwater.models.split import split
from headwater.plan.prune import SettledMask
from headwater.train.tickets import Ticket
from prunable import CLASSES, KINDS, SIZE, images, make

STEPS = T.Compose(
    [T.Resize(SIZE), T.CenterCrop(SIZE), T.ToDtype("float32", scale=True), T.Normalize([0.5] * 3, [0.25] * 3)]
)
NAMES = [f"kind {number}" for number in range(CLASSES)]


def make_slim(kind: str, ratio: float = 0.5) -> tuple[nn.Module, Ticket]:
    return slimmed(make(kind), ratio)


def slimmed(model: nn.Module, ratio: float = 0.5) -> tuple[nn.Module, Ticket]:
    rule = SettledMask(deadline=1e-9, every=1)
    bird = hw.EarlyBird(model, ratio=ratio, steps=10, rule=rule, round_to=1, example=images(1))
    assert bird.observe(lr=0.1)
    return model, bird.slim(None, [images(32)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_slim_model_comes_back_from_code_manifest_and_weights(kind: str, tmp_path: Path) -> None:
    model, ticket = make_slim(kind)
    ticket.save(tmp_path / "slim", model)
    assert sorted(file.name for file in (tmp_path / "slim").iterdir()) == [
        "ticket.json",
        "weights.safetensors",
    ]
    again = make(kind, seed=7)
    optimizer = torch.optim.SGD(again.parameters(), 0.1)
    loaded = hw.load_ticket(tmp_path / "slim", again)
    assert loaded.plan.to_dict() == ticket.plan.to_dict()
    assert (loaded.shape, loaded.before, loaded.after) == (ticket.shape, ticket.before, ticket.after)
    with torch.no_grad():
        assert torch.equal(again.eval()(images()), model.eval()(images()))
    before = next(again.parameters()).detach().clone()
    again.train()(images()).square().sum().backward()
    optimizer.step()  # made before: its parameters are still those of the model
    assert not torch.equal(before, next(again.parameters()))


def test_weights_of_later_are_saved_with_the_same_manifest(tmp_path: Path) -> None:
    model, ticket = make_slim("VGG")
    ticket.save(tmp_path, model)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    ticket.save(tmp_path, model)
    hw.load_ticket(tmp_path, again := make("VGG", seed=3))
    assert torch.equal(next(again.parameters()), next(model.parameters()))


class Aliased(nn.Module):
    """Layers by a second name too, as a list of stages beside the stages."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.body = make("VGG", seed)
        self.first, self.again = self.body.get_submodule("0"), nn.ModuleList([self.body])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.again[0](x)
        return logits


def test_a_model_of_which_layers_have_several_names_comes_back(tmp_path: Path) -> None:
    model, ticket = slimmed(Aliased())
    ticket.save(tmp_path, model)
    again = Aliased(seed=7)
    assert hw.load_ticket(tmp_path, again).shape == ticket.shape
    assert torch.equal(again.eval()(images()), model.eval()(images()))


def test_a_model_that_it_was_not_made_of_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    model, ticket = make_slim("VGG")
    ticket.save(tmp_path, model)
    other = make("ResNet, basic")
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ModelRefused, match="in the file and None in the model"):
        hw.load_ticket(tmp_path, other)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    with pytest.raises(ModelRefused, match="in the file"):
        hw.load_ticket(tmp_path, nn.Sequential(make("VGG"), nn.Linear(5, 5)))


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for name, ratio in (("one", 0.5), ("two", 0.3)):
        model, ticket = make_slim("VGG", ratio)
        ticket.save(tmp_path / name, model)
    (tmp_path / "one" / "weights.safetensors").write_bytes(
        (tmp_path / "two" / "weights.safetensors").read_bytes()
    )
    with pytest.raises(ModelRefused, match="are not those of its manifest"):
        hw.load_ticket(tmp_path / "one", make("VGG"))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"plan": {}},
        {"more": 1},
        {"shape": {"modules": {"0.0": {"out_channels": 10**9}}, "tensors": {}}},
        {"shape": {"modules": {"0.0": {"training": 1}}, "tensors": {}}},
        {"shape": {"modules": {"0.0": {"forward": 1}}, "tensors": {}}},
        {"shape": {"modules": {}, "tensors": {"0.0.weight": [10**9, 3, 3, 3]}}},
        {"shape": {"modules": {}, "tensors": {"0.0.weight": [-1, 3, 3, 3]}}},
        {"shape": {"modules": {}, "tensors": {"0.0.weight": [4]}}},
        {"shape": {"modules": {}, "tensors": {}}},
    ],
    ids=str,
)
def test_a_manifest_that_was_altered_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    model, ticket = make_slim("VGG")
    ticket.save(tmp_path, model)
    manifest = json.loads((tmp_path / "ticket.json").read_text())
    (tmp_path / "ticket.json").write_text(json.dumps({**manifest, **change}))
    dense = make("VGG")
    shapes = {name: value.shape for name, value in dense.state_dict().items()}
    with pytest.raises(ModelRefused):
        hw.load_ticket(tmp_path, dense)
    assert {name: value.shape for name, value in dense.state_dict().items()} == shapes


def test_what_is_not_there_or_cut_short_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"ticket\.json"):
        hw.load_ticket(tmp_path, make("VGG"))
    model, ticket = make_slim("VGG")
    ticket.save(tmp_path, model)
    for name in ("weights.safetensors", "ticket.json"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(ModelRefused):
            hw.load_ticket(tmp_path, make("VGG"))
        (tmp_path / name).write_bytes(content)


def test_half_floats_that_are_not_kept_are_refused(tmp_path: Path) -> None:
    model, ticket = make_slim("VGG")
    with pytest.raises(ModelError, match=r"bfloat16, which is not kept; call model\.float\(\)"):
        ticket.save(tmp_path, model.bfloat16())


@pytest.mark.parametrize("kind", ["VGG", "ResNet, basic", "MobileNet, depthwise"])
def test_a_slim_model_is_a_version_beside_its_dense_parent(kind: str, tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    dense = make(kind).eval()
    parent = registry.put(
        export(split(dense, image_size=SIZE), classes=NAMES, steps=STEPS).model, name="photos", switch=True
    )
    model, ticket = make_slim(kind)
    version = ticket.publish(
        registry,
        model,
        name="photos",
        classes=NAMES,
        steps=STEPS,
        parent=parent.digest,
        data="d",
        switch=True,
    )
    assert registry.current("photos").digest == version.digest
    assert version.parent == parent.digest
    assert version.nbytes < 0.6 * parent.nbytes
    assert (version.made["by"], version.made["data"]) == ("early ticket", "d")
    assert version.made["macs"] == [ticket.before.macs, ticket.after.macs]
    engine, pixels = (
        Engine(registry.get("photos")),
        np.random.default_rng(0).integers(0, 256, (4, SIZE, SIZE, 3), np.uint8),
    )
    found = engine.logits(engine.features(pixels))
    scaled = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    with torch.no_grad():
        assert np.abs(found - model.eval()(scaled).numpy()).max() < 1e-4
    assert registry.rollback("photos").digest == parent.digest
