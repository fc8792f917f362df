"""Tuners as processes: fine-tunings that are prepared once and run as often as asked for; their models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import headwater as hw
from classifiers import pixels_of
from headwater.models.presets import PRESETS, lite0_steps
from headwater.models.quantise import quantise
from headwater.models.registry import Registry
from serving import PROCESSES, end

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


class Tuners:
    """processes/tuner.py in a process; `within` are words before its command."""

    def __init__(self, registry: Registry, *, within: Sequence[str] = ()) -> None:
        words = [*within, sys.executable, str(PROCESSES / "tuner.py"), str(registry.folder)]
        self._child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def prepare(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Make a fine-tuning with these `Settings`: what its plan expects, photos, bytes of a file."""
        return self._ask({"do": "prepare", "name": name, **settings})

    def fit(self, name: str) -> Fitted:
        """Run it, from the first photo to the last epoch."""
        return Fitted(**self._ask({"do": "fit", "name": name}))

    def relabel(self, store: str, model: str) -> dict[str, Any]:
        """Have a store label all of its photos."""
        return self._ask({"do": "relabel", "store": store, "model": model})

    def _ask(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(wish) + "\n")
            self._child.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"a tuner ended with code {self._child.wait()}; its error is above")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Tuners:
        self._hear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._child)


def put_trunk(*registries: Registry) -> None:
    """EfficientNet-Lite0 in each of the registries, as `TRUNK`."""
    model = PRESETS["efficientnet-lite0"]()
    for registry in registries:
        registry.put(model, name=TRUNK, switch=True)


def put_int8(photos: Path, *registries: Registry) -> None:
    """Its int8 form too, as `INT8`, calibrated on some of the photos.

    Here only its cost matters: it is nobody's child, so that no head on it is compared with fp32.
    """
    data = hw.open(photos, progress=False)
    pixels = pixels_of(data, data.positions()[:_CALIBRATING], lite0_steps())
    found = quantise(registries[0].get(TRUNK), pixels, bound=0.0, threads=len(os.sched_getaffinity(0)))
    for registry in registries:
        registry.put(found.model, name=INT8, switch=True)


def state_of(folder: Path) -> tuple[Registry, tuple[str, ...]]:
    """The models of a store whose state is in this folder, and the flags that it is started with."""
    return Registry(folder / "models"), ("--state", str(folder))
