"""Which steps a store and its client may divide between them: those that make the same bytes on both sides.

Each side runs every integer-exact step on built-in images and files and sends digests of what came out.
A step whose digests differ, or that one side lacks, is never offloaded, nor is anything after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps import Step, catalogue
from headwater.data.steps.base import Image
from headwater.data.steps.box import CentralBox, RandomArea
from headwater.engine.chain import Chain
from headwater.store.wire.specimens import SPECIMENS

EXAMPLES: dict[str, tuple[dict[str, Any], ...]] = {
    "decode": ({}, {"mode": "L"}, {"oriented": False}),
    "random_area": ({}, {"scale": (0.5, 1.0), "ratio": (0.2, 4.0)}, {"scale": (2.0, 3.0)}),
    "random_box": ({"size": (19, 26)},),
    "central_box": ({"size": (19, 26)}, {"size": (18, 25)}),
    "pad": (
        {"padding": 3},
        {"padding": (1, 2, 3, 4), "fill": (9.0, 80.0, 255.0)},
        {"padding": (4, 3, 2, 1), "padding_mode": "edge"},
        {"padding": 5, "padding_mode": "reflect"},
        {"padding": 5, "padding_mode": "symmetric"},
    ),
    "pad_to_fit": (
        {"size": (64, 90), "fill": 77.0},
        {"size": (64, 40), "padding": (1, 2, 3, 4), "whole": True, "padding_mode": "reflect"},
    ),
    "resize": (
        {"size": (24, 17)},
        {"size": 21, "interpolation": "bicubic"},
        {"size": (70, 101)},
        {"size": (70, 33), "interpolation": "bicubic", "antialias": False},
        {"size": (30, 99), "antialias": False},
        {"size": 20, "max_size": 22, "interpolation": "nearest"},
        {"size": None, "max_size": 37, "interpolation": "nearest-exact"},
    ),
    "random_horizontal_flip": ({}, {"p": 0.9}),
    "random_vertical_flip": ({}, {"p": 0.9}),
    "thumbnail": ({"edge": 40}, {"edge": 7}),
}
"""Parameters with which each exact step is tried; a step without an entry is not offloaded."""

LIBRARIES = {"decode": ("simplejpeg", "pillow", "turbojpeg"), "resize": ("torch",)}
"""What makes the pixels of a step; the others need numpy only."""

_BROKEN = (ImportError, OSError)
"""A library that is not there, or whose own libraries are not; what is wrong with a sample is neither."""
_SEED, _EPOCH, _REPEATS = 17, 3, 4
_IDS = (np.arange(256, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1)).astype(np.int64)
_SIZES = np.stack((33 + np.arange(256) % 41 * 13, 33 + np.arange(256) % 59 * 17), axis=1)


@dataclass(frozen=True)
class Comparison:
    """Steps on which both sides agree, and for each other one in words why not."""

    agreed: frozenset[str]
    reasons: Mapping[str, str]


def digests() -> dict[str, str]:
    """For each exact step that this process can run, a digest of what it draws and makes.

    A step whose library is missing is absent. Computed once per process; the first call imports torch
    where it is installed.
    """
    return dict(_digests())


def compare(
    mine: Mapping[str, str],
    theirs: Mapping[str, str],
    *,
    my_versions: Mapping[str, str],
    their_versions: Mapping[str, str],
) -> Comparison:
    """The trainer's digests against the store's; versions are those of `library_versions`.

    Steps that only the store has are of no use to this trainer, and no difference.
    """
    agreed = frozenset(name for name, digest in mine.items() if theirs.get(name) == digest)
    reasons = {
        name: _explain_bytes(name, my_versions, their_versions)
        if name in theirs
        else f"the store has no {name}"
        for name in mine
        if name not in agreed
    }
    return Comparison(agreed, reasons)


def longest(pipeline: Pipeline, agreed: frozenset[str]) -> int:
    """How many leading steps may run at the store: integer-exact ones on which both sides agree."""
    names = [step.name for step in pipeline.steps[: pipeline.longest_prefix]]
    return next((cut for cut, name in enumerate(names) if name not in agreed), len(names))


def combined(pipeline: Pipeline, known: Mapping[str, str]) -> str:
    """One digest of all steps of a pipeline, as a side with these digests runs them."""
    names = sorted({step.name for step in pipeline.steps})
    text = "\n".join(f"{name} {known.get(name, 'none')}" for name in names)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def said_once(store: str, comparison: Comparison) -> str:
    """One line for a warning; empty where there is nothing to say."""
    reasons = [f"{name} ({reason})" for name, reason in sorted(comparison.reasons.items())]
    if not reasons:
        return ""
    rest = "that step and those after it" if len(reasons) == 1 else "each of these and the steps after it"
    return f"store {store} and this trainer differ in {', '.join(reasons)}; {rest} stay at the trainer"


def _explain_bytes(name: str, mine: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Which library explains that the bytes of a step differ."""
    used = LIBRARIES.get(name, ())
    differing = [
        f"store {library} {plain(theirs.get(library, 'none'))}, here {mine.get(library, 'none')}"
        for library in used
        if mine.get(library) != theirs.get(library)
    ]
    if differing:
        return f"its bytes differ: {'; '.join(differing)}"
    same = [f"{library} {mine[library]}" for library in used if library in mine]
    return f"its bytes differ, although both have {', '.join(same)}" if same else "its bytes differ"


