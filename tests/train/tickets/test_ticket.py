"""A slim model on disk and in a registry: code, a manifest and safetensors make it again."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headwater as hw
from headwater import transforms as T
from headwater.errors import ModelError, ModelNotFound, ModelRefused, WrongUse
from headwater.models import Registry
from headwater.models.export import export
from headwater.models.runtime import Engine
from headwater.models.split import split
from headwater.models.version import digest_of
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
    again = make("VGG", seed=3)
    for _ in range(2):  # a model that is slim already takes them too
        hw.load_ticket(tmp_path, again)
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


def wide(inner: int, seed: int = 0) -> nn.Module:
    """Two models of different `inner` are alike once both are slim."""
    torch.manual_seed(seed)
    widths = (3, 8, inner, 8)
    layers = [
        nn.Sequential(nn.Conv2d(before, after, 3, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        for before, after in pairwise(widths)
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def test_a_dense_model_of_other_widths_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    dense = wide(32)
    with torch.no_grad():
        dense.get_submodule("1.1").weight[::2] = 0  # type: ignore[index]
    model, ticket = slimmed(dense, 0.4)
    ticket.save(tmp_path, model)
    for inner in (64, 40):
        other = wide(inner)
        before = repr(other)
        with pytest.raises(
            ModelRefused, match=rf"^1\.\S+ is \({inner}.* and was \(32.* in the one that was made"
        ):
            hw.load_ticket(tmp_path, other)
        assert repr(other) == before
    assert hw.load_ticket(tmp_path, wide(32, seed=3)).shape == ticket.shape


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for name, ratio in (("one", 0.5), ("two", 0.3)):
        model, ticket = make_slim("VGG", ratio)
        ticket.save(tmp_path / name, model)
    (tmp_path / "one" / "weights.safetensors").write_bytes(
        (tmp_path / "two" / "weights.safetensors").read_bytes()
    )
    with pytest.raises(ModelRefused, match="are not those of its manifest"):
        hw.load_ticket(tmp_path / "one", make("VGG"))


def modules(numbers: dict[str, object]) -> dict[str, Any]:
    return {"shape": {"modules": {"0.0": numbers}, "tensors": {}, "dense": {}}}


def tensors(*edges: int) -> dict[str, Any]:
    dense = {"0.0.weight": (16, 3, 3, 3)}
    return {"shape": {"modules": {}, "tensors": {"0.0.weight": edges}, "dense": dense}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "has format 2"),
        ({"plan": {}}, "missing required field"),
        ({"more": 1}, "unknown field `more`"),
        (modules({"out_channels": 10**9}), r"0\.0\.out_channels is 1000000000 in the file and 16"),
        (modules({"training": 1}), r"0\.0\.training is 1 in the file and True"),
        (modules({"forward": 1}), r"0\.0\.forward is 1 in the file and None"),
        (tensors(10**9, 3, 3, 3), r"0\.0\.weight is \(1000000000, 3, 3, 3\) in the file"),
        (tensors(-1, 3, 3, 3), r"0\.0\.weight is \(-1, 3, 3, 3\) in the file"),
        (tensors(4), r"0\.0\.weight is \(4,\) in the file"),
        ({"shape": {"modules": {}, "tensors": {}, "dense": {}}}, "in the file and .* in the model"),
        ({"shape": {"modules": {}, "tensors": {}}}, "missing required field `dense`"),
        (
            {"shape": {"modules": {}, "tensors": {}, "dense": {"0.0.bias": [1]}}},
            "dense shapes of other tensors",
        ),
        ({"plan": {"step": -3}}, "step -3"),
        ({"plan": {"ratio": 7.0}}, r"ratio 7\.0"),
        ({"plan": {"keep": "0" * 18}}, r"layers of \(0, 0, 0\) channels"),
        ({"before": {"parameters": 1}}, r"Cost\(parameters=1, .* the slim model has"),
        ({"after": {"parameters": 1}}, r"Cost\(parameters=1, .* the slim model has"),
        ({"after": {"macs": -1}}, r"macs=-1\)"),
        ({"after": {"macs": 10**9}}, r"macs=1000000000\)"),
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Although its digest is right."""
    model, ticket = make_slim("VGG")
    ticket.save(tmp_path, model)
    edit(tmp_path / "ticket.json", change, seal=True)
    check_refused(tmp_path, match=reason)


@pytest.mark.parametrize(
    "change",
    [
        modules({"out_channels": 3}),
        modules({"kernel_size": [1, 1]}),
        {"plan": {"reason": "because"}},
        {"plan": {"step": 2}},
        {"after": {"macs": 1}},
        {"digest": ""},
    ],
    ids=str,
)
def test_a_manifest_that_was_edited_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    model, ticket = make_slim("VGG")
    ticket.save(tmp_path, model)
    edit(tmp_path / "ticket.json", change, seal=False)
    check_refused(tmp_path, match="is not as it was written: its digest is another")


def edit(path: Path, change: dict[str, Any], *, seal: bool) -> None:
    """Put values in the place of others, `shape` as a whole; with `seal` under the digest that they have."""
    manifest = json.loads(path.read_text())
    for key, value in change.items():
        deep = key in ("plan", "before", "after") and value
        manifest[key] = {**manifest[key], **value} if deep else value
    if seal:
        rest = {key: value for key, value in manifest.items() if key != "digest"}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        manifest["digest"] = digest_of(text.encode())
    path.write_text(json.dumps(manifest))


def check_refused(folder: Path, *, match: str) -> None:
    dense = make("VGG")
    shapes, said = {name: value.shape for name, value in dense.state_dict().items()}, repr(dense)
    with pytest.raises(ModelRefused, match=match):
        hw.load_ticket(folder, dense)
    assert {name: value.shape for name, value in dense.state_dict().items()} == shapes
    assert repr(dense) == said


def test_the_digest_is_that_of_the_rest(tmp_path: Path) -> None:
    model, ticket = make_slim("VGG")
    ticket.save(tmp_path, model)
    saved = (tmp_path / "ticket.json").read_text()
    edit(tmp_path / "ticket.json", {}, seal=True)
    assert json.loads((tmp_path / "ticket.json").read_text()) == json.loads(saved)
    hw.load_ticket(tmp_path, make("VGG"))


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


@pytest.mark.parametrize("inside", ["", "deep"])
def test_a_file_where_the_folder_should_be_is_refused_and_kept(inside: str, tmp_path: Path) -> None:
    model, ticket = make_slim("VGG")
    (tmp_path / "file").write_text("kept")
    with pytest.raises(WrongUse, match=r"file.* is no folder, or lies in a file; give a folder"):
        ticket.save(tmp_path / "file" / inside, model)
    assert (tmp_path / "file").read_text() == "kept"


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
