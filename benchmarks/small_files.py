"""How many CIFAR-10 sized files per second from Parquet, against torch's DataLoader?

Both have two workers and batches of 256, shuffle, and hand over float32 batches. Torch's dataset holds the
whole table in memory. A measurement is whole epochs for at least some seconds; workers persist, and the
first measurement of each contender is not counted.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg

import headwater as hw
from headwater import transforms as T
from measuring import Options, Report, at_least, compare, images_per_second, interleave, main, rate_table
from peers.children import Peer

BATCH = 256
WORKERS = 2
PEERS = ("torch-v2", "torch-v1")


def make_parquet(path: Path, count: int) -> None:
    """Blurred noise of 32 x 32 pixels as JPEG files of about 0.9 kB, in Hugging Face's image schema."""
    noise = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    pixels = noise.repeat(4, axis=1).repeat(4, axis=2)
    images = [{"bytes": simplejpeg.encode_jpeg(image, quality=75), "path": None} for image in pixels]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = pa.array(np.arange(count) % 10)
    pq.write_table(pa.table({"image": pa.array(images, kind), "label": labels}), path, row_group_size=1000)


class Ours:
    """Headwater on data as it lies."""

    def __init__(self, data: hw.Dataset, seconds: float) -> None:
        normalize = T.Normalize([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616])
        floats = [T.ToDtype("float32", scale=True), normalize]
        steps = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *floats])
        self._loader = hw.DataLoader(data, steps, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
        self._seconds = seconds

    def measure(self) -> float:
        return images_per_second(self._loader, self._seconds)


def run(folder: Path, options: Options) -> Report:
    file, seconds = folder / "train.parquet", 1.0 if options.quick else 6.0
    if options.data:
        file = options.data / "cifar10" / ("test.parquet" if options.quick else "train.parquet")
    else:
        make_parquet(file, 5_000 if options.quick else 50_000)
    with ExitStack() as stack:
        contenders = {"headwater": Ours(hw.open(file, progress=False), seconds).measure}
        for name in PEERS:
            peer = stack.enter_context(Peer("small_files.py", name, str(file), seconds=seconds))
            contenders[name] = peer.measure
        rates = interleave(contenders, rounds=options.rounds)
    return Report(
        "CIFAR-10 sized files from Parquet: images/s",
        (rate_table(rates, "headwater", "images/s"),),
        tuple(at_least(compare(rates, "headwater", name), 2.0) for name in PEERS),
        (f"batches of {BATCH}, {WORKERS} workers, at least {seconds:g} s a measurement",),
        raw={"rates": rates},
    )


if __name__ == "__main__":
    main(__doc__, run)
