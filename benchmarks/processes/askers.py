"""Clients that have a store predict photos over HTTP, each one photo after the other, in one process.

    askers.py URL SETTINGS      SETTINGS is JSON, see `Settings`

Who is turned away rests for as long as the store says. Answers "measure SECONDS" on standard input with a
line of JSON: how many were answered and turned away, how long that took, and the seconds of each answer, from
before the connection is made.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import headwater as hw


@dataclass(frozen=True)
class Settings:
    """`photos` is a dataset whose files are sent; so many `clients` ask at once."""

    photos: str
    clients: int


@dataclass
class Tally:
    """What became of the requests of all clients."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, status: int, seconds: float) -> None:
        with self.lock:
            if status == 200:
                self.seconds.append(seconds)
            else:
                self.refused += status == 503
                self.failed += status != 503


def ask(place: Any, photo: bytes) -> tuple[int, float]:
    """The status, and how long to rest."""
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    try:
        connection.request("POST", "/predict?dataset=photos", photo, {"Content-Type": "image/jpeg"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, float(answer.headers.get("Retry-After", 0))
    finally:
        connection.close()


def measure(place: Any, photos: list[bytes], clients: int, seconds: float) -> dict[str, Any]:
    tally, begin = Tally(), time.perf_counter()

    def run(number: int) -> None:
        place_of_next = number
        while time.perf_counter() - begin < seconds:
            begun = time.perf_counter()
            status, rest = ask(place, photos[place_of_next % len(photos)])
            tally.add(status, time.perf_counter() - begun)
            place_of_next += clients
            time.sleep(rest)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "images": len(tally.seconds),
        "seconds": time.perf_counter() - begin,
        "refused": tally.refused,
        "failed": tally.failed,
        "latencies": tally.seconds,
    }


def answer(url: str, settings: Settings) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    data = hw.open(settings.photos, progress=False)
    photos = [bytes(file) for file in data.store.read(np.arange(len(data)))]
    print(json.dumps({"ready": 1}), file=answers, flush=True)
    for line in sys.stdin:
        found = measure(urlsplit(url), photos, settings.clients, float(line.split()[1]))
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    answer(sys.argv[1], Settings(**json.loads(sys.argv[2])))
