"""A proxy for an FPGA: 1-bit weights, 2-bit activations, 4-bit residuals, 8 bits at both ends.

NeSSA (HotStorage 2023) scores samples inside of a drive with such a network, a ResNet-50 by FINN. This one is
small; Brevitas trains it in the user's own loop, and it leaves as QONNX, the format that FINN reads.

All scales are powers of two, and the graph has batch norms as a product and a sum. So every sum of products
is exact in float32, in whatever order it is made, everything else is rounded as IEEE says, and the graph
gives the logits of torch to the bit; with free scales none of 50 images had equal logits.
"""

from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headwater.errors import MissingExtra, ModelError, WrongUse
from headwater.models.layers import probe

Floats = NDArray[np.float32]

ENDS, RESIDUALS, ACTIVATIONS = 8, 4, 2
"""Bits of the first and last layer and what they take, of what goes past a block, of what goes through it."""
_BINARY = 2.0**-4
"""What a weight is, or less that: batch norms undo it, so it only bounds what an optimiser moves."""
_STRIDES = (1, 2, 2)
_SETTLING = 50
"""Steps of training in which scales of activations follow what is seen; afterwards they are learned."""
_CHECKED = 4
"""Images of noise that the graph is run on: a session for each of its nodes makes that slow."""


def binary_proxy(classes: int, *, width: int = 32) -> nn.Module:
    """Images (n, 3, height, width), normalised, to logits (n, classes); `width` channels, later four times.

    It sees every second pixel's surroundings, then has three residual blocks, of which two halve the edges.
    Raises `MissingExtra` without Brevitas.
    """
    if classes < 1 or width < 1:
        raise WrongUse(f"classes={classes} and width={width} must be at least 1")
    blocks, channels = [], width
    for place, stride in enumerate(_STRIDES):
        blocks.append(_Block(channels, width << place, stride))
        channels = width << place
    return nn.Sequential(
        _signed(ENDS),
        _first_layer(width),
        nn.BatchNorm2d(width),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        _signed(ENDS),
        _last_layer(channels, classes),
    )


def packed_bytes(module: nn.Module) -> int:
    """What the weights of Brevitas' layers take, each in its bits, every layer in whole bytes.

    Biases and the two numbers that a batch norm has for a channel count as 32 bits each.
    """
    total = 0
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            total += 8 * part.num_features
        elif hasattr(part, "quant_weight"):
            total += _layer_bytes(part)
    return total


def export_qonnx(module: nn.Module, path: str | os.PathLike[str], size: int) -> None:
    """Write a module of Brevitas' layers as QONNX, for one image (1, 3, size, size) at a time.

    The module is not changed. The graph is run by qonnx on a few images before it is written. Raises
    `ModelError` if it cannot be made, or any logit is not exactly that of torch with its batch norms as
    products and sums, and `MissingExtra`.
    """
    net = copy.deepcopy(module).cpu().eval()  # an export that fails leaves a net that no longer runs
    _make_affine(net)
    images = probe(_CHECKED, (3, size, size))
    with torch.no_grad():
        logits: Floats = net(images).numpy()
    graph = _to_graph(net, images[:1])
    made = np.concatenate([_execute(graph, image[None]) for image in images.numpy()])
    _check_equal(made, logits)
    partial = Path(path).with_name(f"{Path(path).name}.part")
    graph.save(str(partial))
    partial.replace(path)


