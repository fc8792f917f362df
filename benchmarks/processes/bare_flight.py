"""A bare Flight server: one stream of record batches that lie in memory, and nothing else.

bare_flight.py TAR BATCH [CERT KEY]     print the port, and stream the tar's members to whoever asks

The ticket `sealed` asks for another stream: the members in random order, read from the tar and sealed as a
store does, but without requests, tokens or a budget.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

import headwater as hw
from headwater.store.wire import payloads

SCHEMA = pa.schema([("payload", pa.binary())])


class Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, data: hw.Dataset, batches: list[pa.RecordBatch], location: str, **tls: Any) -> None:
        self._data, self._batches = data, batches
        super().__init__(location, **tls)

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        if ticket.ticket == b"sealed":
            return flight.GeneratorStream(payloads.RAW, self._read())
        return flight.GeneratorStream(SCHEMA, self._stream())

    def _stream(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches

    def _read(self) -> Iterator[pa.RecordBatch]:
        store, size = self._data.store, self._batches[0].num_rows
        order = np.random.default_rng().permutation(len(self._data))
        for begin in range(0, len(order), size):
            some = order[begin : begin + size]
            yield payloads.pack(payloads.Parcel(self._data.ids[some], store.read(some)))


def main() -> None:
    name, size, *tls = sys.argv[1:]
    with tarfile.open(name) as tar:
        files = [member.read() for member in map(tar.extractfile, tar.getmembers()) if member is not None]
    lots = [files[begin : begin + int(size)] for begin in range(0, len(files), int(size))]
    batches = [pa.RecordBatch.from_arrays([pa.array(lot)], schema=SCHEMA) for lot in lots]
    arguments: dict[str, Any] = {}
    if tls:
        arguments = {"tls_certificates": [(Path(tls[0]).read_bytes(), Path(tls[1]).read_bytes())]}
    server = Server(
        hw.open(name, progress=False), batches, f"grpc{'+tls' if tls else ''}://127.0.0.1:0", **arguments
    )
    print(server.port, flush=True)
    server.serve()


if __name__ == "__main__":
    main()
