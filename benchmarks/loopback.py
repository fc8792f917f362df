"""What share of a bare Flight stream's rate does a store reach on loopback, and what does TLS cost?

Samples of 100 kB of noise, in a tar. The bare stream sends the same bytes from memory, in batches of 64, in
one call. The store reads them from the tar in random order, checks tokens and budget, and seals every
sample; the engine asks for them, several requests at once, and checks every seal. Between the two stands a
stream that reads and seals as the store does, in one call: what is below it is the cost of requests, of the
budget and of the engine. All servers are processes of their own and share the two cores with their client.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow.flight as flight
import trustme

import headwater as hw
from headwater.cli.child_store import ChildStore
from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.meter import Meter
from headwater.engine.run import Bounds, Task
from headwater.engine.run import run as run_engine
from headwater.store.wire import payloads
from measuring import Options, Report, at_least, compare, interleave, main, rate_table
from s3 import Raw

SIZE = 100_000
BATCH = 64
PASSES = 3
BARE = Path(__file__).parent / "processes" / "bare_flight.py"


def write_tar(folder: Path, count: int) -> Path:
    random = np.random.default_rng(0)
    target = folder / "noise.tar"
    with tarfile.open(target, "w") as tar:
        for number in range(count):
            member = tarfile.TarInfo(f"{number:05d}.jpg")
            member.size = SIZE
            tar.addfile(member, io.BytesIO(random.bytes(SIZE)))
    return target


def write_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority, and a certificate and key of 127.0.0.1."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    paths = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
    authority.cert_pem.write_to_path(paths[0])
    issued.cert_chain_pems[0].write_to_path(paths[1])
    issued.private_key_pem.write_to_path(paths[2])
    paths[2].chmod(0o600)
    return paths


class Bare:
    """The bare stream, read to its end."""

    def __init__(self, files: Path, stack: ExitStack, tls: tuple[Path, Path, Path] | None = None) -> None:
        words = [sys.executable, str(BARE), str(files), str(BATCH), *map(str, tls[1:] if tls else ())]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        stack.callback(child.wait)
        stack.callback(child.terminate)
        assert child.stdout is not None
        location = f"grpc{'+tls' if tls else ''}://127.0.0.1:{child.stdout.readline().strip()}"
        self._client = flight.FlightClient(location, tls_root_certs=tls[0].read_bytes() if tls else None)

    def measure(self) -> float:
        begin, size = time.perf_counter(), 0
        for _ in range(PASSES):
            reader = self._client.do_get(flight.Ticket(b""))
            size += sum(chunk.data.column(0).nbytes for chunk in reader)
        return size / 1e6 / (time.perf_counter() - begin)

    def measure_sealed(self) -> float:
        begin, size = time.perf_counter(), 0
        for _ in range(PASSES):
            for chunk in self._client.do_get(flight.Ticket(b"sealed")):
                ids = chunk.data.column("id").to_numpy()
                size += payloads.unpack(chunk.data, ids, cut=False).bytes
        return size / 1e6 / (time.perf_counter() - begin)


class Engine:
    """The store's samples through the engine, as files."""

    def __init__(self, data: hw.Dataset, stack: ExitStack) -> None:
        self._data = data
        self._crew = Crew(available_cores(), data.store.readers, patient=True)
        stack.callback(self._crew.close)

    def measure(self) -> float:
        index = self._data.index
        shuffles = [np.random.default_rng(number).permutation(len(index)) for number in range(PASSES)]
        lots = [order[begin : begin + BATCH] for order in shuffles for begin in range(0, len(order), BATCH)]
        chain = Chain(Pipeline(()))
        begin = time.perf_counter()
        batches = run_engine(
            (Task(some, index.ids[some], 0, int(index.sizes[some].sum())) for some in lots),
            self._data.store.reader(chain, []),
            chain=chain,
            sink=Raw(),
            crew=self._crew,
            bounds=Bounds(batches=8, lot=BATCH),
            meter=Meter(),
        )
        size = sum(sum(map(len, files)) for files in batches)
        assert size == PASSES * SIZE * len(index)
        return size / 1e6 / (time.perf_counter() - begin)


def run(folder: Path, options: Options) -> Report:
    count = 320 if options.quick else 2_000
    files = write_tar(folder, count)
    tls = write_certificates(folder)
    flags = ["--tls-cert", tls[1], "--tls-key", tls[2]]
    with ExitStack() as stack:
        plain = stack.enter_context(ChildStore([files], log=folder / "plain.log"))
        sealed = stack.enter_context(ChildStore([files], log=folder / "tls.log", flags=flags))
        link = hw.Link(ca=tls[0])
        bare = Bare(files, stack)
        contenders = {
            "store": Engine(hw.open(plain.uri("noise")), stack).measure,
            "bare stream": bare.measure,
            "stream that reads and seals": bare.measure_sealed,
            "store, TLS": Engine(hw.open(sealed.uri("noise"), link=link), stack).measure,
            "bare stream, TLS": Bare(files, stack, tls).measure,
        }
        rates = interleave(contenders, rounds=options.rounds)
    with_tls = compare(rates, "store, TLS", "store")
    bound = compare(rates, "stream that reads and seals", "bare stream")
    return Report(
        "raw samples of 100 kB on loopback: MB/s, against a bare Flight stream of the same bytes",
        (rate_table(rates, "store", "MB/s"), rate_table(rates, "store, TLS", "MB/s")),
        (at_least(compare(rates, "store", "bare stream"), 0.65),),
        (
            f"TLS on against off: {with_tls.median:.2f} ({with_tls.spread})",
            f"reading and sealing alone leave {bound.median:.2f} ({bound.spread}) of the bare stream",
            f"{count:,} samples, {PASSES} times a measurement, batches of {BATCH}",
        ),
        raw={"rates": rates},
    )


if __name__ == "__main__":
    main(__doc__, run)
