"""An exported model is the torch model: logits, names of parameters, mode; and nothing else comes along."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

import headwater as hw
from exports import coloured, exported_inside, exported_plain, logits_of, steps
from headwater import transforms as T
from headwater.errors import ModelError, ModelRefused, WrongUse
from headwater.models.export import TOLERANCE, Exported, export, export_head
from headwater.models.registry import Registry
from headwater.models.runtime import Engine, Session
from headwater.models.trial import try_out
from nets import CLASSES, SIZE, Attentive, Between, Encoder, Moody, Picky, Residual, plain


def operators(graph: bytes) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(graph).graph.node}


@pytest.mark.parametrize(
    ("exported", "model"), [(exported_plain, plain), (exported_inside, Residual)], ids=["plain", "inside"]
)
def test_the_model_gives_the_logits_of_torch(
    exported: Callable[[], Exported], model: type[nn.Module]
) -> None:
    found = exported()
    engine = Engine(found.model)
    pixels, _ = coloured(7)
    logits = engine.logits(engine.features(pixels))
    np.testing.assert_allclose(logits, logits_of(model(), pixels), atol=1e-4)
    assert 0 < found.difference < TOLERANCE


@pytest.mark.parametrize("net", [Attentive, Encoder])
def test_a_model_of_attention_is_pushed_and_run(net: type[nn.Module], tmp_path: Path) -> None:
    """Through all that a user's model goes through, and back as another process would read it."""
    pixels, _ = coloured(7)
    found = export(hw.split(net(), image_size=SIZE), classes=CLASSES, steps=steps())
    try_out(found.model)
    Registry(tmp_path).put(found.model, name="attentive", switch=True)
    engine = Engine(Registry(tmp_path).get("attentive"))
    assert "Softmax" in operators(found.model.trunk)
    assert (found.model.head, found.model.check()) == (None, 16)
    for some in (pixels, pixels[:1]):
        logits = engine.logits(engine.features(some))
        np.testing.assert_allclose(logits, logits_of(net(), some), atol=1e-4)


WORKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "DepthToSpace": lambda x: functional.pixel_shuffle(functional.pixel_unshuffle(x, 2), 2),
    "Greater": functional.softplus,
    "Trilu": torch.tril,
}


@pytest.mark.parametrize("operator", WORKS)
def test_less_usual_layers(operator: str) -> None:
    found = export(hw.split(Between(WORKS[operator]), image_size=SIZE), classes=CLASSES, steps=steps()).model
    assert operator in operators(found.trunk)
    engine, (pixels, _) = Engine(found), coloured(5)
    logits = engine.logits(engine.features(pixels))
    np.testing.assert_allclose(logits, logits_of(Between(WORKS[operator]), pixels), atol=1e-4)


def test_a_batch_whose_size_is_a_number_is_refused_with_what_to_write() -> None:
    """`len` gives the size that the exporter happens to try."""
    net = Between(lambda x: x.reshape(len(x), 16, 8, 8))
    with pytest.raises(ModelRefused, match=r"fixed to 3 images; .* in torch, x\.shape\[0\] and not len\(x\)"):
        export(hw.split(net, image_size=SIZE), classes=CLASSES, steps=steps())


def test_batch_norms_are_folded_and_names_kept() -> None:
    model = exported_plain().model
    assert "BatchNormalization" not in operators(model.trunk)
    assert {"trunk/0.weight", "trunk/3.weight", "trunk/6.weight"} <= set(model.tensors)
    np.testing.assert_array_equal(model.tensors["head/weight"], plain()[-1].weight.detach())


def test_a_head_that_is_not_linear_is_a_graph() -> None:
    model = exported_inside().model
    assert exported_plain().model.head is None
    assert model.head is not None
    assert any(name.startswith("head/layer2.0.first") for name in model.tensors)
    assert not any("layer2" in name for name in model.tensors if name.startswith("trunk/"))
    assert model.check() == 8 * 16 * 16


def test_the_same_model_makes_the_same_bytes_and_tells_nothing_of_the_machine() -> None:
    one, two = (
        exported_plain().model,
        export(hw.split(plain(), image_size=SIZE), classes=CLASSES, steps=steps()),
    )
    assert one.trunk == two.model.trunk
    assert one.facts == two.model.facts
    for word in (b".py", b"/home", b"headwater", b"nets", torch.__version__.encode()):
        assert word not in one.trunk


