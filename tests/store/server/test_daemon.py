"""All parts of a store together, in this process: started, asked, drained and ended, with nothing left."""

from __future__ import annotations

import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.flight as flight
import pytest

import headwater as hw
from headwater import transforms as T
from headwater.errors import DatasetNotFound, HeadwaterError, Incompatible, Refused, StoreLost, Unreachable
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.status import status
from headwater.store.server.config import DatasetConfig, ServeConfig
from headwater.store.server.daemon import Daemon
from headwater.store.wire import messages
from headwater.store.wire.messages import Hello, Release, Welcome

QUICK = Link(deadline_seconds=2.0, give_up_seconds=0.5)


def config(folder: Path, **settings: Any) -> ServeConfig:
    plain = {"listen": "127.0.0.1:0", "cores": 1, "datasets": {"photos": DatasetConfig(str(folder))}}
    return ServeConfig(**(plain | settings))


@pytest.fixture(scope="module")
def daemon(photo_folder: Path) -> Iterator[Daemon]:
    # More cores than one Python process uses: what the tests themselves burn is charged to the store here.
    with Daemon(config(photo_folder, cores=3)) as made:
        yield made


@pytest.fixture
def connection(daemon: Daemon) -> Iterator[Connection]:
    made = Connection(Address.parse(daemon.serving.address), Secret(None, {}), Link())
    yield made
    made.close()


def test_what_is_served_is_announced(daemon: Daemon, photo_folder: Path) -> None:
    local = hw.open(photo_folder)
    assert daemon.serving.datasets == {"photos": (36, local.version, int(local.sizes.sum()))}
    assert daemon.serving.address.startswith("grpc://127.0.0.1:")
    assert not daemon.serving.address.endswith(":0")
    assert daemon.serving.http is None


class TestActions:
    def test_hello(self, connection: Connection) -> None:
        body = messages.encode(Hello([1], "v"))
        welcome: Welcome = messages.decode(Welcome, connection.act("hello", body))
        assert set(welcome.datasets) == {"photos"}
        assert {"decode", "resize", "random_horizontal_flip"} <= set(welcome.catalogue)

    def test_hello_from_a_client_of_another_time(self, connection: Connection) -> None:
        with pytest.raises(Incompatible, match=r"speaks protocols \[1\], client 99\.0 \[99\]"):
            connection.act("hello", messages.encode(Hello([99], "99.0")))

    def test_health(self, connection: Connection) -> None:
        assert msgspec.json.decode(connection.act("health")) == {"status": "ok"}

    def test_status(self, daemon: Daemon) -> None:
        found = status(daemon.serving.address)
        assert found["status"] == "ok"
        assert found["metrics"]["headwater_cores_budget"] == 3

    def test_release(self, connection: Connection) -> None:
        assert msgspec.json.decode(connection.act("release", messages.encode(Release()))) == {"released": []}

    @pytest.mark.parametrize("action", ["nothing", "", "x" * 5000])
    def test_no_such_action(self, connection: Connection, action: str) -> None:
        with pytest.raises(HeadwaterError, match="no action is called"):
            connection.act(action)


def test_a_worker_that_was_killed_is_replaced_and_counted(daemon: Daemon, photo_folder: Path) -> None:
    transform = T.Compose([T.RandomCrop(20), T.RandomHorizontalFlip()])
    with closing(hw.open(daemon.serving.address)) as data:
        for pid in daemon._workers.pids:
            os.kill(pid, signal.SIGKILL)
        loader = hw.DataLoader(data, transform, batch_size=12, num_workers=0, offload=hw.Offload(3))
        assert sum(len(batch) for batch in loader) == 36
    daemon.tick()
    restarts = daemon._ledger.snapshot()["headwater_worker_restarts_total"]
    assert isinstance(restarts, int | float)
    assert 1 <= restarts <= 3


