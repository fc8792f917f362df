"""Features that a store keeps, so that a new head costs one matrix product and no image is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data import codecs
from headwater.data.index import Index
from headwater.data.pipeline import PIXEL_LIBRARIES, Pipeline, library_versions
from headwater.data.steps import catalogue
from headwater.data.steps.decode import Decode
from headwater.engine.places import Ids
from headwater.errors import ModelError, SampleCorrupt
from headwater.models.version import ModelVersion, canonical, digest_of
from headwater.plan.movement import norms_of
from headwater.store.cabinet import Cabinet, Key

Halves = NDArray[np.float16]

_SHAPE_BYTES = 12


@dataclass(frozen=True)
class Variation:
    """What images go through before the frozen layers: steps per sample, empty for the model's own, and what
    keys their draws."""

    steps: Sequence[Mapping[str, Any]] = ()
    seed: int = 0
    epoch: int = 0

    @property
    def is_own(self) -> bool:
        """Whether images are as the model expects them."""
        return not self.steps and not self.seed and not self.epoch

    @property
    def key(self) -> str:
        """What tells apart the features of one trunk; empty for those that a model itself asks for."""
        if self.is_own:
            return ""
        own = digest_of(canonical(list(self.steps))) if self.steps else "own"
        return f"{own} {self.seed} {self.epoch}"

    def pipeline(self, version: ModelVersion) -> Pipeline:
        """The steps per sample; raises `ModelError` unless they begin with the decoder."""
        spec = self.steps or version.steps
        found = Pipeline.from_spec(spec, catalogue()).samplewise
        if not found.steps or not isinstance(found.steps[0], Decode):
            raise ModelError(f"the steps before a model begin with decode, and not with {found}")
        return found


OWN = Variation()


class Features:
    """Feature vectors of one dataset, one trunk and one variant, by sample. Safe to use from many threads.

    They are float16, with an upper bound of each norm beside them that is known without reading them. Keyed
    by the trunk with its steps, and by the versions of the libraries that make pixels and features.
    """

    def __init__(
        self,
        cabinet: Cabinet,
        index: Index,
        *,
        dataset: str,
        version: ModelVersion,
        variation: Variation = OWN,
    ) -> None:
        """Those of the trunk that a version has."""
        self._index, self._width = index, version.features
        made = digest_of(canonical([version.trunk_digest, libraries()]))
        self._loan = cabinet.open(Key("features", dataset, made, variation.key), index)

    def __len__(self) -> int:
        return len(self._loan)

    def norms(self, ids: Ids, times: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """An upper bound of the norm of each; NaN where there are no features.

        With `times`, in milliseconds since 1970, only of features that were here at that time of each.
        """
        rows = self._loan.find(ids)
        (places,) = np.nonzero(rows >= 0)
        if times is not None:
            places = places[self._loan.added(rows[places]) <= times[places]]
        found = np.full(len(ids), np.nan, np.float32)
        found[places] = self._loan.norms(rows[places])
        return found

    def get(self, ids: Ids) -> tuple[NDArray[np.intp], Halves]:
        """The places of those that there are, and their features; a damaged row is not there."""
        rows = self._loan.find(ids)
        (places,) = np.nonzero(rows >= 0)
        entries = self._loan.read(rows[places])
        sound = [number for number, entry in enumerate(entries) if entry is not None and self._fits(entry)]
        found = np.empty((len(sound), self._width), np.float16)
        for at, number in enumerate(sound):
            entry = entries[number]
            assert entry is not None
            found[at] = entry.view("<f2")
        return places[sound], found

    def put(self, positions: Ids, features: Halves) -> None:
        """Keep features of the samples at these positions."""
        rows = np.ascontiguousarray(features, "<f2")
        entries = [memoryview(row) for row in rows.view(np.uint8)]
        ids, sizes = self._index.ids[positions], self._index.sizes[positions]
        self._loan.add(ids, sizes, entries=entries, norms=norms_of(features))

    def _fits(self, entry: NDArray[np.uint8]) -> bool:
        return len(entry) == 2 * self._width


@cache
def libraries() -> dict[str, str]:
    """Versions of what makes features: of the same images and layers, others may make others."""
    return library_versions((*PIXEL_LIBRARIES, "onnxruntime"))


class Pictures:
    """Images as a model's steps leave them, packed by a lossless codec: decoding them again is spared.

    Keyed by the steps and by the versions of the libraries that make pixels.
    """

    def __init__(
        self, cabinet: Cabinet, index: Index, *, dataset: str, pipeline: Pipeline, codec: str = "zstd"
    ) -> None:
        self._index, self._codec = index, codec
        self._loan = cabinet.open(Key("pictures", dataset, f"{pipeline.hash} {codec}"), index)

    def __len__(self) -> int:
        return len(self._loan)

    def get(self, ids: Ids) -> dict[int, NDArray[np.uint8]]:
        """The image of each place for which there is one."""
        rows = self._loan.find(ids)
        (places,) = np.nonzero(rows >= 0)
        found = zip(places.tolist(), self._loan.read(rows[places]), strict=True)
        images = ((place, self._unpack(entry)) for place, entry in found if entry is not None)
        return {place: image for place, image in images if image is not None}

    def put(self, positions: Ids, images: Sequence[NDArray[np.uint8]]) -> None:
        """Keep the images of the samples at these positions."""
        entries = [self._pack(image) for image in images]
        ids, sizes = self._index.ids[positions], self._index.sizes[positions]
        self._loan.add(ids, sizes, entries=entries, norms=np.zeros(len(ids), np.float32))

    def _pack(self, image: NDArray[np.uint8]) -> bytes:
        shape = np.array(image.shape, "<i4").tobytes()
        return shape + codecs.encode(self._codec, np.ascontiguousarray(image))

    def _unpack(self, entry: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        shape = entry[:_SHAPE_BYTES].view("<i4").tolist()
        try:
            return codecs.decode(self._codec, entry[_SHAPE_BYTES:].data, tuple(shape))
        except (SampleCorrupt, ValueError):
            return None
