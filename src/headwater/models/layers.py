"""A torch model as a graph of layers that can be cut: what crosses, and the module on either side."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import fx, nn

from headwater.errors import ModelError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_TIMED_IMAGES = 4
_TIMED_RUNS = 3
_INSIDE = "model"


class _Whole(nn.Module):
    """The model as a function of images alone, so that its other parameters have their defaults."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> Any:
        return self.model(images)


class _Tracer(fx.Tracer):
    """Notes under which node the result of each module lies, of those too that are traced through."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, list[fx.Node]] = {}

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_module(m, forward, args, kwargs)
        name = self.path_of_module(m).removeprefix(_INSIDE).removeprefix(".")
        if isinstance(result, fx.Proxy):
            self.results.setdefault(name, []).append(result.node)
        return result


class _Watch(fx.Interpreter):
    """Runs the graph and notes of each node its seconds, and its shape or, if it is no tensor, its value."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[fx.Node, float] = {}
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        begin = time.perf_counter()
        result = super().run_node(n)
        self.seconds[n] = time.perf_counter() - begin
        self.seen[n] = result if _is_plain(result) else Shape(getattr(result, "shape", ()))
        return result


class Shape(tuple[int, ...]):
    """The shape of a tensor, empty for several of them. A class of its own: sizes are values of nodes too."""


@dataclass(frozen=True, eq=False)
class Layers:
    """The forward pass of a model on images of one size.

    `results` says under which nodes the result of each module lies: several if it is called more than once.
    """

    root: nn.Module
    graph: fx.Graph
    results: Mapping[str, list[fx.Node]]
    image: tuple[int, ...]

    @classmethod
    def trace(cls, model: nn.Module, image: tuple[int, ...]) -> Layers:
        """Raises `ModelError` for a model whose layers depend on what it is given."""
        tracer = _Tracer()
        try:
            graph = tracer.trace(_Whole(model))
        except Exception as error:
            raise ModelError(
                f"{type(model).__name__} cannot be cut inside, because its control flow cannot be traced "
                f"({error}); leave out `at`, or write the model as a Sequential"
            ) from error
        for node in graph.nodes:
            if node.op in ("call_module", "get_attr"):
                node.target = str(node.target).removeprefix(f"{_INSIDE}.")
        return cls(model, graph, tracer.results, image)

    @cached_property
    def _module(self) -> fx.GraphModule:
        return fx.GraphModule(self.root, self.graph)

    def _watch(self, count: int) -> _Watch:
        watch = _Watch(self._module)
        with evaluating(self._module), torch.no_grad():
            watch.run(probe(count, self.image))
        return watch

    @cached_property
    def _seen(self) -> tuple[dict[fx.Node, Any], dict[fx.Node, Any]]:
        """What each node gave for a batch of two and for one of three images."""
        return self._watch(2).seen, self._watch(3).seen

    @cached_property
    def _seconds(self) -> dict[fx.Node, float]:
        """Of each node for one image: the least of a few runs."""
        runs = [self._watch(_TIMED_IMAGES).seconds for _ in range(_TIMED_RUNS)]
        return {node: min(run[node] for run in runs) / _TIMED_IMAGES for node in self.graph.nodes}

    def units(self) -> dict[fx.Node, str]:
        """Where the model may be cut: results of its parts, by the outermost name, in order.

        A part is a module of the model or of a container in it; other modules are not looked into.
        """
        names: dict[fx.Node, str] = {}
        for name in _walk(self.root):
            nodes = self.results.get(name, [])
            if len(nodes) == 1:
                names.setdefault(nodes[0], name)
        return {node: names[node] for node in self.graph.nodes if node in names and self.can_cut(node)}

    def last_linear(self) -> fx.Node | None:
        """The node of what the linear layer that is called last is called with."""
        order = {node: place for place, node in enumerate(self.graph.nodes)}
        found = [
            nodes[-1]
            for name, nodes in self.results.items()
            if name and isinstance(self.root.get_submodule(name), nn.Linear)
        ]
        return max(found, key=order.__getitem__).all_input_nodes[0] if found else None

    def can_cut(self, cut: fx.Node) -> bool:
        """Whether one tensor with a row per image crosses there, and weights are left behind it."""
        one, two = self._seen
        rows = isinstance(one[cut], Shape) and len(one[cut]) > 1 and (one[cut][0], two[cut][0]) == (2, 3)
        return rows and not self.also_cross(cut) and any(True for _ in self.head(cut).parameters())

    def shape(self, cut: fx.Node) -> tuple[int, ...]:
        """Of what crosses, for one image."""
        return tuple(self._seen[0][cut][1:])

    def seconds(self, cut: fx.Node) -> tuple[float, float]:
        """Of one image before the cut and after it, by torch on this machine."""
        before = _ancestors(cut)
        total = sum(self._seconds.values())
        first = sum(seconds for node, seconds in self._seconds.items() if node in before)
        return first, total - first

    def _before(self, cut: fx.Node) -> set[fx.Node]:
        """What the cut needs, and all sizes that are known by then."""
        found = _ancestors(cut)
        for node in self.graph.nodes:
            known = node.all_input_nodes and all(other in found for other in node.all_input_nodes)
            if known and node.op != "output" and not isinstance(self._seen[0][node], Shape):
                found.add(node)
        return found

    def _shared(self, cut: fx.Node) -> list[fx.Node]:
        """Nodes before the cut that something after it needs, without the cut itself."""
        before = self._before(cut)
        inner = [node for node in self.graph.nodes if node in before and node is not cut]
        return [node for node in inner if any(user not in before for user in node.users)]

    def also_cross(self, cut: fx.Node) -> list[str]:
        """Tensors that are needed on both sides of the cut beside the one at the cut."""
        return [_describe(node) for node in self._shared(cut) if self._kind(node) == "tensor"]

    def _kind(self, node: fx.Node) -> Literal["weights", "constant", "rows", "tensor"]:
        """What a value from before the cut is; all but a tensor can be had again after it."""
        one, two = self._seen[0][node], self._seen[1][node]
        if node.op == "get_attr":
            return "weights"
        if isinstance(one, Shape):
            return "tensor"
        if one == two:
            return "constant"
        return "rows" if (one, two) == (2, 3) else "tensor"

    def frozen(self, cut: fx.Node) -> fx.GraphModule:
        """Everything up to the cut, as (n, features)."""
        graph, before = fx.Graph(), _ancestors(cut)
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.graph.nodes:
            if node in before:
                copies[node] = graph.node_copy(node, lambda other: copies[other])
        flat = len(self.shape(cut)) == 1
        graph.output(copies[cut] if flat else graph.call_function(torch.flatten, (copies[cut], 1)))
        return fx.GraphModule(self.root, graph)

    def head(self, cut: fx.Node) -> nn.Module:
        """Everything after the cut, from (n, features); the layer itself if that is all there is."""
        graph, before = fx.Graph(), self._before(cut)
        features = graph.placeholder("features")
        flat = len(self.shape(cut)) == 1
        value = features if flat else graph.call_function(torch.unflatten, (features, 1, self.shape(cut)))
        if any(_is_in_place(user, self.root) for user in cut.users):
            value = graph.call_function(torch.clone, (value,))  # or it would write to the caller's features
        copies: dict[fx.Node, Any] = {cut: value}
        for node in self._shared(cut):
            copies[node] = self._again(node, graph, features)
        for node in self.graph.nodes:
            if node not in before:
                copies[node] = graph.node_copy(node, lambda other: copies[other])
        return _simplify(fx.GraphModule(self.root, graph), math.prod(self.shape(cut)))

    def _again(self, node: fx.Node, graph: fx.Graph, features: fx.Node) -> Any:
        """A value from before the cut, had again after it."""
        kind = self._kind(node)
        if kind == "rows":
            return graph.call_method("size", (features, 0))
        return graph.node_copy(node) if kind == "weights" else self._seen[0][node]


