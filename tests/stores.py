"""Real stores for tests: `headwater serve` in a process of its own, its certificates and its tokens.

Most tests are quicker with `running_daemon`, the same store in this process.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import trustme

from headwater.store.client.link import Link
from headwater.store.server.config import DatasetConfig, ServeConfig
from headwater.store.server.daemon import Daemon

START_SECONDS = 90.0
END_SECONDS = 45.0
_OWN = ("HEADWATER_TOKEN", "HEADWATER_TOKEN_FILE")


class Ended(NamedTuple):
    """How a store's process ended, and all that it said."""

    code: int
    stderr: str


class NotStarted(Exception):
    """The store ended before it was ready."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(f"exit code {ended.code}: {ended.stderr}")
        self.ended = ended


class StoreProcess:
    """A store of `datasets` (name > where it lies); flags are named as in `headwater serve`.

    `StoreProcess({"photos": folder}, token_file=path, plaintext=True)`; None leaves a flag out. It listens
    on a free port of loopback, and on the same one after `restart`. With `with` it is started, and at the
    end killed. A `faults.ProcessControl`.
    """

    def __init__(
        self,
        datasets: Mapping[str, Path | str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **flags: object,
    ) -> None:
        self._data = [f"{name}={where}" for name, where in (datasets or {}).items()]
        self._flags = {"listen": "127.0.0.1:0", "cores": 1, **flags}
        kept = {name: value for name, value in os.environ.items() if name not in _OWN}
        path = os.pathsep.join(sys.path)
        self._environment = {**kept, "PYTHONPATH": path, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.serving: dict[str, Any] = {}

    @property
    def words(self) -> list[str]:
        """What is written after `headwater`."""
        given = {f"--{name.replace('_', '-')}": value for name, value in self._flags.items()}
        flags = [
            word
            for name, value in given.items()
            if value is not None and value is not False
            for word in ((name,) if value is True else (name, str(value)))
        ]
        return ["serve", *self._data, *flags, "--json"]

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the store was not started"
        return self._process

    @property
    def address(self) -> str:
        """grpc://HOST:PORT or grpc+tls://HOST:PORT."""
        return str(self.serving["address"])

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def http(self) -> str:
        return str(self.serving["http"])

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        """What it has said until now."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def start(self) -> Self:
        """Start it and wait until it is ready; raises `NotStarted`."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headwater.cli", *self.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
        )
        try:
            self.serving = self._wait_until_ready()
        except BaseException:
            self._discard()
            raise
        self._flags["listen"] = f"127.0.0.1:{self.port}" if self._on_loopback else self._flags["listen"]
        return self

    def suspend(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; nothing to a store that runs, or that is gone."""
        self.process.send_signal(signal.SIGCONT)

    def fill(self) -> None:
        """As if its disk were full: it can write to no file, until `free` or a restart."""
        self._bound_files(0)

    def free(self) -> None:
        """Room again; nothing to a store that has room, or that is gone."""
        self._bound_files(None)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """SIGKILL, and start it again at the same address."""
        self._discard()
        self.start()

    def terminate(self) -> Ended:
        """SIGTERM, and wait until it has drained."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> Ended:
        """Wait until it ends by itself."""
        code = self.process.wait(END_SECONDS)
        return Ended(code, self.stderr)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self._discard()

    @property
    def _on_loopback(self) -> bool:
        return str(self._flags["listen"]).startswith("127.0.0.1:")

    def _wait_until_ready(self) -> dict[str, Any]:
        """Its one JSON document, which it prints over several lines."""
        assert self.process.stdout is not None
        end = time.monotonic() + START_SECONDS
        said = b""
        while select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            said += part
            if not part:
                raise NotStarted(Ended(self.process.wait(END_SECONDS), said.decode() + self.stderr))
            if said.endswith(b"}\n"):
                return self._announced(json.loads(said))
        raise TimeoutError(f"the store was not ready after {START_SECONDS:g} s: {self.stderr}")

    def _announced(self, document: dict[str, Any]) -> dict[str, Any]:
        if "error" in document:
            raise NotStarted(
                Ended(self.process.wait(END_SECONDS), document["error"]["message"] + self.stderr)
            )
        return document

    def _bound_files(self, size: int | None) -> None:
        # Python ignores SIGXFSZ, so a write beyond the limit fails like one to a full disk.
        if self.process.poll() is None:
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def _discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()
            self._process = None


@contextmanager
def running_daemon(datasets: Mapping[str, Path | str], **settings: Any) -> Iterator[Daemon]:
    """A store in this process, with one worker; `settings` are those of `ServeConfig`."""
    served = {name: DatasetConfig(str(where)) for name, where in datasets.items()}
    config = ServeConfig(**{"listen": "127.0.0.1:0", "cores": 1, "datasets": served, **settings})
    with Daemon(config) as daemon:
        yield daemon


@dataclass(frozen=True)
class Certificates:
    """PEM files of an authority, of a store on this machine, of a client, and of somebody else."""

    ca: Path
    cert: Path
    key: Path
    client_cert: Path
    client_key: Path
    other_ca: Path
    other_cert: Path
    other_key: Path

    @property
    def serve(self) -> dict[str, Path]:
        """Settings of a store that speaks TLS."""
        return {"tls_cert": self.cert, "tls_key": self.key}

    @property
    def serve_mutual(self) -> dict[str, Path]:
        """Settings of a store that also wants a certificate of its clients."""
        return {**self.serve, "tls_client_ca": self.ca}

    def link(self, **settings: Any) -> Link:
        """For a client that trusts the store."""
        return Link(**{"ca": self.ca, **settings})

    def link_mutual(self, **settings: Any) -> Link:
        """For a client that also shows who it is."""
        return self.link(**{"cert": self.client_cert, "key": self.client_key, **settings})


def make_certificates(folder: Path) -> Certificates:
    """Certificates for 127.0.0.1 and localhost, a client's, and a client's of an authority nobody trusts."""
    authority, other = trustme.CA(), trustme.CA()
    paths = {name: folder / f"{name}.pem" for name in Certificates.__annotations__}
    folder.mkdir(parents=True, exist_ok=True)
    authority.cert_pem.write_to_path(str(paths["ca"]))
    other.cert_pem.write_to_path(str(paths["other_ca"]))
    _issue(authority, "127.0.0.1", "localhost", cert=paths["cert"], key=paths["key"])
    _issue(authority, "client", cert=paths["client_cert"], key=paths["client_key"])
    _issue(other, "client", cert=paths["other_cert"], key=paths["other_key"])
    return Certificates(**paths)


def _issue(authority: trustme.CA, *names: str, cert: Path, key: Path) -> None:
    issued = authority.issue_cert(*names)
    cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    _write_private(key, issued.private_key_pem.bytes())


def write_tokens(folder: Path, **entries: Mapping[str, object]) -> Path:
    """A token file: `write_tokens(folder, trainer={"secret": SECRET, "scopes": ["read"]})`.

    What is not a string or a list is written as it is, such as a time. An old file is replaced in one go.
    """
    lines = [
        line
        for name, entry in entries.items()
        for line in ("[[token]]", f'name = "{name}"', *(f"{key} = {_toml(entry[key])}" for key in entry))
    ]
    path, fresh = folder / "tokens.toml", folder / "tokens.new"
    _write_private(fresh, "\n".join(lines).encode())
    fresh.replace(path)
    return path


def _toml(value: object) -> str:
    return json.dumps(value) if isinstance(value, str | list) else str(value)


def _write_private(path: Path, content: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(content)
