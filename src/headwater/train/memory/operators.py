"""Which operations can be run again: same inputs, same bits, and nothing else happens."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

POINTWISE = frozenset(
    [
        "abs",
        "add",
        "clamp",
        "cos",
        "div",
        "elu",
        "exp",
        "gelu",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "leaky_relu",
        "log",
        "log1p",
        "log_sigmoid_forward",
        "masked_fill",
        "maximum",
        "minimum",
        "mish",
        "mul",
        "neg",
        "pow",
        "reciprocal",
        "relu",
        "rsqrt",
        "rsub",
        "sigmoid",
        "silu",
        "sin",
        "softplus",
        "sqrt",
        "sub",
        "tanh",
        "threshold",
        "where",
        "_to_copy",
        "clone",
    ]
)
SHAPED = frozenset(
    [
        "_adaptive_avg_pool2d",
        "_log_softmax",
        "_safe_softmax",
        "_softmax",
        "amax",
        "avg_pool2d",
        "cat",
        "constant_pad_nd",
        "embedding",
        "max_pool2d_with_indices",
        "mean",
        "native_batch_norm",
        "native_group_norm",
        "native_layer_norm",
        "stack",
        "sum",
        "upsample_bilinear2d",
        "upsample_nearest2d",
    ]
)
PRODUCTS = frozenset(
    [
        "_scaled_dot_product_flash_attention_for_cpu",
        "addmm",
        "baddbmm",
        "bmm",
        "convolution",
        "dot",
        "mm",
        "mv",
    ]
)
"""On a CPU they give the same bits; on an accelerator only when deterministic algorithms are asked for."""


class Kind(Enum):
    """What an operation means to the lineage of tensors."""

    VIEW = "view"
    REPLAY = "replay"
    CHANGE = "change"
    OTHER = "other"


@cache
def kind_of(operation: OpOverload) -> tuple[Kind, OpOverload | None]:
    """Its kind; and, for what changes a tensor in place, the operation that does the same without."""
    if operation.is_view:
        return Kind.VIEW, None
    name = operation._schema.name.removeprefix("aten::")
    if operation._schema.is_mutable:
        return Kind.CHANGE, _functional(name, operation)
    known = operation.namespace == "aten" and name in POINTWISE | SHAPED | PRODUCTS
    return (Kind.REPLAY, operation) if known else (Kind.OTHER, None)


def widens(args: tuple[Any, ...]) -> bool:
    """Whether the result is rounded to the first argument's type in place, and would not be otherwise."""
    first, *rest = (arg.dtype for arg in args if isinstance(arg, torch.Tensor))
    return any(dtype not in (first, torch.bool) for dtype in rest)


def may_replay(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether these arguments, too, give the same bits again."""
    name = operation._schema.name.removeprefix("aten::")
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        drop = args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0)
        return bool(drop == 0.0)
    if name in PRODUCTS and any(isinstance(arg, torch.Tensor) and arg.device.type != "cpu" for arg in args):
        return torch.are_deterministic_algorithms_enabled()
    return True


def without_side_effects(operation: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with which it may run again: a batch norm in training must not count its batch twice."""
    if operation is torch.ops.aten.native_batch_norm.default and args[5]:
        return (*args[:3], None, None, *args[5:])
    return args


def _functional(name: str, operation: OpOverload) -> OpOverload | None:
    """The one that takes the same arguments; its overload may have another name."""
    if not name.endswith("_") or name[:-1] not in POINTWISE:
        return None
    packet = getattr(torch.ops.aten, name[:-1])
    overloads: list[OpOverload] = [getattr(packet, overload) for overload in packet.overloads()]
    same = (one for one in overloads if not one._schema.is_mutable and _takes(one) == _takes(operation))
    return next(same, None)


def _takes(operation: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in operation._schema.arguments]
