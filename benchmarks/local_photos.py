"""How many local photos per second, against torch's DataLoader, WebDataset and LitData?

Every contender has the same photos in its own format (Headwater and WebDataset: the same tars), the same
transforms, two workers and batches of 128, and hands over float32 batches. A measurement is whole epochs
for at least some seconds; workers persist, and the first measurement of each contender is not counted.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import headwater as hw
from headwater import transforms as T
from headwater.data.synthetic import make_photos
from measuring import Options, Report, at_least, compare, images_per_second, interleave, main, rate_table
from peers.children import Peer, python

BATCH = 128
WORKERS = 2
PEERS = ("torch-pillow", "torch-tensors", "webdataset", "litdata", "litdata-raw")
_PER_SHARD = 100


def shards(options: Options) -> Iterator[tuple[str, bytes]]:
    """WebDataset tars by name: those of the data folder, or made ones."""
    if options.data:
        for path in sorted((options.data / "imagenet_sample").glob("*.tar")):
            yield path.stem, path.read_bytes()
        return
    for number in range(7):
        yield f"photos-{number:04d}", make_shard(number)


def make_shard(number: int) -> bytes:
    buffer, positions = io.BytesIO(), np.arange(number * _PER_SHARD, (number + 1) * _PER_SHARD)
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        photos = make_photos(positions, classes=8, seed=0)
        for position, photo in zip(positions.tolist(), photos, strict=True):
            for suffix, content in (("jpg", photo), ("cls", str(position % 8).encode())):
                member = tarfile.TarInfo(f"{position:06d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def prepare(folder: Path, options: Options) -> int:
    """The photos as tars, as files and as LitData's chunks, each photo `copies` times; how many there are."""
    copies = 1 if options.quick else 4
    (folder / "tars").mkdir()
    for name, content in shards(options):
        for copy in range(copies):
            (folder / "tars" / f"{name}-{copy}.tar").write_bytes(content)
            _extract(content, folder / "folder" / f"{name}-{copy}")
    script = Path(__file__).parent / "peers" / "photos.py"
    subprocess.run([python(), script, "optimize", folder], check=True, stdout=2)
    return len(list((folder / "folder").rglob("*.jpg")))


def _extract(content: bytes, folder: Path) -> None:
    """The images of a shard; its name stands for a class, since torch's ImageFolder wants one."""
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None and member.name.endswith(".jpg"):
                (folder / Path(member.name).name).write_bytes(file.read())


class Ours:
    """Headwater on the tars as they are."""

    def __init__(self, folder: Path, seconds: float) -> None:
        floats = [T.ToDtype("float32", scale=True), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
        steps = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *floats])
        data = hw.open(folder / "tars", progress=False)
        self._loader = hw.DataLoader(data, steps, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
        self._seconds = seconds

    def measure(self) -> float:
        return images_per_second(self._loader, self._seconds)


def run(folder: Path, options: Options) -> Report:
    count, seconds = prepare(folder, options), 1.0 if options.quick else 8.0
    with ExitStack() as stack:
        contenders = {"headwater": Ours(folder, seconds).measure}
        for name in PEERS:
            peer = stack.enter_context(Peer("photos.py", name, str(folder), seconds=seconds))
            contenders[name] = peer.measure
        rates = interleave(contenders, rounds=options.rounds)
    ratios = {name: compare(rates, "headwater", name) for name in PEERS}
    asked = {name: 1.8 if name.startswith("torch") else 1.0 for name in PEERS}
    return Report(
        "images/s on local photos, ImageNet training transforms",
        (rate_table(rates, "headwater", "images/s"),),
        tuple(at_least(ratios[name], asked[name]) for name in PEERS),
        (f"{count} photos, batches of {BATCH}, {WORKERS} workers, at least {seconds:g} s a measurement",),
        raw={"rates": rates},
    )


if __name__ == "__main__":
    main(__doc__, run)
