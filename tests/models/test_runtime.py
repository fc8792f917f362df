"""The engine: any batch from any thread, labels with scores and margins, and no file in reach."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from exports import coloured, exported_inside, exported_plain, fitted, normalised
from headwater.errors import ModelError, ModelRefused, WrongUse
from headwater.models.export import Exported
from headwater.models.model import Model
from headwater.models.runtime import CHUNK, Engine, decide, make_head


def changed(model: Model, name: str, array: NDArray[Any] | None) -> Model:
    """The model with another tensor of this name, or without one."""
    tensors = {key: value for key, value in model.tensors.items() if key != name}
    return replace(model, tensors=tensors | ({} if array is None else {name: array}))


def test_pixels_and_normalised_floats_give_the_same_features() -> None:
    engine = Engine(exported_plain().model)
    pixels, _ = coloured(5)
    np.testing.assert_allclose(
        engine.features(pixels), engine.features(normalised(pixels).numpy()), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("count", [0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_a_batch_may_have_any_size(count: int) -> None:
    engine = Engine(exported_plain().model)
    pixels, _ = coloured(2 * CHUNK + 3)
    features = engine.features(pixels[:count])
    assert features.shape == (count, engine.width)
    assert features.dtype == np.float32
    alone = [engine.features(image[None])[0] for image in pixels[:count]]
    np.testing.assert_allclose(features, np.array(alone).reshape(features.shape), atol=1e-5)
    found = engine.classify(pixels[:count])
    assert len(found) == len(found.scores) == len(found.margins) == count


def test_images_may_lie_in_memory_as_they_like() -> None:
    engine = Engine(exported_plain().model)
    pixels, _ = coloured(4)
    flipped = pixels[:, :, ::-1]
    np.testing.assert_array_equal(engine.features(flipped), engine.features(flipped.copy()))


def test_labels_are_those_of_the_images() -> None:
    pixels, labels = coloured(200, seed=5)
    found = Engine(fitted(), threads=2).classify(pixels)
    assert (found.labels == labels).mean() > 0.95
    assert found.labels.dtype == np.int32
    assert found.scores.dtype == found.margins.dtype == np.float32


def test_a_graph_for_a_head_gives_logits_for_halves_too() -> None:
    engine = Engine(exported_inside().model)
    pixels, _ = coloured(CHUNK + 2)
    features = engine.features(pixels)
    assert engine.logits(features).shape == (CHUNK + 2, 5)
    np.testing.assert_allclose(engine.logits(features.astype(np.float16)), engine.logits(features), atol=0.05)


@pytest.mark.parametrize("exported", [exported_plain, exported_inside], ids=["linear", "graph"])
def test_a_head_alone_gives_the_logits_of_the_engine(exported: Callable[[], Exported]) -> None:
    model = exported().model
    engine = Engine(model)
    features = engine.features(coloured(4)[0])
    np.testing.assert_array_equal(make_head(model).run(features), engine.logits(features))


def test_many_threads_may_call_one_engine() -> None:
    engine = Engine(exported_plain().model, threads=2)
    pixels, _ = coloured(64)
    wanted = engine.features(pixels)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: engine.features(pixels[place : place + 8]), range(0, 56, 4)))
        floats = list(pool.map(lambda _: engine.features(normalised(pixels[:2]).numpy()), range(8)))
    for place, features in zip(range(0, 56, 4), found, strict=True):
        np.testing.assert_allclose(features, wanted[place : place + 8], atol=1e-5)
    assert all(np.array_equal(features, floats[0]) for features in floats)


def test_scores_are_a_softmax_and_margins_differences_of_logits() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (50, 7)).astype(np.float32)
    found = decide(logits)
    shares = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True)
    ordered = np.sort(logits, axis=1)
    np.testing.assert_array_equal(found.labels, shares.argmax(axis=1))
    np.testing.assert_allclose(found.scores, shares.max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(found.margins, ordered[:, -1] - ordered[:, -2])


def test_huge_logits_do_not_overflow() -> None:
    found = decide(np.array([[1e4, -1e4, 0], [-1e30, -1e30, -1e30]], np.float32))
    np.testing.assert_array_equal(found.scores, np.array([1, 1 / 3], np.float32))
    np.testing.assert_array_equal(found.margins, [1e4, 0])


def test_one_class_has_no_rival() -> None:
    found = decide(np.array([[3.0]], np.float32))
    assert (found.labels[0], found.scores[0], found.margins[0]) == (0, 1, np.inf)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_no_label(bad: float) -> None:
    model = exported_plain().model
    bias = model.tensors["head/bias"].copy()
    bias[2] = bad
    with pytest.raises(ModelError, match="not finite"):
        Engine(changed(model, "head/bias", bias)).classify(coloured(2)[0])


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 31, 32, 3), np.uint8),
        np.zeros((2, 3, 32, 32), np.uint8),
        np.zeros((32, 32, 3), np.uint8),
        np.zeros((2, 32, 32, 3), np.float32),
        np.zeros((2, 3, 32, 32), np.float64),
    ],
    ids=lambda images: f"{images.dtype} {images.shape}",
)
def test_other_images_are_refused_with_their_shape(images: NDArray[Any]) -> None:
    with pytest.raises(ModelError, match=r"are \w+ \(.*the model takes tensor"):
        Engine(exported_plain().model).features(images)


def test_features_of_another_width_are_refused() -> None:
    with pytest.raises(ModelError, match="takes n x 24"):
        Engine(exported_plain().model).logits(np.zeros((2, 23), np.float32))


def test_a_name_makes_no_layer_int8() -> None:
    model = exported_plain().model
    whole = onnx.load_from_string(model.trunk)
    whole.graph.name = "DequantizeLinear"
    assert Engine(replace(model, trunk=whole.SerializeToString())).precision == "fp32"


def test_an_engine_needs_a_thread() -> None:
    with pytest.raises(WrongUse, match="threads=0"):
        Engine(exported_plain().model, threads=0)


def test_a_tensor_that_is_missing_or_of_another_shape_is_refused_by_name() -> None:
    model = exported_plain().model
    with pytest.raises(ModelRefused, match=r"3\.weight"):
        Engine(changed(model, "trunk/3.weight", None))
    with pytest.raises(ModelRefused, match=r"3\.weight"):
        Engine(changed(model, "trunk/3.weight", np.zeros((16, 8, 1, 1), np.float32)))


def test_a_file_of_the_right_name_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = exported_plain().model
    pixels, _ = coloured(3)
    wanted = Engine(model).features(pixels)
    (tmp_path / "registry").write_bytes(bytes(1 << 20))
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(Engine(model).features(pixels), wanted)
    with pytest.raises(ModelRefused):
        Engine(changed(model, "trunk/3.weight", None))


def test_tensors_that_may_not_be_written_to_will_do() -> None:
    model = exported_plain().model
    locked = {name: array.copy() for name, array in model.tensors.items()}
    for array in locked.values():
        array.flags.writeable = False
    pixels, _ = coloured(2)
    found = Engine(replace(model, tensors=locked)).features(pixels)
    np.testing.assert_array_equal(found, Engine(model).features(pixels))
