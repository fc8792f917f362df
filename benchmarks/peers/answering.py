"""What every peer's child process shares: the schemas that torchvision misses, and the answers on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

# torchvision's wheel is built for another torch; declared and never called, these let it be imported.
_library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for _name in ("nms", "qnms"):
    _schema = f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    _library.define(_schema)  # type: ignore[no-untyped-call]


def answer(epoch: Callable[[], Iterable[Any]]) -> None:
    """For each line "measure SECONDS": whole epochs until the seconds are over, then one line of JSON."""
    # What a peer prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        seconds = float(line.split()[1])
        print(json.dumps(_measure(epoch, seconds)), file=answers, flush=True)


def _measure(epoch: Callable[[], Iterable[Any]], seconds: float) -> dict[str, float]:
    begin, images = time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < seconds:
        for inputs, _ in epoch():
            assert inputs.dtype == torch.float32
            images += len(inputs)
    return {"images": images, "seconds": spent}