class _Block(nn.Module):
    """Two binary convolutions, past which the input goes, by a third one where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.before = _unsigned(ACTIVATIONS)
        self.through = nn.Sequential(
            _binary_layer(inputs, outputs, 3, stride),
            nn.BatchNorm2d(outputs),
            _unsigned(ACTIVATIONS),
            _binary_layer(outputs, outputs, 3, 1),
            nn.BatchNorm2d(outputs),
        )
        self.past: nn.Sequential | None = None
        if stride > 1 or inputs != outputs:
            layers = _binary_layer(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            self.past = nn.Sequential(*layers)
        # one scale for both, for an FPGA adds integers
        self.added = _signed(RESIDUALS)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        active = self.before(images)
        past = images if self.past is None else self.past(active)
        return self.added(past) + self.added(self.through(active))  # type: ignore[no-any-return]


class _Affine(nn.Module):
    """A batch norm in two operations: torch's own and ONNX Runtime's differ in the last bit of a third."""

    factor: torch.Tensor
    shift: torch.Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, variance = norm.running_mean.double(), norm.running_var.double()
        factor = (variance + norm.eps).rsqrt()
        shift = -mean * factor
        if norm.affine:
            factor, shift = factor * norm.weight, shift * norm.weight + norm.bias
        self.register_buffer("factor", factor.detach().float()[:, None, None])
        self.register_buffer("shift", shift.detach().float()[:, None, None])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images * self.factor + self.shift


def _make_affine(net: nn.Module) -> None:
    """Put two operations in the place of every batch norm."""
    for name, part in list(net.named_modules()):
        if isinstance(part, nn.BatchNorm2d) and part.track_running_stats:
            net.set_submodule(name, _Affine(part))


def _binary_layer(inputs: int, outputs: int, edge: int, stride: int) -> Any:
    tools = _brevitas()
    return tools.nn.QuantConv2d(
        inputs,
        outputs,
        edge,
        stride=stride,
        padding=edge // 2,
        bias=False,
        weight_quant=tools.binary,
        weight_scaling_const=_BINARY,
    )


def _first_layer(outputs: int) -> Any:
    tools = _brevitas()
    return tools.nn.QuantConv2d(
        3,
        outputs,
        3,
        stride=2,
        padding=1,
        bias=False,
        weight_quant=tools.weights,
        weight_bit_width=ENDS,
    )


def _last_layer(inputs: int, classes: int) -> Any:
    tools = _brevitas()
    return tools.nn.QuantLinear(
        inputs, classes, bias=True, weight_quant=tools.weights, weight_bit_width=ENDS, bias_quant=tools.bias
    )


def _unsigned(bits: int) -> Any:
    tools = _brevitas()
    return tools.nn.QuantReLU(act_quant=tools.unsigned, bit_width=bits, collect_stats_steps=_SETTLING)


def _signed(bits: int) -> Any:
    """With its scale, of which the bias of the last layer makes its own."""
    tools = _brevitas()
    return tools.nn.QuantIdentity(
        act_quant=tools.signed,
        bit_width=bits,
        collect_stats_steps=_SETTLING,
        return_quant_tensor=bits == ENDS,
    )


def _brevitas() -> SimpleNamespace:
    """Layers and quantisers, with scales that are powers of two."""
    try:
        with warnings.catch_warnings(action="ignore"):
            from brevitas import nn as layers
            from brevitas.quant import binary, fixed_point, scaled_int
    except ImportError as error:
        raise MissingExtra(f"a binary proxy needs {error.name}; pip install 'headwater[fpga]'") from error
    return SimpleNamespace(
        nn=layers,
        binary=binary.SignedBinaryWeightPerTensorConst,
        weights=fixed_point.Int8WeightPerTensorFixedPoint,
        unsigned=fixed_point.Uint8ActPerTensorFixedPoint,
        signed=fixed_point.Int8ActPerTensorFixedPoint,
        bias=scaled_int.Int32Bias,
    )


def _to_graph(net: nn.Module, image: torch.Tensor) -> Any:
    """What qonnx runs; `net` is not to be used any more."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import onnxoptimizer  # noqa: F401 - Brevitas would name no package if it is missing
            from brevitas.export import export_qonnx
            from qonnx.core.modelwrapper import ModelWrapper
            from qonnx.transformation.infer_shapes import InferShapes
    except ImportError as error:
        raise MissingExtra(f"the export needs {error.name}; pip install 'headwater[fpga]'") from error
    names = {"input_names": ["images"], "output_names": ["logits"], "keep_initializers_as_inputs": False}
    try:
        with warnings.catch_warnings(action="ignore"):
            found = export_qonnx(net, args=image, dynamo=False, **names)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"Brevitas cannot export the module: {reason}") from error
    return ModelWrapper(found).transform(InferShapes())


def _execute(graph: Any, image: Floats) -> Floats:
    from qonnx.core.onnx_exec import execute_onnx

    with warnings.catch_warnings(action="ignore"):
        logits: Floats = execute_onnx(graph, {"images": image})["logits"]
    return logits


def _check_equal(made: Floats, logits: Floats) -> None:
    differences = np.abs(made - logits).max(axis=1)
    wrong = int((differences != 0).sum())
    if wrong:
        raise ModelError(
            f"the graph differs from torch by up to {differences.max():.2g} on {wrong} of {len(logits)} "
            "images of noise; give every quantiser a scale that is a power of two, as binary_proxy does"
        )


def _layer_bytes(layer: Any) -> int:
    bits: int = layer.weight.numel() * int(layer.quant_weight().bit_width)
    return -(-bits // 8) + (0 if layer.bias is None else 4 * layer.bias.numel())
