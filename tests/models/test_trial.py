"""A model's first run: what would fail with every image is refused before it is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from graphs import FEATURES, SIZE, change, make_model, make_tensors, trunk_file, trunk_nodes, write_graph
from headwater import transforms as T
from headwater.errors import ModelRefused
from headwater.models.graph import split_tensors
from headwater.models.model import Model, strip
from headwater.models.trial import try_out


def with_steps(*steps: Any) -> Model:
    return replace(make_model(), steps=tuple(T.Compose([*steps, T.Normalize(0.45, 0.25)]).spec()))


def with_nodes(nodes: list[Any], *, images: tuple[str, list[Any]] | None = None, **constants: Any) -> Model:
    """Another trunk under the same head, of images of any size if not told."""
    model = make_model()
    data = write_graph(
        nodes,
        {**strip(make_tensors(), "trunk"), "shape": np.array([-1, FEATURES]), **constants},
        images=images or ("images", ["n", 3, "height", "width"]),
        out=("features", ["n", FEATURES]),
    )
    return replace(model, trunk=split_tensors(data)[0])


def test_a_model_that_runs_passes() -> None:
    try_out(make_model())
    try_out(with_steps(T.Resize((SIZE, SIZE))))


def test_steps_that_end_in_another_size_are_refused() -> None:
    with pytest.raises(ModelRefused, match=r"does not run on images of 9x9 pixels, as its steps leave them"):
        try_out(with_steps(T.Resize(16), T.CenterCrop(9)))


def test_steps_that_leave_an_images_own_size_pass_if_the_layers_run() -> None:
    """Data that has the right size needs no steps; what the layers say that they take is tried."""
    try_out(with_steps())
    try_out(with_nodes(trunk_nodes()))


def test_a_size_that_no_store_makes_is_refused_before_it_is_allocated() -> None:
    steps = T.Compose([T.Resize((100_000, 100_000)), T.Normalize(0.45, 0.25)]).spec()
    with pytest.raises(ModelRefused, match="takes images of 100000x100000 pixels; a store makes at most"):
        try_out(replace(with_nodes(trunk_nodes()), steps=tuple(steps)))


def test_a_graph_that_cannot_run_is_refused() -> None:
    nodes = trunk_nodes()
    nodes[1] = helper.make_node("Concat", ["a", "conv.bias"], ["b"], axis=1)
    with pytest.raises(ModelRefused, match="does not run on images"):
        try_out(replace(make_model(), trunk=split_tensors(trunk_file(nodes=nodes))[0]))


def test_layers_for_one_image_at_a_time_are_refused() -> None:
    with pytest.raises(ModelRefused):
        try_out(with_nodes(trunk_nodes(), shape=np.array([1, FEATURES])))


def test_weights_that_give_no_numbers_are_refused() -> None:
    with pytest.raises(ModelRefused, match="not finite"):
        try_out(change(make_model(), head_bias=np.full(3, np.nan, np.float32)))
