"""From a model in training to a proxy that stores can run: exported, rounded to int8, and checked.

NeSSA (HotStorage 2023) feeds quantised weights back to the drive. Changed: batch norms are folded,
activations are calibrated on images of the data, and losses must rank as those of fp32 do.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import nn

from headwater.data.pipeline import Pipeline
from headwater.data.randomness import Draws
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.inference import Extraction
from headwater.errors import ModelError, WrongUse
from headwater.models.model import Model
from headwater.models.quantise import CALIBRATING, make_int8
from headwater.models.refill import Refill
from headwater.models.registry import Registry
from headwater.models.requantise import requantise
from headwater.models.runtime import Engine
from headwater.models.trial import ANY_SIZE
from headwater.models.version import PROXY
from headwater.plan.offload import Offload
from headwater.plan.offload.ways import smallest_cut
from headwater.select.scoring import rank_correlation, score
from headwater.store.dataset import Dataset
from headwater.store.jobs.quantise import Album

log = logging.getLogger("headwater")

PRECISIONS = ("int8", "fp32")
HELD_OUT = 128
"""Images on which losses are compared."""
_AGAIN = 5  # rounds after which int8 is tried again that did not rank well
_STEP = -4  # keys which images are looked at; no pipeline has a step of this number
_NAME = "proxy"
_KEPT = 4


@dataclass(frozen=True)
class Fed:
    """A proxy in the registry.

    `correlation` is that of the ranks of its losses with those of fp32, None where it is fp32 itself; `said`
    is why it is what it is. `seconds` are those of making it.
    """

    version: str
    precision: str
    correlation: float | None
    said: str
    seconds: float


@dataclass(frozen=True, eq=False)
class _Glimpse:
    """Some images of the data as the proxy would see them, and their labels."""

    pixels: list[NDArray[np.uint8]]
    labels: NDArray[np.int64]
    bytes_moved: int


@dataclass(frozen=True, eq=False)
class Filled:
    """A model with the weights of a moment, whether its shapes are new, and the seconds that it took."""

    model: Model
    new: bool
    seconds: float


class Feeder:
    """Makes a proxy of each state of a model: `fill` in the loop's own thread, `make` in any other one.

    To trace a model changes every module of the process while that lasts, so it must not happen beside a
    forward pass.

    `steps` are what images go through before it, `least` is the rank correlation that int8 must reach.
    """

    def __init__(
        self,
        dataset: Dataset,
        registry: Registry,
        *,
        steps: Pipeline,
        run: str,
        precision: str,
        least: float,
    ) -> None:
        if precision not in PRECISIONS:
            raise WrongUse(f"precision {precision!r}; choose from {', '.join(PRECISIONS)}")
        self._dataset, self._registry, self._steps, self.run = dataset, registry, steps, run
        self._precision, self._least = precision, least
        self._refill: Refill | None = None
        self._int8: Model | None = None
        self._rest = 0
        self._made: list[str] = []

    @property
    def bytes_moved(self) -> int:
        """Of images that came here for calibration."""
        return self._glimpse.bytes_moved if "_glimpse" in self.__dict__ else 0

    def fill(self, model: nn.Module) -> Filled:
        """The model as it is now, exported if its shapes are new.

        Raises `ModelError` for one that cannot be exported, `WrongUse` for steps or classes that do not go
        with it.
        """
        begun, state = time.perf_counter(), model.state_dict()
        new = self._refill is None or not self._refill.takes(state)
        if new:
            self._refill = Refill(model, classes=self._classes, steps=self._steps)
        assert self._refill is not None
        return Filled(self._refill.fill(state), new, time.perf_counter() - begun)

    def make(self, filled: Filled) -> Fed:
        """The proxy with these weights."""
        begun, fp32 = time.perf_counter() - filled.seconds, filled.model
        if filled.new:
            self._int8, self._rest = None, 0
        proxy, correlation, said = (
            self._round(fp32) if self._precision == "int8" else (fp32, None, "as asked")
        )
        digest = self._keep(proxy)
        precision = "fp32" if proxy is fp32 else "int8"
        return Fed(digest, precision, correlation, said, time.perf_counter() - begun)

    @property
    def head(self) -> frozenset[str]:
        """The names of the parameters of the last layer, of the model that was given first."""
        return frozenset() if self._refill is None else self._refill.head

    @property
    def _classes(self) -> tuple[str, ...]:
        names = self._dataset.classes
        return names or tuple(map(str, range(int(self._dataset.labels.max(initial=-1)) + 1)))

    def _round(self, fp32: Model) -> tuple[Model, float | None, str]:
        """The int8 layers of the last round with new weights; calibrated anew where these rank badly."""
        if self._rest:
            self._rest -= 1
            return fp32, None, "int8 ranked too badly a few rounds ago"
        wanted = self._losses(fp32)
        try:
            for calibrate in (False, True):
                if self._int8 is None or calibrate:
                    self._int8 = make_int8(fp32, self._glimpse.pixels[:CALIBRATING])
                found = requantise(self._int8, fp32)
                correlation = rank_correlation(wanted, self._losses(found))
                if correlation >= self._least:
                    return found, correlation, f"int8 ranks losses as fp32 does, {correlation:.3f}"
        except ModelError as error:
            return fp32, None, f"int8 cannot be: {error}"
        self._int8, self._rest = None, _AGAIN - 1
        said = f"int8 ranks losses too differently from fp32, {correlation:.3f} and not {self._least}"
        log.warning("%s; the proxy is fp32 for %d rounds", said, _AGAIN)
        return fp32, correlation, said

    def _losses(self, model: Model) -> NDArray[np.float32]:
        engine, glimpse = Engine(model), self._glimpse
        pixels, labels = glimpse.pixels[-HELD_OUT:], glimpse.labels[-HELD_OUT:]
        logits = engine.logits(engine.features(np.stack(pixels)))
        return score(logits, labels).loss

    @cached_property
    def _glimpse(self) -> _Glimpse:
        """Read once: calibration needs no new images for new weights."""
        index, album = self._dataset.index, Album()
        (labelled,) = np.nonzero(index.labels >= 0)
        draws = Draws.of(index.ids[labelled], seed=0, epoch=0, step=_STEP).uniform(0)
        positions = labelled[np.argsort(draws, kind="stable")[: CALIBRATING + HELD_OUT]]
        chain, store = Chain(self._steps.samplewise), self._dataset.store
        crew = Crew(workers=0, readers=0)  # without threads, images come in order
        ways = (self._way(index.sizes[positions]),)
        extraction = Extraction(lambda: store.reader(chain, ways), chain, album, crew)
        made = [batch.positions for batch in extraction.run(positions, index.ids[positions])]
        found = np.concatenate([np.empty(0, np.int64), *made])
        if not len(found):
            raise WrongUse("no image with a label could be read; a proxy is calibrated on some")
        moved = extraction.meter.stats().bytes_moved if store.remote else 0
        return _Glimpse(album.images, index.labels[found], moved)

    def _way(self, sizes: NDArray[np.int64]) -> Offload:
        """Pixels from a store that can make them, where they are fewer bytes than files of these sizes."""
        steps = self._steps.samplewise
        cut = smallest_cut(steps) if self._dataset.store.remote else 0
        if not cut:
            return Offload(0)
        pixels = steps.cut(cut)[0].out_sizes(ANY_SIZE).prod(axis=1).max()
        return Offload(cut if 3 * pixels < sizes.mean() else 0)

    def _keep(self, proxy: Model) -> str:
        """Its digest; a few before it stay, because a store's delta starts from the last that it got."""
        version = self._registry.put(
            proxy, name=_NAME, made={"by": PROXY, "run": self.run, "data": self._dataset.version}
        )
        self._made = [*(one for one in self._made if one != version.digest), version.digest]
        self._registry.drop(self._made[:-_KEPT])
        self._made = self._made[-_KEPT:]
        return version.digest
