"""Photos through torch's DataLoader, WebDataset and LitData, each as its own documentation recommends.

All decode with Pillow: torchvision's own decoder (and LitData's default, which calls it) needs a build
of torchvision's extension for the installed torch. LitData therefore keeps the JPEG as bytes and
decodes in `transform`.

    photos.py NAME FOLDER        answer "measure SECONDS" on standard input
    photos.py optimize FOLDER    make LitData's chunks in FOLDER/litdata from FOLDER/folder
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from answering import answer
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

BATCH = 128
WORKERS = 2
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

Epoch = Callable[[], Iterable[Any]]


def on_pillow() -> v2.Compose:
    """As torchvision's training reference has them by default: Pillow images up to the tensor."""
    return v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor(), *_floats()])


def on_tensors() -> v2.Compose:
    """As torchvision's notes on performance recommend: uint8 tensors from the beginning."""
    return v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *_floats()])


def _floats() -> list[torch.nn.Module]:
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]


class Decoded:
    """A JPEG file's bytes > an RGB image > the transforms. A class, so that workers can receive it."""

    def __init__(self, transform: v2.Compose) -> None:
        self._transform = transform

    def __call__(self, data: bytes) -> torch.Tensor:
        image: torch.Tensor = self._transform(Image.open(io.BytesIO(data)).convert("RGB"))
        return image


class Sample:
    """An item of LitData's chunks > image and label."""

    def __init__(self, transform: v2.Compose) -> None:
        self._decoded = Decoded(transform)

    def __call__(self, item: dict[str, Any]) -> tuple[torch.Tensor, int]:
        return self._decoded(item["image"]), item["label"]


def class_number(data: bytes) -> int:
    """A WordNet id such as n01440764, or a plain number."""
    return int(data.strip().lstrip(b"n"))


def torch_epochs(folder: Path, transform: v2.Compose) -> Epoch:
    from torchvision.datasets import ImageFolder

    data = ImageFolder(str(folder / "folder"), transform)
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


def webdataset_epochs(folder: Path, transform: v2.Compose) -> Epoch:
    import webdataset as wds

    shards = sorted(str(path) for path in (folder / "tars").glob("*.tar"))
    data = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("jpg", "cls")
    data = data.map_tuple(Decoded(transform), class_number).batched(BATCH)
    # Batches are made in the workers, as WebDataset advises: single samples are dear to send.
    loader = wds.WebLoader(data, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


def litdata_epochs(folder: Path, transform: v2.Compose) -> Epoch:
    import litdata

    data = litdata.StreamingDataset(
        str(folder / "litdata"), shuffle=True, drop_last=False, transform=Sample(transform)
    )
    loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


def litdata_raw_epochs(folder: Path, transform: v2.Compose) -> Epoch:
    import litdata

    cache = str(folder / "litdata-raw")
    data = litdata.StreamingRawDataset(str(folder / "folder"), cache_dir=cache, transform=Decoded(transform))
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    return lambda: ((inputs, None) for inputs in loader)


PEERS: dict[str, Callable[[Path], Epoch]] = {
    "torch-pillow": lambda folder: torch_epochs(folder, on_pillow()),
    "torch-tensors": lambda folder: torch_epochs(folder, on_tensors()),
    "webdataset": lambda folder: webdataset_epochs(folder, on_pillow()),
    "litdata": lambda folder: litdata_epochs(folder, on_pillow()),
    "litdata-raw": lambda folder: litdata_raw_epochs(folder, on_pillow()),
}


def _item(entry: tuple[str, int]) -> dict[str, Any]:
    path, label = entry
    return {"image": Path(path).read_bytes(), "label": label}


def optimize(folder: Path, target: str = "litdata", chunk_bytes: str = "64MB") -> None:
    """LitData's own format, chunks of its recommended 64 MB; the JPEG files stay what they are."""
    import litdata

    paths = sorted((folder / "folder").rglob("*.jpg"))
    litdata.optimize(
        fn=_item,
        inputs=[(str(path), number) for number, path in enumerate(paths)],
        output_dir=str(folder / target),
        chunk_bytes=chunk_bytes,
        num_workers=WORKERS,
        verbose=False,
    )


if __name__ == "__main__":
    name, where = sys.argv[1], Path(sys.argv[2])
    if name == "optimize":
        optimize(where)
    else:
        answer(PEERS[name](where))
