"""A reply that nobody reads has an end: its connection, its thread and its memory."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow.flight as flight
import pytest

import headwater as hw
from headwater.store.server.peers import endpoint_of
from headwater.store.server.sending import Sending, hang_up
from headwater.store.wire import messages
from headwater.store.wire.messages import ReadRequest
from stores import running_daemon


def test_only_what_is_late_is_ended() -> None:
    now = 0.0
    sending = Sending(60.0, clock=lambda: now)
    with sending.reply("ipv4:192.0.2.1:5") as first:
        now = 50.0
        with sending.reply("ipv4:192.0.2.1:6") as second:
            now = 60.0
            assert sending.end_late(7077) == 0  # there is no such connection
            assert (first.late, second.late) == (True, False)
            assert len(sending) == 2
    assert len(sending) == 0


@pytest.mark.parametrize(
    ("peer", "endpoint"),
    [
        ("ipv4:127.0.0.1:51234", ("127.0.0.1", 51234)),
        ("ipv6:%5B::1%5D:5123", ("::1", 5123)),
        ("[::ffff:127.0.0.1]:7", ("127.0.0.1", 7)),
        ("unix:/run/x", None),
        ("ipv4:127.0.0.1", None),
        ("", None),
    ],
)
def test_the_other_end(peer: str, endpoint: tuple[str, int] | None) -> None:
    assert endpoint_of(peer) == endpoint


def test_no_peer_hangs_nobody_up() -> None:
    assert hang_up(["unix:/run/x"], 1) == 0


def until_idle(held: object) -> None:
    deadline = time.monotonic() + 20
    while held():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the reply was never given up"
        time.sleep(0.01)


def test_a_client_that_does_not_read_is_hung_up_on_and_the_others_are_not(
    photo_folder: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    large.mkdir()
    for number in range(8):
        (large / f"{number}.jpg").write_bytes(np.random.default_rng(number).bytes(2 << 20))
    audit = tmp_path / "audit.jsonl"
    with running_daemon({"large": large}, send_seconds=0.3, audit_log=audit) as daemon:
        address, version = daemon.serving.address, daemon.serving.datasets["large"][1]
        data = hw.open(f"{address}/large")
        request = ReadRequest("large", version, "lazy", data.index.ids.tobytes())
        # a connection of its own, and no deadline
        lazy = flight.FlightClient(address, generic_options=[("headwater.test", 1)])
        reader = lazy.do_get(flight.Ticket(messages.encode(request)))
        while not len(daemon._sending):
            time.sleep(0.01)
        turnstile = daemon._talk._desk.turnstile
        assert turnstile.held > 0
        daemon.tick()
        assert turnstile.held > 0  # not late yet
        time.sleep(0.3)
        daemon.tick()
        until_idle(lambda: turnstile.held or daemon._talk._under_way)
        with pytest.raises(flight.FlightUnavailableError):
            reader.read_all()
        daemon.tick()
        assert daemon._ledger.snapshot()["headwater_unread_total"] == 1
        assert len(data.store.read(np.arange(8))) == 8
        lazy.close()
        data.close()
    assert '"outcome": "not read"' in audit.read_text()
