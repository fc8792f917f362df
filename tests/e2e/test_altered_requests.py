"""A request that is altered on its way, where no checksum of the link sees it: noticed, and asked again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import headwater as hw
from rigs import Truth, load, make_folder
from stores import StoreProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Altering:
    """A relay that replaces some bytes, once, on the way to the store."""

    def __init__(self, port: int, what: bytes, by: bytes) -> None:
        self._port, self._what, self._by = port, what, by
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.port = self._listener.getsockname()[1]
        self.armed = self.altered = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                threading.Thread(target=self._carry, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, client, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if up and self.armed and not self.altered and self._what in data:
                    data, self.altered = data.replace(self._what, self._by, 1), True
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def truth(folder: Path) -> Truth:
    return Truth(folder)


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[StoreProcess]:
    with StoreProcess({"photos": folder}) as store:
        yield store


ALTERED = {
    "another dataset": (b"photos", b"rhotos"),
    "an option of another name": (b"antialias", b"antialiac"),
    "another step": (b"resize", b"resizd"),
    "no smoothing": (b"antialias\xc3", b"antialias\xc2"),
    "another cut": (b"\xa4cuts\xc4\x08\x03\x03", b"\xa4cuts\xc4\x08\x03\x02"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_an_altered_request_is_asked_again(case: str, store: StoreProcess, truth: Truth) -> None:
    expect_the_truth(Altering(store.port, *ALTERED[case]), truth)


def expect_the_truth(relay: Altering, truth: Truth) -> None:
    with closing(relay), closing(hw.open(f"grpc://127.0.0.1:{relay.port}/photos")) as data:
        batches = iter(load(data, workers=0, offload=hw.Offload(3)))
        found = [next(batches)]
        relay.armed = True
        truth.check([*found, *batches], 0)
        assert relay.altered