def plain(text: str) -> str:
    """What the other side calls a version, fit for one line of a terminal: it may send anything."""
    return "".join(character for character in text[:40] if character.isprintable())


@cache
def _digests() -> dict[str, str]:
    found = {name: _digest(kind) for name, kind in catalogue().items() if kind.exact}
    return {name: digest for name, digest in found.items() if digest is not None}


def _digest(kind: type[Step]) -> str | None:
    """None for a step that cannot run here, or that has no examples."""
    content = hashlib.blake2b(digest_size=16)
    examples = EXAMPLES.get(kind.name, ())
    try:
        for arguments in examples:
            for pipeline, values in _trials(kind(**arguments)):
                content.update(_try(pipeline, values))
    except _BROKEN:
        return None
    return content.hexdigest() if examples else None


def _trials(step: Step) -> Iterator[tuple[Pipeline, Sequence[Any]]]:
    """Chains that show what the step does, each with what goes in."""
    if step.name != "decode":
        yield Pipeline((step,), 1), _images() * _REPEATS
        return
    yield Pipeline((step,)), list(SPECIMENS.values())
    # Before a crop the chain decodes no more than the box, which is another path through the libraries.
    large = [SPECIMENS["large_420"]] * 2 * _REPEATS
    yield Pipeline((step, RandomArea())), large
    yield Pipeline((step, CentralBox((77, 91)))), large[:1]


def _try(pipeline: Pipeline, values: Sequence[Any]) -> bytes:
    """The chain's steps, what they draw for many ids, and what they make of the values."""
    results = _Results(_IDS[: len(values)])
    Chain(pipeline, seed=_SEED).run(values, results)
    drawn = pipeline.draw(_IDS, _SIZES, seed=_SEED, epoch=_EPOCH)
    rows = [each.astype("<f8").tobytes() for each in drawn]
    made = [results.made[place] for place in range(len(values))]
    return b"".join([msgspec.json.encode(pipeline.spec()), *rows, *made])


@dataclass(frozen=True)
class _Results:
    """A lot that keeps what was made as bytes. A failure counts too: both sides must fail alike."""

    ids: NDArray[np.int64]
    epoch: int = _EPOCH
    made: dict[int, bytes] = field(default_factory=dict)

    def emit(self, place: int, image: Image) -> None:
        self.made[place] = f"{image.shape} {image.dtype} ".encode() + image.tobytes()

    def fail(self, place: int, stage: str, error: Exception) -> None:
        if isinstance(error, _BROKEN):
            raise error
        self.made[place] = f"{stage} {type(error).__name__} ".encode()


def _images() -> list[Image]:
    """Colour, grey, and two views such as crops and flips leave behind; odd sizes, edges up to 0 and 255."""
    colour, grey = _paint(83, 107, 3), _paint(47, 59, 1)
    return [colour[5:66, 7:90], colour[::-1, ::-1], grey, _paint(19, 26, 3)]


def _paint(height: int, width: int, channels: int) -> Image:
    """Ramps, edges and noise, by integer arithmetic alone."""
    rows, columns, channel = np.ogrid[0:height, 0:width, 0:channels]
    ramp = rows * (2 + channel) + columns * (5 - channel)
    noise = (rows * 7919 + columns * 104729 + channel * 1299709) * 2654435761 >> 20 & 63
    edges = (rows // 9 + columns // 13) % 3 * 96
    painted: Image = np.clip(ramp % 211 + noise + edges - 40, 0, 255).astype(np.uint8)
    return painted
