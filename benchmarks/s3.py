"""What share of a bare ranged-read loop's rate does the engine reach on S3?

A real S3 server (SeaweedFS) on loopback, in a process of its own on the same cores, holds photos as objects.
The bare loop is the same client, obstore, called by 16 threads that do nothing else. The engine delivers the
same objects' bytes through `hw.open`, in the same order; the loader also decodes and crops them.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import S3Store

import headwater as hw
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.data.synthetic import make_photos
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.meter import Meter
from headwater.engine.run import Bounds, Failure, Task
from headwater.engine.run import run as run_engine
from measuring import Options, Report, at_least, compare, interleave, main, rate_table

BUCKET = "photos"
THREADS = 16
BATCH = 256
PASSES = 3
_START_SECONDS = 60


def free_ports(count: int) -> list[int]:
    """Ports that are free together with the one 10,000 above, which SeaweedFS takes too."""
    found: list[int] = []
    for port in range(21_000, 50_000, 7):
        if len(found) < count and all(_is_free(number) for number in (port, port + 10_000)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextmanager
def server(folder: Path) -> Iterator[dict[str, str]]:
    """A running server, as the settings that a client needs."""
    s3, master, volume, filer, admin = free_ports(5)
    login = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)}
    ports = {"s3.port": s3, "master.port": master, "volume.port": volume, "filer.port": filer}
    off = {"admin.ui": "false", "webdav": "false", "master.telemetry": "false"}
    unused = {"s3.port.iceberg": 0, "s3.port.lance": 0}
    flags = ports | off | unused | {"admin.port": admin, "bucket": BUCKET, "dir": folder}
    words = [f"-{name}={value}" for name, value in flags.items()]
    weed = Path(sys.executable).parent / "weed"
    with (folder / "server.log").open("wb") as log:
        child = subprocess.Popen(
            [weed, "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *words],
            env={**os.environ, **login},
            stdout=log,
            stderr=log,
        )
    settings = {
        "endpoint": f"http://127.0.0.1:{s3}",
        "access_key_id": login["AWS_ACCESS_KEY_ID"],
        "secret_access_key": login["AWS_SECRET_ACCESS_KEY"],
        "region": "us-east-1",
    }
    try:
        _await(child, settings, folder / "server.log")
        yield settings
    finally:
        child.terminate()
        child.wait()


def _await(child: subprocess.Popen[bytes], settings: dict[str, str], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    store = client(settings)
    while True:
        try:
            obstore.put(store, "ready", b"yes")
        except Exception as error:  # whatever a server says that is not up yet
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.1)
        else:
            obstore.delete(store, "ready")
            return


def client(settings: dict[str, str]) -> S3Store:
    patient = {"max_retries": 0, "retry_timeout": timedelta(seconds=5)}
    return S3Store(BUCKET, config=settings, client_options={"allow_http": True}, retry_config=patient)  # type: ignore[arg-type]


def upload(settings: dict[str, str], options: Options) -> int:
    """Photos as objects, repeated until there are enough."""
    if options.data:
        tars = hw.open(options.data / "imagenet_sample", progress=False)
        photos = [bytes(photo) for photo in tars.store.read(tars.positions())]
    else:
        photos = list(make_photos(np.arange(200), classes=8, seed=0))
    store, count = client(settings), 200 if options.quick else 2_000

    def put(number: int) -> None:
        obstore.put(store, f"train/class-{number % 10}/{number:06d}.jpg", photos[number % len(photos)])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(put, range(count)))
    return count


class Raw:
    """A sink that hands over files as they are."""

    batch_bytes = 0

    def open(self, task: Task) -> Raw:
        self.batch_bytes = task.bytes_raw
        target = Raw()
        target._files = [b""] * len(task.ids)
        return target

    _files: list[Any]

    def put(self, slot: int, image: Any) -> None:
        self._files[slot] = image

    def put_fields(self, slots: Sequence[int], fields: Mapping[str, Sequence[object]]) -> None:
        return None

    def settle(self, begin: int, end: int) -> None:
        return None

    def finish(self, failures: Sequence[Failure]) -> list[Any]:
        assert not failures, failures[0]
        files, self._files = self._files, []
        return files


class Contenders:
    """The bare loop, the engine and the loader over the same objects in the same order."""

    def __init__(self, data: hw.Dataset, settings: dict[str, str]) -> None:
        self._data = data
        self._store = client(settings)
        self._pool = ThreadPoolExecutor(THREADS)
        self._crew = Crew(available_cores(), data.store.readers)
        shuffles = [np.random.default_rng(number).permutation(len(data)) for number in range(PASSES)]
        self._order = np.concatenate(shuffles)
        index, order = data.index, self._order.tolist()
        self._objects = [(f"train/{index.key(at)}", int(index.sizes[at])) for at in order]
        self._bytes = PASSES * int(index.sizes.sum())
        lot = max(1, min(-(-BATCH // data.store.readers), (1 << 20) // int(data.sizes.mean())))
        self._bounds = Bounds(batches=4, lot=lot)
        steps = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip()])
        self._loader = hw.DataLoader(data, steps, batch_size=BATCH, shuffle=True)

    def bare(self) -> float:
        begin = time.perf_counter()
        assert sum(self._pool.map(self._get, self._objects)) == self._bytes
        return len(self._objects) / (time.perf_counter() - begin)

    def _get(self, one: tuple[str, int]) -> int:
        path, size = one
        return len(obstore.get_range(self._store, path, start=0, length=size))

    def engine(self) -> float:
        index, begin = self._data.index, time.perf_counter()
        lots = [self._order[start : start + BATCH] for start in range(0, len(self._order), BATCH)]
        delivered = run_engine(
            (Task(some, index.ids[some], 0, int(index.sizes[some].sum())) for some in lots),
            self._data.store,
            chain=Chain(Pipeline(())),
            sink=Raw(),
            crew=self._crew,
            bounds=self._bounds,
            meter=Meter(),
        )
        assert sum(sum(map(len, files)) for files in delivered) == self._bytes
        return len(self._order) / (time.perf_counter() - begin)

    def loader(self) -> float:
        begin = time.perf_counter()
        return sum(len(batch) for batch in self._loader) / (time.perf_counter() - begin)

    def close(self) -> None:
        self._crew.close()
        self._loader.close()
        self._pool.shutdown()


def run(folder: Path, options: Options) -> Report:
    with server(folder) as settings:
        count = upload(settings, options)
        data = hw.open(f"s3://{BUCKET}/train", storage=settings, progress=False)
        assert len(data) == count
        contenders = Contenders(data, settings)
        measures = {"engine": contenders.engine, "bare loop": contenders.bare, "loader": contenders.loader}
        rates = interleave(measures, rounds=options.rounds)
        contenders.close()
    ratio = compare(rates, "engine", "bare loop")
    kilobytes = int(data.sizes.mean()) // 1000
    size = f"{count} objects of {kilobytes} kB, {PASSES} times, {THREADS} threads, batches of {BATCH}"
    return Report(
        "S3 on loopback: objects/s, and the engine's share of a bare ranged-read loop's rate",
        (rate_table(rates, "engine", "objects/s"),),
        (at_least(ratio, 0.9),),
        (size, "for information: the loader decodes, crops to 224 and flips on the server's cores"),
        raw={"rates": rates},
    )


if __name__ == "__main__":
    main(__doc__, run)
