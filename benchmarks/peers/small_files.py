"""CIFAR-sized JPEG files from a Parquet file, through torch's DataLoader with torchvision's transforms.

`small_files.py NAME FILE` answers "measure SECONDS" on standard input.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from answering import answer
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

BATCH = 256
WORKERS = 2
_MEAN, _STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


class Rows(Dataset[Any]):
    """The table in memory, its image column in one piece."""

    def __init__(self, path: Path, transform: Callable[[Any], Any]) -> None:
        table = pq.read_table(path)
        self._images = table.column("image").combine_chunks().field("bytes")
        self._labels = table.column("label").to_pylist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self._images[row].as_py())).convert("RGB")
        return self._transform(image), self._labels[row]


def with_v2() -> Any:
    steps = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), v2.ToImage()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)])


def with_v1() -> Any:
    steps = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()]
    return v1.Compose([*steps, v1.Normalize(_MEAN, _STD)])


PEERS: dict[str, Callable[[], Any]] = {"torch-v2": with_v2, "torch-v1": with_v1}

if __name__ == "__main__":
    rows = Rows(Path(sys.argv[2]), PEERS[sys.argv[1]]())
    loader = DataLoader(rows, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    answer(lambda: loader)
