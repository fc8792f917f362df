"""Codecs that pack the pixels of a crop as a smaller JPEG, cut from the file without decoding it.

They are asked for like the others, at the cut after the decoder and a crop, but are made of the file: see
`headwater.data.image.excerpt`.
"""

from __future__ import annotations

from functools import cache

from headwater.data.codecs import CODECS
from headwater.data.image.excerpt import available_forms
from headwater.data.pipeline import Pipeline
from headwater.data.steps.decode import Decode

EXCERPT_CUT = 2
"""Steps that an excerpt stands for: the decoder, and the crop after it."""
EXCERPTS = {
    "jpeg": "optimised",
    "jpeg_progressive": "progressive",
    "jpeg_arithmetic": "arithmetic",
    "jpeg_progressive_arithmetic": "progressive_arithmetic",
}
"""Name > form of the excerpt. Not plain, which is cheaper still: a forged file may open to other pixels."""


@cache
def excerpt_names() -> tuple[str, ...]:
    """The codecs of this kind that this process can make."""
    forms = available_forms()
    return tuple(name for name, form in EXCERPTS.items() if form in forms)


def known_codecs() -> list[str]:
    """All names that this process can pack, pixels or excerpts."""
    return [*CODECS, *excerpt_names()]


def takes_excerpts(pipeline: Pipeline) -> bool:
    """Whether the pipeline begins with the decoder and a crop, so that an excerpt can stand for both."""
    steps = pipeline.steps
    return len(steps) >= EXCERPT_CUT and isinstance(steps[0], Decode) and steps[1].crops
