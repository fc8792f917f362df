"""One bar per epoch, on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headwater.engine.meter import Meter


class EpochBar:
    """Steps done, samples per second, bytes per second, and the share of time spent waiting for data."""

    def __init__(self, epoch: int, steps: int, meter: Meter, *, show: bool | None) -> None:
        self._meter = meter
        self._progress: Progress | None = None
        if sys.stderr.isatty() if show is None else show:
            self._progress = _layout()
            self._task = self._progress.add_task(f"epoch {epoch}", total=steps, rate="")

    def __enter__(self) -> EpochBar:
        self._begun = time.perf_counter()
        self._samples = 0
        if self._progress is not None:
            self._before = self._meter.stats()
            self._progress.start()
        return self

    def advance(self, samples: int) -> None:
        if self._progress is None:
            return
        self._samples += samples
        seconds = time.perf_counter() - self._begun
        now = self._meter.stats()
        rate = (
            f"{self._samples / seconds:,.0f} samples/s  "
            f"{(now.bytes_moved - self._before.bytes_moved) / seconds / 1e6:,.1f} MB/s  "
            f"waiting {(now.waited - self._before.waited) / seconds:.0%}"
        )
        self._progress.update(self._task, advance=1, rate=rate)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _layout() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
