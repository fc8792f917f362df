"""A model's first run, on black images: what cannot run is found out before it is put in force."""

from __future__ import annotations

import numpy as np

from headwater.data.image import DEFAULT_LIMITS
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import ModelError, ModelRefused
from headwater.models.model import Model
from headwater.models.proto import parse
from headwater.models.runtime import Engine, decide

ANY_SIZE = np.array([[4_000, 3_000], [30, 50]])
"""Heights and widths that steps make one, if they end in a crop or a resize."""
_USUAL = 224
_IMAGES = 2  # layers that were made for one image at a time fail with two


def try_out(model: Model) -> None:
    """Run black images through all of a model, in the size that its steps leave.

    Raises `ModelRefused` if the layers do not take that, or give something else than they say, or anything
    that is not finite.
    """
    height, width = _find_size(model)
    if not 0 < height * width <= DEFAULT_LIMITS.pixels:
        raise ModelRefused(
            f"the model takes images of {height}x{width} pixels; a store makes at most "
            f"{DEFAULT_LIMITS.pixels:,} of one"
        )
    try:
        engine = Engine(model)
        features = engine.features(np.zeros((_IMAGES, height, width, 3), np.uint8))
        logits = engine.logits(features)
        decide(logits)
    except ModelError as error:
        raise ModelRefused(
            f"the model does not run on images of {height}x{width} pixels, as its steps leave them: {error}"
        ) from error
    found, said = (features.shape, logits.shape), ((_IMAGES, engine.width), (_IMAGES, len(model.classes)))
    if found != said:
        raise ModelRefused(f"of {_IMAGES} images the model makes {found}, and says that it makes {said}")


def _find_size(model: Model) -> tuple[int, int]:
    """What the steps make of any image; where that depends on the image, what the layers take."""
    left = Pipeline.from_spec(model.steps, catalogue()).out_sizes(ANY_SIZE)
    if (left == left[0]).all():
        height, width = left[0].tolist()
        return height, width
    (images,) = parse(model.trunk).graph.input
    height, width = (edge.dim_value or _USUAL for edge in images.type.tensor_type.shape.dim[2:])
    return height, width
