"""`hw.split`: a torch image classifier as frozen layers and a head, and where else it may be cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import fx, nn

from headwater.errors import ModelError, WrongUse
from headwater.measure.timing import least_seconds
from headwater.models.layers import Layers, probe, twin

IMAGE_BYTES = 110_000
"""A photo as it is stored: the mean of ImageNet's files."""
TOLERANCE = 1e-4
"""How far head(frozen(images)) may be from the model, as a share of the largest logit (or of 1)."""

_FEATURE_BYTES = 2  # features cross as fp16


@dataclass(frozen=True)
class CutPoint:
    """A place where a model may be cut; seconds are torch's, per image, on the machine that measured them."""

    at: str | None
    """The module after which it lies; None is the default, before the last linear layer."""
    shape: tuple[int, ...]
    """Of what crosses, for one image."""
    frozen_seconds: float
    head_seconds: float
    image_bytes: int

    @property
    def bytes(self) -> int:
        """What crosses for one image, as fp16."""
        return _FEATURE_BYTES * math.prod(self.shape)

    @property
    def ships_more(self) -> bool:
        """Whether that is more than the image itself."""
        return self.bytes > self.image_bytes


@dataclass(frozen=True, eq=False)
class Split:
    """Two modules that make up a model, in eval mode, with the model's own parameters.

    `frozen` takes images (n, 3, image_size, image_size) to (n, features); `head` takes those to logits.
    """

    frozen: nn.Module
    head: nn.Module
    at: str | None
    image_size: int
    measure: Callable[[], tuple[CutPoint, ...]]
    """What finds the cut points; it runs the model a few times."""

    @cached_property
    def points(self) -> tuple[CutPoint, ...]:
        """Every place where the model may be cut, in the order of its layers; measured on first use."""
        return self.measure()

    def __str__(self) -> str:
        """The cut points as a table; the arrow marks the one that was taken."""
        return "\n".join([_HEADER, *(_line(point, taken=point.at == self.at) for point in self.points)])


def split(
    model: nn.Module, at: str | None = None, *, image_size: int = 224, image_bytes: int = IMAGE_BYTES
) -> Split:
    """Cut a classifier after the module called `at`, or before its last linear layer.

    `image_bytes` is what an image takes to send as it is; cut points are compared with it. The model is not
    changed. Raises `WrongUse` for a module that it lacks, `ModelError` for a model that cannot be cut there,
    or that is no function from images to logits.
    """
    image, copy = (3, image_size, image_size), twin(model)
    _check_model(copy, image)
    try:
        layers = Layers.trace(copy, image)
    except ModelError:
        if at is not None:
            raise
        found = _split_untraced(copy, image_size, image_bytes)
    else:
        found = _split_traced(layers, at, image_bytes)
    _check_parts(copy, found, image)
    return found


def _split_traced(layers: Layers, at: str | None, image_bytes: int) -> Split:
    default = layers.last_linear()
    cut = _default_cut(layers, default) if at is None else _named_cut(layers, at)
    measure = partial(_points, layers, default, image_bytes)
    return Split(layers.frozen(cut).eval(), layers.head(cut).eval(), at, layers.image[-1], measure)


def _points(layers: Layers, default: fx.Node | None, image_bytes: int) -> tuple[CutPoint, ...]:
    cuts: dict[fx.Node, str | None] = dict(layers.units())
    if default is not None and layers.can_cut(default):
        cuts[default] = None
    order = [node for node in layers.graph.nodes if node in cuts]
    return tuple(_point(layers, node, cuts[node], image_bytes) for node in order)


def _point(layers: Layers, node: fx.Node, at: str | None, image_bytes: int) -> CutPoint:
    return CutPoint(at, layers.shape(node), *layers.seconds(node), image_bytes)


def _default_cut(layers: Layers, cut: fx.Node | None) -> fx.Node:
    if cut is None:
        raise ModelError(
            f"{type(layers.root).__name__} has no linear layer; say where to cut it: at={_names(layers)}"
        )
    _check_cut(layers, cut, "before the last linear layer")
    return cut