def probe(count: int, image: tuple[int, ...]) -> torch.Tensor:
    """A batch of noise, always the same; the user's generator is left alone."""
    return torch.rand(count, *image, generator=torch.Generator().manual_seed(0)) * 2 - 1


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """In eval mode within; every part in its own mode again afterwards."""
    modes = {part: part.training for module in modules for part in module.modules()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def twin(model: nn.Module) -> nn.Module:
    """The model once more, in eval mode, with the same tensors: modes change in one only, weights in both."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared).eval()


def _walk(model: nn.Module, prefix: str = "") -> Iterator[str]:
    for name, child in model.named_children():
        yield prefix + name
        if isinstance(child, _CONTAINERS):
            yield from _walk(child, f"{prefix}{name}.")


def _ancestors(node: fx.Node) -> set[fx.Node]:
    """The node and all that it needs."""
    found, waiting = set(), [node]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += one.all_input_nodes
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def _is_in_place(node: fx.Node, root: nn.Module) -> bool:
    """Whether it writes to what it is given, as torch's names and arguments for that say."""
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return bool(node.kwargs.get("inplace")) or (name.endswith("_") and not name.endswith("__"))


def _describe(node: fx.Node) -> str:
    return str(node.target) if node.op in ("call_module", "placeholder") else node.name


_RESHAPING = (torch.flatten, torch.unflatten, "flatten", "view", "reshape", "size")


def _simplify(head: fx.GraphModule, features: int) -> nn.Module:
    """The linear layer alone, where everything else only changes shapes and leaves the order of values."""
    steps = [node for node in head.graph.nodes if node.op not in ("placeholder", "output")]
    layers = [node for node in steps if node.op == "call_module"]
    others = [node for node in steps if node.op != "call_module"]
    if len(layers) != 1 or any(node.target not in _RESHAPING for node in others):
        return head
    (only,) = layers
    layer = head.get_submodule(str(only.target))
    ends = all(user.op == "output" for user in only.users)
    linear = type(layer) is nn.Linear and layer.in_features == features
    return layer if linear and ends else head
