"""What a run asks the store to do of its chain, and whether it did that and nothing else."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data import codecs
from headwater.data.codecs.excerpts import EXCERPT_CUT, EXCERPTS, takes_excerpts
from headwater.data.codecs.packing import Packing
from headwater.data.image import Limits
from headwater.data.pipeline import Pipeline, library_versions
from headwater.data.steps.decode import Decode
from headwater.engine.chain import Box, Chain, find_box
from headwater.engine.fetching import Wanted
from headwater.errors import SampleCorrupt, SampleTooLarge, WrongUse
from headwater.plan.offload import Offload
from headwater.store.wire.catalogue import combined, compare, digests, longest, said_once
from headwater.store.wire.messages import ReadRequest, Welcome
from headwater.store.wire.payloads import Parcel

_said: set[str] = set()


@dataclass
class Opened:
    """A parcel's samples: steps done, values, and in words what a store did other than it was asked to.

    `again` are places whose payload cannot be opened although it came as it was sent: their files are needed.
    `seconds` is the CPU that opening each took, `packings` how each was packed.
    """

    done: NDArray[np.uint8]
    values: list[Any]
    seconds: NDArray[np.float32]
    wrong: str = ""
    again: list[int] = field(default_factory=list)
    packings: dict[int, Packing] = field(default_factory=dict)


@dataclass(frozen=True)
class Cutting:
    """A chain's first steps at the store: for each sample one of several ways."""

    pipeline: Pipeline
    seed: int
    limits: Limits
    ways: tuple[Offload, ...]

    @classmethod
    def of(cls, chain: Chain, ways: Sequence[Offload], welcomes: Mapping[str, Welcome]) -> Cutting:
        """Each way as far as the trainer and all stores agree; a difference is said once.

        `welcomes` are what each replica said, by its name.
        """
        for way in ways:
            _check(way, chain.pipeline)
        reach = _reach(chain, max(way.cut for way in ways), welcomes)
        near = [Offload(min(way.cut, reach), way.codec) for way in ways]
        possible = tuple(_possible(way, welcomes) for way in near)
        only = list(dict.fromkeys(way for way in near if way.cut))
        if len(only) == 1 and possible != tuple(near) and not _is_short(only[0]):
            codec = only[0].codec
            _say(f"store {_lacking(codec, welcomes)} has no codec {codec}; it is done without")
        first = chain.pipeline.cut(max(way.cut for way in possible))[0]
        return cls(first, chain.seed, chain.limits, possible)

    @property
    def reach(self) -> int:
        """The most steps that are asked for."""
        return max(way.cut for way in self.ways)

    @cached_property
    def _names(self) -> list[str]:
        return sorted({way.codec for way in self.ways})

    @cached_property
    def _table(self) -> NDArray[np.uint8]:
        """Cut and number of the codec of each way."""
        return np.array([(way.cut, self._names.index(way.codec)) for way in self.ways], np.uint8)

    def apply(self, request: ReadRequest, wanted: Wanted) -> ReadRequest:
        """The request with what to do with each sample; as it was where all should come as files."""
        ways = np.zeros(len(wanted.ids), np.uint8) if wanted.ways is None else wanted.ways
        cuts, numbers = self._table[ways].T
        if not cuts.any():
            return request
        return msgspec.structs.replace(
            request,
            seed=self.seed,
            cuts=cuts.tobytes(),
            codecs=numbers.tobytes(),
            names=self._names,
            steps=self.pipeline.spec(),
            offset=self.pipeline.offset,
            digest=combined(self.pipeline, digests()),
            limits=self.limits,
        )

    def open(self, parcel: Parcel, wanted: Wanted, request: ReadRequest) -> Opened:
        """What came for this request, unpacked as far as the store did as it was asked to."""
        facts = parcel.facts
        seconds = np.zeros(len(facts), np.float32)
        opened = Opened(facts["done"].astype(np.uint8), list(parcel.payloads), seconds)
        (places,) = np.nonzero(facts["done"] > 0)
        if not len(places):
            return opened
        opened.wrong = _doubt_facts(parcel, places, request, self.limits)
        boxes: dict[int, Box | None] = {}
        for cut in np.unique(opened.done[places]).tolist():
            if not opened.wrong:
                opened.wrong = self._doubt(parcel, wanted, np.flatnonzero(opened.done == cut), cut, boxes)
        if not opened.wrong:
            self._unpack(parcel, places, opened, boxes)
        return opened

    def _unpack(
        self, parcel: Parcel, places: NDArray[np.intp], opened: Opened, boxes: dict[int, Box | None]
    ) -> None:
        facts = parcel.facts[places]
        shapes = np.stack([facts["height"], facts["width"], facts["channels"]], axis=1).tolist()
        now = time.thread_time()
        for place, number, shape in zip(places.tolist(), facts["codec"].tolist(), shapes, strict=True):
            codec = self._names[number]
            packing = self._packing(codec, tuple(shape), parcel.facts[place], boxes.get(place))
            try:
                opened.values[place] = packing.open(opened.values[place], self.limits)
                opened.packings[place] = packing
            except (SampleCorrupt, SampleTooLarge) as error:
                # An excerpt of a strange file may be beyond what its coding can hold; pixels always fit.
                if codec not in EXCERPTS:
                    opened.wrong = str(error)
                    return
                opened.again.append(place)
            begun, now = now, time.thread_time()
            opened.seconds[place] = now - begun

    def _packing(self, codec: str, shape: codecs.Shape, facts: np.void, box: Box | None) -> Packing:
        if codec not in EXCERPTS:
            return Packing(codec, shape)
        step = self.pipeline.steps[0]
        assert isinstance(step, Decode)
        size = int(facts["source_height"]), int(facts["source_width"])
        return Packing(codec, shape, box, size, int(facts["orientation"]), step.mode, step.oriented)

    def _doubt(
        self,
        parcel: Parcel,
        wanted: Wanted,
        places: NDArray[np.intp],
        cut: int,
        boxes: dict[int, Box | None],
    ) -> str:
        """Draw what the store should have drawn and compare: with that, nothing else can have been done."""
        facts = parcel.facts[places]
        sizes = np.stack([facts["source_height"], facts["source_width"]], axis=1).astype(np.int64)
        pipeline = self.pipeline.cut(cut)[0]
        rows, most = pipeline.trace(wanted.ids[places], sizes, seed=self.seed, epoch=wanted.epoch)
        if most.max() > self.limits.pixels:
            return "it ran steps on an image past limits.pixels"
        drawn = np.concatenate([np.ascontiguousarray(row, "<f8") for row in rows], axis=1)
        pairs = zip(places.tolist(), drawn, strict=True)
        if any(parcel.drawn[place] != row.tobytes() for place, row in pairs):
            return "it drew other random numbers"
        if cut == EXCERPT_CUT and takes_excerpts(self.pipeline):
            found = zip(places.tolist(), rows[1].tolist(), sizes.tolist(), strict=True)
            boxes |= {place: find_box(row, (size[0], size[1])) for place, row, size in found}
        shapes = np.stack([facts["height"], facts["width"]], axis=1).astype(np.int64)
        after = sizes
        for step, row in zip(pipeline.steps, rows, strict=True):
            after = step.out_sizes(after, row)
        return "" if np.array_equal(after, shapes) else "its images have another size than the steps give"


