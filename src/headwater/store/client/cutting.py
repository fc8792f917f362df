"""What a run asks the store to do of its chain, and whether it did that and nothing else."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data import codecs
from headwater.data.image import Limits
from headwater.data.pipeline import Pipeline, library_versions
from headwater.engine.chain import Chain
from headwater.engine.fetching import Wanted
from headwater.errors import SampleCorrupt, WrongUse
from headwater.plan.offload import Offload
from headwater.store.wire.catalogue import Comparison, combined, compare, digests, longest, said_once
from headwater.store.wire.messages import ReadRequest, Welcome
from headwater.store.wire.payloads import Parcel

_said: set[str] = set()


@dataclass(frozen=True)
class Cutting:
    """A chain's first `cut` steps for every sample, in one codec."""

    pipeline: Pipeline
    seed: int
    limits: Limits
    cut: int
    codec: str

    @classmethod
    def of(cls, chain: Chain, offload: Offload, welcome: Welcome, store: str) -> Cutting:
        """As far as both sides agree; a difference is said once."""
        if offload.codec not in codecs.CODECS:
            raise WrongUse(f"codec {offload.codec!r} is not known; known: {', '.join(codecs.CODECS)}")
        used = {step.name for step in chain.pipeline.steps[: offload.cut]}
        comparison = agree(welcome, store, used)
        reach = min(offload.cut, longest(chain.pipeline, comparison.agreed))
        if reach and not welcome.limits:
            reach = 0
            _say(f"store {store} is too old to mind a loader's limits; steps stay at the trainer")
        codec = offload.codec if offload.codec in welcome.codecs else "none"
        return cls(chain.pipeline.cut(reach)[0], chain.seed, chain.limits, reach, codec)

    def apply(self, request: ReadRequest, count: int) -> ReadRequest:
        return msgspec.structs.replace(
            request,
            seed=self.seed,
            cuts=bytes([self.cut]) * count,
            codecs=bytes(count),
            names=[self.codec],
            steps=self.pipeline.spec(),
            offset=self.pipeline.offset,
            digest=combined(self.pipeline, digests()),
            limits=self.limits,
        )

    def open(self, parcel: Parcel, wanted: Wanted) -> tuple[NDArray[np.uint8], list[Any], str]:
        """Steps done, values, and what is wrong with the answer if the store did not do as asked."""
        facts = parcel.facts
        (cut,) = np.nonzero(facts["done"] > 0)
        values: list[Any] = list(parcel.payloads)
        done = facts["done"].astype(np.uint8)
        if not len(cut):
            return done, values, ""
        wrong = self._doubt(parcel, wanted, cut)
        if wrong:
            return done, values, wrong
        try:
            shapes = np.stack([facts["height"], facts["width"], facts["channels"]], axis=1).tolist()
            for place in cut.tolist():
                values[place] = codecs.decode(self.codec, values[place], tuple(shapes[place]))
        except SampleCorrupt as error:
            return done, values, str(error)
        return done, values, ""

    def _doubt(self, parcel: Parcel, wanted: Wanted, cut: NDArray[np.intp]) -> str:
        """Draw what the store should have drawn and compare: with that, nothing else can have been done."""
        facts = parcel.facts[cut]
        if (facts["done"] != self.cut).any() or facts["codec"].any():
            return "it went further than it was asked to"
        sizes = np.stack([facts["source_height"], facts["source_width"]], axis=1).astype(np.int64)
        shapes = np.stack([facts["height"], facts["width"]], axis=1).astype(np.int64)
        if min(sizes.min(), shapes.min()) < 1 or shapes.prod(axis=1).max() > self.limits.pixels:
            return "it sent an image of impossible size"
        if facts["channels"].min() < 1 or facts["channels"].max() > 4:
            return "it sent an image of impossible depth"
        ids = wanted.ids[cut]
        rows, most = self.pipeline.trace(ids, sizes, seed=self.seed, epoch=wanted.epoch)
        if most.max() > self.limits.pixels:
            return "it ran steps on an image past limits.pixels"
        drawn = np.concatenate([np.ascontiguousarray(row, "<f8") for row in rows], axis=1)
        if any(parcel.drawn[place] != row.tobytes() for place, row in zip(cut.tolist(), drawn, strict=True)):
            return "it drew other random numbers"
        after = sizes
        for step, row in zip(self.pipeline.steps, rows, strict=True):
            after = step.out_sizes(after, row)
        return "" if np.array_equal(after, shapes) else "its images have another size than the steps give"


def agree(welcome: Welcome, store: str, used: Collection[str] | None = None) -> Comparison:
    """What both sides make alike; a difference in steps that are `used` (None: in any) is said once."""
    comparison = compare(
        digests(), welcome.catalogue, my_versions=library_versions(), their_versions=welcome.libraries
    )
    if comparison.reasons if used is None else comparison.reasons.keys() & set(used):
        _say(said_once(store, comparison))
    return comparison


def agree_if_cheap(welcome: Welcome, store: str) -> None:
    """Say now what differs, unless torch would have to be imported for it; the first offload says it then."""
    if "torch" in sys.modules or find_spec("torch") is None:
        agree(welcome, store)


def _say(text: str) -> None:
    """Once in a process."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=3)
