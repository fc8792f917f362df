"""A bare TCP stream, to see what a link carries when nothing else stands in the way.

stream.py send HOST                     print the port, then send to one connection until it closes
stream.py receive HOST PORT SECONDS     print Mbit per second of payload
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress

_WARM_SECONDS = 0.5  # TCP's slow start, and the burst that an idle token bucket has saved


def send(host: str) -> None:
    with socket.create_server((host, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        block = bytes(1 << 16)
        with connection, suppress(OSError):
            while True:
                connection.sendall(block)


def receive(host: str, port: int, seconds: float) -> float:
    buffer = bytearray(1 << 18)
    with socket.create_connection((host, port), 10) as connection:
        _take(connection, buffer, _WARM_SECONDS)
        begin = time.perf_counter()
        count = _take(connection, buffer, seconds)
        return count * 8 / 1e6 / (time.perf_counter() - begin)


def _take(connection: socket.socket, buffer: bytearray, seconds: float) -> int:
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += connection.recv_into(buffer)
    return count


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2])
    else:
        print(receive(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
