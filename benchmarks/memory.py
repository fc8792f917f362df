"""Does memory grow over 50 epochs?

The loader runs in this process, over photos with the transforms of ImageNet training. Resident and unique
memory, threads and descriptors are read at the end of each epoch; the first five epochs are a warm-up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

import headwater as hw
from headwater import transforms as T
from headwater.data.synthetic import write_photos
from measuring import Bar, Options, Report, Table, main

WARM_UP = 5
EPOCHS = 50
BATCH = 128
CROP = 224


@dataclass(frozen=True)
class Reading:
    rss: int
    uss: int
    threads: int
    descriptors: int


def read(process: psutil.Process) -> Reading:
    memory = process.memory_full_info()
    return Reading(memory.rss, memory.uss, process.num_threads(), process.num_fds())


def open_photos(folder: Path, options: Options) -> hw.Dataset:
    if options.data:
        return hw.open(options.data / "imagenet_sample", progress=False)
    write_photos(folder / "photos", count=100 if options.quick else 700)
    return hw.open(folder / "photos", progress=False)


def readings(data: hw.Dataset, epochs: int) -> list[Reading]:
    floats = [T.ToDtype("float32", scale=True), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    steps = T.Compose([T.RandomResizedCrop(CROP), T.RandomHorizontalFlip(), *floats])
    loader = hw.DataLoader(data, steps, batch_size=BATCH, shuffle=True)
    process, found = psutil.Process(), []
    for _ in range(WARM_UP + epochs):
        for _batch in loader:
            pass
        found.append(read(process))
    loader.close()
    return found[WARM_UP:]


def growth(values: NDArray[np.float64]) -> tuple[float, float]:
    """Percent from first to last: along the least-squares line, and last tenth over first."""
    epochs = np.arange(len(values))
    slope, begin = np.polyfit(epochs, values, 1)
    tenth = max(1, len(values) // 10)
    first, last = values[:tenth].mean(), values[-tenth:].mean()
    return float(100 * slope * epochs[-1] / begin), float(100 * (last / first - 1))


def run(folder: Path, options: Options) -> Report:
    begin = time.perf_counter()
    found = readings(open_photos(folder, options), 5 if options.quick else EPOCHS)
    rows, worst = [], 0.0
    for name in ("rss", "uss"):
        values = np.array([getattr(reading, name) for reading in found], dtype=np.float64)
        line, ends = growth(values)
        if name == "rss":  # unique memory also changes when other processes come to share our libraries
            worst = max(line, ends)
        sizes = (value / 2**20 for value in (values[0], values[-1], values.max()))
        rows.append((name, *sizes, f"{line:+.2f}", f"{ends:+.2f}"))
    counts = Table(
        ("count", "first", "last", "most"),
        tuple(
            (name, *(getattr(found[at], name) for at in (0, -1)), max(getattr(r, name) for r in found))
            for name in ("threads", "descriptors")
        ),
    )
    columns = ("memory", "first MiB", "last MiB", "most MiB", "growth % (line)", "growth % (tenths)")
    spent = time.perf_counter() - begin
    return Report(
        f"memory over {len(found)} epochs, after {WARM_UP} of warm-up",
        (Table(columns, tuple(rows)), counts),
        (Bar("growth of rss", "under 2 %", f"{worst:.2f} %", worst < 2),),
        (f"batches of {BATCH}, crops of {CROP} pixels, {spent:.0f} s in all",),
        raw={"rss": [reading.rss for reading in found], "uss": [reading.uss for reading in found]},
    )


if __name__ == "__main__":
    main(__doc__, run)