class TestEnd:
    def test_nothing_is_left(self, photo_folder: Path) -> None:
        before = set(threading.enumerate())
        with Daemon(config(photo_folder)) as daemon:
            pids = daemon._workers.pids
            address = daemon.serving.address
            assert pids
            with closing(hw.open(address)) as data:
                data.store.read(np.arange(3))
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
        assert set(threading.enumerate()) <= before
        host, _, port = address.removeprefix("grpc://").partition(":")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)), 2)

    def test_who_reads_the_metrics_is_noted(self, photo_folder: Path, tmp_path: Path) -> None:
        audit = tmp_path / "audit.jsonl"
        with Daemon(config(photo_folder, audit_log=audit, http="127.0.0.1:0")) as daemon:
            for _ in range(2):
                with urllib.request.urlopen(f"{daemon.serving.http}/metrics", timeout=10) as page:
                    assert b"headwater_requests_total" in page.read()
        lines = [msgspec.json.decode(line) for line in audit.read_bytes().splitlines()]
        (noted,) = [line for line in lines if line["action"] == "metrics"]
        assert (noted["requests"], noted["caller"], noted["outcome"]) == (2, "anonymous", "ok")

    def test_lines_that_the_audit_log_lost_are_counted_once(self, photo_folder: Path, tmp_path: Path) -> None:
        with Daemon(config(photo_folder, audit_log=tmp_path / "audit.jsonl")) as daemon:
            daemon.tick()
            assert daemon._ledger.snapshot()["headwater_audit_lost_total"] == 0
            assert daemon._audit._file is not None
            daemon._audit._file.lost += 3
            daemon.tick()
            daemon.tick()
            assert daemon._ledger.snapshot()["headwater_audit_lost_total"] == 3

    def test_drained_it_takes_nothing_and_says_so(
        self, photo_folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Daemon(config(photo_folder, drain_seconds=0.05)) as daemon:
            address = daemon.serving.address
            data = hw.open(address, link=QUICK)
            stay = daemon._talk.begin("somebody who does not end")
            daemon.drain()
            assert "still under way after 0.05 s" in caplog.text
            assert status(address)["status"] == "draining"
            with pytest.raises(StoreLost, match="draining") as caught:
                data.store.read(np.array([7]))
            assert (caught.value.dataset, caught.value.position) == ("photos", 7)
            with pytest.raises(Unreachable, match="draining"):
                hw.open(address, link=Link(deadline_seconds=0.5))
            caplog.clear()
            stay.end()
            daemon.drain()
            assert not caplog.text
            data.close()


class TestStart:
    def test_a_port_that_is_taken(self, photo_folder: Path, daemon: Daemon) -> None:
        taken = daemon.serving.address.removeprefix("grpc://")
        with (
            pytest.raises(HeadwaterError, match="is the port taken"),
            Daemon(config(photo_folder, listen=taken)),
        ):
            pass

    def test_data_that_is_not_there(self, tmp_path: Path) -> None:
        before = threading.active_count()
        with pytest.raises(DatasetNotFound), Daemon(config(tmp_path / "nothing")):
            pass
        assert threading.active_count() == before

    @pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
    def test_an_open_door(self, photo_folder: Path, listen: str) -> None:
        with pytest.raises(Refused):
            Daemon(config(photo_folder, listen=listen))

    def test_an_open_door_for_http(self, photo_folder: Path) -> None:
        with pytest.raises(Refused):
            Daemon(config(photo_folder, http="0.0.0.0:0"))


def test_errors_of_flight_itself_are_the_stores_own(daemon: Daemon) -> None:
    """No traceback, no path: the guard's tests try every method; this is the plain case."""
    client = flight.FlightClient(daemon.serving.address)
    with pytest.raises(flight.FlightError) as caught:
        client.do_get(flight.Ticket(b"nonsense")).read_all()
    assert "Traceback" not in str(caught.value)
    assert "no request that this store knows" in str(caught.value)
    client.close()
