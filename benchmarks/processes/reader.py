"""A client of a store in a process of its own: a loader, or a drain that only fetches.

    reader.py URL SETTINGS      SETTINGS is JSON, see `Settings`

Answers commands on standard input, each with one line of JSON. A drain decodes nothing, so that the store and
not this process is the slow one. Times are CLOCK_MONOTONIC, which all processes of a machine share.

    epoch               the next epoch: images, bytes of the files, seconds
    window BEGIN END    fetch from now to END; what came between BEGIN and END
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.flight as flight

import headwater as hw
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain
from headwater.engine.fetching import Wanted
from headwater.store.wire import messages
from headwater.store.wire.messages import IndexRequest

_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

Answer = dict[str, float]


@dataclass(frozen=True)
class Settings:
    """How to read. `threads` and `rest` (seconds after each request) are of a drain; `cut` 0 is raw.

    With `index` a drain asks for the first page of the index, again and again, and for no sample.
    """

    batch: int = 128
    cut: int = 0
    threads: int = 8
    in_flight: int = 64 << 20
    rest: float = 0.0
    index: bool = False


def training_steps() -> Pipeline:
    """As in local_photos.py."""
    floats = [T.ToDtype("float32", scale=True), T.Normalize(_MEAN, _STD)]
    return T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *floats])


class Client:
    def __init__(self, url: str, settings: Settings) -> None:
        self._data = hw.open(url, progress=False, link=hw.Link(in_flight_bytes=settings.in_flight))
        self._settings = settings
        address, _, name = url.rpartition("/")
        self._link = flight.connect(address) if settings.index else None
        self._page = flight.Ticket(messages.encode(IndexRequest(name, self._data.index.version, "drain")))
        self._offload = hw.Offload(settings.cut) if settings.cut else None
        self._loader = hw.DataLoader(
            self._data,
            training_steps(),
            batch_size=settings.batch,
            shuffle=True,
            num_workers=2,
            offload=self._offload,
        )
        self._lock = threading.Lock()
        self._rounds = 0

    def epoch(self) -> Answer:
        before, begin = self._loader.stats(), time.perf_counter()
        images = sum(len(batch) for batch in self._loader)
        seconds, after = time.perf_counter() - begin, self._loader.stats()
        assert images == len(self._data)
        return {"images": images, "bytes": after.bytes_raw - before.bytes_raw, "seconds": seconds}

    def window(self, begin: float, end: float) -> Answer:
        """Threads that do nothing but fetch; a reply counts by the share of its time inside the window."""
        self._rounds += 1
        steps = training_steps().samplewise
        self._reader = self._data.store.reader(Chain(steps, 17), [self._offload] if self._offload else [])
        self._totals = {"images": 0.0, "bytes": 0.0, "cut": 0.0, "requests": 0.0}
        requests = self._requests()
        threads = [
            threading.Thread(target=self._fetch, args=(requests, begin, end))
            for _ in range(self._settings.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {**self._totals, "seconds": end - begin}

    def _requests(self) -> Iterator[Wanted]:
        """Batch after batch, epoch after epoch, for ever."""
        index, size, epoch = self._data.index, self._settings.batch, 0
        shuffled = np.random.default_rng(self._rounds)
        while True:
            order = shuffled.permutation(len(index))
            for start in range(0, len(order) - size + 1, size):
                some = order[start : start + size]
                yield Wanted(some, index.ids[some], epoch)
            epoch += 1

    def _fetch(self, requests: Iterator[Wanted], begin: float, end: float) -> None:
        while (asked := time.monotonic()) < end:
            got = self._fetch_page() if self._settings.index else self._fetch_samples(requests)
            came = time.monotonic()
            share = max(0.0, min(came, end) - max(asked, begin)) / (came - asked)
            with self._lock:
                for kind, count in got.items():
                    self._totals[kind] += share * count
                self._totals["requests"] += share
            if self._settings.rest:
                time.sleep(self._settings.rest)

    def _fetch_samples(self, requests: Iterator[Wanted]) -> Answer:
        with self._lock:
            wanted = next(requests)
        found = self._reader.fetch(wanted)
        assert not found.failed, next(iter(found.failed.values()))
        cut = 0 if found.done is None else int((found.done > 0).sum())
        return {"images": len(wanted.ids), "bytes": found.bytes_moved, "cut": cut}

    def _fetch_page(self) -> Answer:
        """Without the client's own part, which checks a page and keeps the index."""
        return {"bytes": self._link.do_get(self._page).read_all().nbytes}


def answer(client: Client) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": 1}), file=answers, flush=True)
    for line in sys.stdin:
        word, *numbers = line.split()
        found = client.epoch() if word == "epoch" else client.window(*map(float, numbers))
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    answer(Client(sys.argv[1], Settings(**json.loads(sys.argv[2]))))