def _named_cut(layers: Layers, at: str) -> fx.Node:
    if at not in dict(layers.root.named_modules()) or not at:
        raise WrongUse(
            f"{type(layers.root).__name__} has no module {at!r}; it can be cut after {_names(layers)}"
        )
    nodes = layers.results.get(at, [])
    if len(nodes) != 1:
        times = f"is called {len(nodes)} times" if nodes else "gives no tensor, or is not called"
        raise ModelError(f"{at!r} {times}; cut after a module that is called once: {_names(layers)}")
    _check_cut(layers, nodes[0], f"after {at!r}")
    return nodes[0]


def _check_cut(layers: Layers, cut: fx.Node, where: str) -> None:
    others = layers.also_cross(cut)
    if others:
        raise ModelError(
            f"cannot be cut {where}: {', '.join(others)} is needed on both sides (a skip connection); "
            f"cut after {_names(layers)}"
        )
    if not layers.can_cut(cut):
        raise ModelError(
            f"cannot be cut {where}: no weights are left for the head, or what crosses has no row per image; "
            f"cut after {_names(layers)}"
        )


def _names(layers: Layers) -> str:
    return ", ".join(layers.units().values())


def _split_untraced(model: nn.Module, image_size: int, image_bytes: int) -> Split:
    """The last linear layer taken off a model that cannot be traced, if its result is the model's."""
    images, calls = probe(2, (3, image_size, image_size)), []
    hooks = [
        module.register_forward_hook(lambda _, given, result, name=name: calls.append((name, given, result)))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    logits = _run(model, images)
    for hook in hooks:
        hook.remove()
    if not calls or calls[-1][2] is not logits:
        raise ModelError(
            f"{type(model).__name__} does not end with a linear layer, and its control flow cannot be "
            "traced; let it return the logits of an nn.Linear"
        )
    name, (features, *_), _ = calls[-1]
    head = model.get_submodule(name)
    frozen = twin(model)
    frozen.set_submodule(name, nn.Identity())

    def measure() -> tuple[CutPoint, ...]:
        before = least_seconds(lambda: _run(frozen, images)) / len(images)
        after = least_seconds(lambda: _run(head, features)) / len(images)
        return (CutPoint(None, tuple(features.shape[1:]), before, after, image_bytes),)

    return Split(frozen, head, None, image_size, measure)


def _check_model(model: nn.Module, image: tuple[int, ...]) -> None:
    kinds = {(tensor.dtype, tensor.device.type) for tensor in model.parameters()}
    if not kinds <= {(torch.float32, "cpu")}:
        raise ModelError(f"the model's parameters are {sorted(map(str, kinds))}; call .float().cpu() first")
    try:
        logits = _run(model, probe(2, image))
    except Exception as error:
        raise ModelError(
            f"the model does not run on images of {image}: {error}; give their image_size"
        ) from error
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != 2:
        kind = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ModelError(f"the model returns {kind} for two images; it must return logits (n, classes)")


def _check_parts(model: nn.Module, parts: Split, image: tuple[int, ...]) -> None:
    """That the parts do what the model does, on a batch of another size than any before."""
    images = probe(5, image)
    features = _run(parts.frozen, images)
    if features.ndim != 2:
        raise ModelError(f"{tuple(features.shape)} crosses the cut; the head must take (n, features)")
    whole = _run(model, images)
    difference = (_run(parts.head, features) - whole).abs().max().item()
    if not difference <= TOLERANCE * max(1.0, whole.abs().max().item()):
        raise ModelError(
            f"frozen layers and head differ from the model by {difference:.2g}: what it does depends on more "
            "than its layers; let `forward` call modules in a fixed order"
        )


def _run(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = module(batch)
    return result


_HEADER = f"  {'cut after':28} {'crosses':>16} {'bytes':>11} {'frozen ms':>10} {'head ms':>9}"


def _line(point: CutPoint, *, taken: bool) -> str:
    name, shape = point.at or "(default)", " x ".join(map(str, point.shape))
    text = f"{name:28} {shape:>16} {point.bytes:>11,} {1e3 * point.frozen_seconds:>10.2f} "
    more = f"  more than an image of {point.image_bytes:,}" if point.ships_more else ""
    return f"{'>' if taken else ' '} {text}{1e3 * point.head_seconds:>9.2f}{more}"