def _check(offload: Offload, pipeline: Pipeline) -> None:
    if offload.codec in EXCERPTS:
        if offload.cut != EXCERPT_CUT or not takes_excerpts(pipeline):
            raise WrongUse(
                f"codec {offload.codec!r} cuts a crop out of the file: it needs cut={EXCERPT_CUT} and a "
                "pipeline whose first step after the decoder is a crop"
            )
    elif offload.codec not in codecs.CODECS:
        known = ", ".join(codecs.CODECS)
        raise WrongUse(f"codec {offload.codec!r} is not known; known: {known}; headwater[codecs] brings more")


def _reach(chain: Chain, cut: int, welcomes: Mapping[str, Welcome]) -> int:
    """How many of the first `cut` steps all make alike."""
    reach = min(cut, longest(chain.pipeline, agree(welcomes)))
    old = [store for store, welcome in welcomes.items() if not welcome.limits]
    if reach and old:
        _say(f"store {', '.join(old)} is too old to mind a loader's limits; steps stay at the trainer")
        return 0
    return reach


def _possible(way: Offload, welcomes: Mapping[str, Welcome]) -> Offload:
    """The way, or the nearest that all stores have: pixels without a codec, a file instead of an excerpt."""
    if not _lacking(way.codec, welcomes) and not _is_short(way):
        return way
    return Offload(0) if way.codec in EXCERPTS else Offload(way.cut)


def _lacking(codec: str, welcomes: Mapping[str, Welcome]) -> str:
    """The stores that do not have it, by name."""
    return ", ".join(store for store, welcome in welcomes.items() if codec not in welcome.codecs)


def _is_short(way: Offload) -> bool:
    """Whether it is an excerpt whose crop is not among the steps."""
    return way.codec in EXCERPTS and way.cut < EXCERPT_CUT


def _doubt_facts(parcel: Parcel, places: NDArray[np.intp], request: ReadRequest, limits: Limits) -> str:
    """Whether what the store says of its images can be at all."""
    facts = parcel.facts[places]
    cuts, numbers = (np.frombuffer(column, np.uint8)[places] for column in (request.cuts, request.codecs))
    if (facts["done"] != cuts).any() or (facts["codec"] != numbers).any():
        return "it went further than it was asked to"
    sizes = np.stack([facts["source_height"], facts["source_width"]], axis=1)
    shapes = np.stack([facts["height"], facts["width"]], axis=1).astype(np.int64)
    if min(sizes.min(), shapes.min()) < 1 or shapes.prod(axis=1).max() > limits.pixels:
        return "it sent an image of impossible size"
    if facts["channels"].min() < 1 or facts["channels"].max() > 4:
        return "it sent an image of impossible depth"
    return ""


def agree(welcomes: Mapping[str, Welcome]) -> frozenset[str]:
    """The steps that this trainer and all stores make alike; in what each store differs is said once."""
    return frozenset.intersection(*(_agree_with(*greeting) for greeting in welcomes.items()))


def _agree_with(store: str, welcome: Welcome) -> frozenset[str]:
    comparison = compare(
        digests(), welcome.catalogue, my_versions=library_versions(), their_versions=welcome.libraries
    )
    if comparison.reasons:
        _say(said_once(store, comparison))
    return comparison.agreed


def agree_if_cheap(welcomes: Mapping[str, Welcome]) -> None:
    """Say now what differs, unless torch would have to be imported for it; the first loader says it then."""
    if "torch" in sys.modules or find_spec("torch") is None:
        agree(welcomes)


def _say(text: str) -> None:
    """Once in a process."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=3)