def test_the_graph_is_small_and_its_tensors_are_outside() -> None:
    model = exported_plain().model
    assert len(model.trunk) < 10_000
    outside = [tensor for tensor in onnx.load_from_string(model.trunk).graph.initializer if tensor.raw_data]
    assert all(len(tensor.raw_data) <= 64 for tensor in outside)


def test_modes_are_as_before_and_training_on_does_not_change_the_model() -> None:
    torch_model = plain()
    parts = hw.split(torch_model, image_size=SIZE)
    parts.head.train()
    found = export(parts, classes=CLASSES, steps=steps()).model
    assert parts.head.training
    assert not any(layer.training for layer in parts.frozen.modules())
    before = found.tensors["head/bias"].copy()
    with torch.no_grad():
        torch_model[-1].bias += 1
    np.testing.assert_array_equal(found.tensors["head/bias"], before)


def test_a_linear_layer_without_bias_gets_one_of_zeros() -> None:
    body = plain()
    body[-1] = nn.Linear(24, 2, bias=False)
    model = export(hw.split(body, image_size=SIZE), classes=["a", "b"], steps=steps()).model
    np.testing.assert_array_equal(model.tensors["head/bias"], [0, 0])


def test_a_model_that_looks_at_sizes_is_exported_too() -> None:
    found = export(hw.split(Picky(), image_size=SIZE), classes=CLASSES, steps=steps())
    assert found.difference < TOLERANCE


def test_a_head_alone_is_exported() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    ).train()
    graph, tensors = export_head(head, 6)
    assert head[1].training
    assert graph is not None
    features = torch.randn(5, 6)
    with torch.no_grad():
        wanted = head.eval()(features).numpy()
    np.testing.assert_allclose(Session(graph, tensors, threads=1).run(features.numpy()), wanted, atol=1e-5)
    graph, tensors = export_head(head[-1], 8)
    assert graph is None
    np.testing.assert_array_equal(tensors["weight"], head[-1].weight.detach())


def test_a_difference_past_the_tolerance_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"differs from torch's by .*, allowed is 0; raise `tolerance`"):
        export(hw.split(plain(), image_size=SIZE), classes=CLASSES, steps=steps(), tolerance=0.0)


def test_what_torch_cannot_export_is_named() -> None:
    parts = hw.split(plain(), image_size=SIZE)
    moody = type(parts)(Moody(), nn.Linear(4, 4), None, SIZE, parts.measure)
    with pytest.raises(ModelError, match="cannot export the layers from images to features"):
        export(moody, classes=["a", "b", "c", "d"], steps=steps())


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (CLASSES[:-1], "tells 5 classes apart, and 4 have names"),
        (("a", "a", "b", "c", "d"), "'a' is the name of more than one"),
        ("abcde", "give a list of names"),
        ([1, 2, 3, 4, 5], "give a list of names"),
    ],
)
def test_every_class_needs_a_name_of_its_own(classes: list[str], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        export(hw.split(plain(), image_size=SIZE), classes=classes, steps=steps())


@pytest.mark.parametrize(
    ("transforms", "says"),
    [
        ([T.CenterCrop(48)], "images have 48x48 and 48x48 pixels, the model takes 32x32"),
        ([T.Resize(32)], "the model takes 32x32; end with a crop"),
        ([T.CenterCrop(SIZE), lambda image: image], "is a function of yours"),
    ],
)
def test_steps_must_end_with_what_the_model_takes(transforms: list[object], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        export(hw.split(plain(), image_size=SIZE), classes=CLASSES, steps=T.Compose(transforms))  # type: ignore[arg-type]


def test_without_the_exporter_the_packages_are_named() -> None:
    program = (
        "import sys\n"
        "sys.modules['onnxscript'] = None\n"
        "import headwater as hw, nets, exports\n"
        "from headwater.errors import MissingExtra\n"
        "try:\n"
        "    exports.exported_plain()\n"
        "except MissingExtra as error:\n"
        "    sys.exit('pip install onnx onnxscript' not in str(error))\n"
        "sys.exit('it was exported')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
