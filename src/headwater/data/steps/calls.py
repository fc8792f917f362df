"""A user's own function as a step: it runs at the trainer and is never sent anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from headwater.data.steps.base import Image, Row, Step
from headwater.data.steps.tensors import to_image, to_tensor, torch_module
from headwater.errors import WrongUse

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Call(Step):
    """Calls a function with a copy of the image as a tensor (channels, height, width).

    It may return such a tensor or an array (height, width, channels). Two calls of functions of the same
    name are equal: what a function does is not part of the pipeline's hash, nor is its randomness keyed.
    """

    name: ClassVar[str] = "callable"
    opaque: ClassVar[bool] = True
    function: str
    """Where the function was defined; the function itself is held beside the fields, and so stays here."""

    @classmethod
    def of(cls, function: Callable[[torch.Tensor], Any]) -> Call:
        """The step that calls `function`."""
        if not callable(function):
            raise WrongUse(f"{function!r} is neither a transform nor callable")
        call = cls(_address(function))
        object.__setattr__(call, "_target", function)
        return call

    def apply(self, image: Image, row: Row) -> Image:
        function = getattr(self, "_target", None)
        if function is None:
            raise WrongUse(f"{self.function} is only a name here; build the step with Call.of(function)")
        # Contiguous in the layout that functions on images expect, and theirs to write to.
        memory = torch_module().contiguous_format
        return _to_array(function(to_tensor(image).clone(memory_format=memory)), self.function)


def _address(function: object) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"


def _to_array(result: object, function: str) -> Image:
    if isinstance(result, torch_module().Tensor):
        result = to_image(result.detach()) if result.ndim == 3 else result.numpy()
    if not isinstance(result, np.ndarray) or result.ndim != 3:
        shape = getattr(result, "shape", type(result).__name__)
        raise WrongUse(
            f"{function} returned {shape}; it must return a tensor (channels, height, width) "
            "or an array (height, width, channels)"
        )
    return result
