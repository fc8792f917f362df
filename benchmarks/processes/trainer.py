"""A training loop in a process of its own: a loader with a way to offload, and what its epochs brought.

    trainer.py URL SETTINGS      SETTINGS is JSON, see `Settings`

Answers commands on standard input, each with one line of JSON:

    epoch       the next epoch: images, seconds, and the digest of every sample if they were asked for
    counts      samples by outcome, as the store has counted them so far
    stretches   what the planner planned and found, stretch by stretch; empty where nobody plans
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash
from reader import training_steps

import headwater as hw
from headwater.store.client.status import status


@dataclass(frozen=True)
class Settings:
    """`offload` is the name of a policy, or the fields of an `Offload` (with `cut`) or of an `Auto`.

    `samples` takes the first so many, 0 all. Every batch is kept for `hold` seconds.
    """

    batch: int = 64
    offload: str | dict[str, Any] = "none"
    samples: int = 0
    seed: int = 0
    hold: float = 0.0
    digests: bool = False

    def way(self) -> str | hw.Offload | hw.Auto:
        if isinstance(self.offload, str):
            return self.offload
        return hw.Offload(**self.offload) if "cut" in self.offload else hw.Auto(**self.offload)


class Training:
    def __init__(self, url: str, settings: Settings) -> None:
        self._url, self._settings = url, settings
        data = hw.open(url, progress=False)
        self._data = data.select(data.ids[: settings.samples]) if settings.samples else data
        self._loader = hw.DataLoader(
            self._data,
            training_steps(),
            batch_size=settings.batch,
            shuffle=True,
            seed=settings.seed,
            offload=settings.way(),
        )

    def epoch(self) -> dict[str, Any]:
        digests: dict[int, str] = {}
        begin, images = time.perf_counter(), 0
        for batch in self._loader:
            images += len(batch)
            if self._settings.digests:
                digests |= digests_of(batch)
            if self._settings.hold:
                time.sleep(self._settings.hold)
        assert images == len(self._data)
        return {"images": images, "seconds": time.perf_counter() - begin, "digests": digests}

    def counts(self) -> dict[str, Any]:
        found: dict[str, Any] = status(self._url)["metrics"]["headwater_samples_total"]
        return found

    def stretches(self) -> list[Any]:
        logbook = self._loader.logbook
        return [] if logbook is None else [msgspec.to_builtins(stretch) for stretch in logbook.stretches]


def digests_of(batch: hw.Batch) -> dict[int, str]:
    """Of each sample's input and label, by its id."""
    rows = zip(batch.ids.tolist(), batch.inputs.numpy(), batch.targets.tolist(), strict=True)
    return {id: f"{xxhash.xxh3_64_hexdigest(row.data)} {label}" for id, row, label in rows}


def answer(training: Training) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    commands = {"epoch": training.epoch, "counts": training.counts, "stretches": training.stretches}
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(commands[line.strip()]()), file=answers, flush=True)


if __name__ == "__main__":
    answer(Training(sys.argv[1], Settings(**json.loads(sys.argv[2]))))
