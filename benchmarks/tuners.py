"""Tuners as processes: fine-tunings that are prepared once and run as often as asked for; their models."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headwater as hw
from classifiers import pixels_of
from headwater.models.presets import PRESETS, lite0_steps
from headwater.models.quantise import quantise
from headwater.models.registry import Registry
from serving import Child

TRUNK, INT8 = "lite0", "lite0-int8"
"""EfficientNet-Lite0 as it is, and with its frozen layers in int8."""
KEEP_NOTHING = ("--feature-bytes", "0")
"""For a store that makes all features anew, every time it is asked."""
_CALIBRATING = 128


@dataclass(frozen=True)
class Fitted:
    """Seconds of a fine-tuning: in all, until all features were there, and of training."""

    seconds: float
    extract: float
    train: float


class Tuners(Child):
    """processes/tuner.py; `within` are words before its command."""

    def __init__(self, registry: Registry, *, within: Sequence[str] = ()) -> None:
        super().__init__("tuner.py", str(registry.folder), within=within)

    def prepare(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Make a fine-tuning with these `Settings`: what its plan expects, photos, bytes of a file."""
        return self._do({"do": "prepare", "name": name, **settings})

    def fit(self, name: str) -> Fitted:
        """Run it, from the first photo to the last epoch."""
        return Fitted(**self._do({"do": "fit", "name": name}))

    def relabel(self, store: str, model: str) -> dict[str, Any]:
        """Have a store label all of its photos."""
        return self._do({"do": "relabel", "store": store, "model": model})

    def _do(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(json.dumps(wish))
        return found


def put_trunk(*registries: Registry) -> None:
    """EfficientNet-Lite0 in each of the registries, as `TRUNK`."""
    model = PRESETS["efficientnet-lite0"]()
    for registry in registries:
        registry.put(model, name=TRUNK, switch=True)


def put_int8(photos: Path, *registries: Registry) -> None:
    """Its int8 form too, as `INT8`, calibrated on some of the photos.

    Here only its cost matters: it is nobody's child and unmeasured, so that no head on it is compared with
    fp32.
    """
    data = hw.open(photos, progress=False)
    pixels = pixels_of(data, data.positions()[:_CALIBRATING], lite0_steps())
    found = quantise(registries[0].get(TRUNK), pixels, bound=0.0, threads=len(os.sched_getaffinity(0)))
    for registry in registries:
        registry.put(found.model, name=INT8, switch=True, unmeasured=True)


def state_of(folder: Path) -> tuple[Registry, tuple[str, ...]]:
    """The models of a store whose state is in this folder, and the flags that it is started with."""
    return Registry(folder / "models"), ("--state", str(folder))
