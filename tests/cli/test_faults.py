"""Each fault of the proxy, by what both ends see."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from headwater.cli.faults import Fault
from headwater.cli.proxy import Shape
from headwater.errors import WrongUse
from wires import (
    QUIET_SECONDS,
    Wire,
    directed,
    expect_reset,
    expect_silence,
    ping,
    read_all,
    read_exactly,
    send_in_thread,
    wires,
)

Make = Callable[..., Wire]
both_directions = pytest.mark.parametrize("direction", ["up", "down"])


@pytest.fixture
def make_wire() -> Iterator[Make]:
    with wires() as make:
        yield make


def one(*faults: Fault) -> Sequence[Sequence[Fault]]:
    """For the first connection only."""
    return [faults]


@both_directions
def test_corrupt_flips_the_bits_it_names_and_no_other(make_wire: Make, direction: str) -> None:
    data = random.Random(4).randbytes(100_000)
    faults = [
        Fault("corrupt", direction, after_bytes=70_001, mask=0x81),  # type: ignore[arg-type]
        Fault("corrupt", direction, after_bytes=0, mask=0x02),  # type: ignore[arg-type]
        Fault("corrupt", direction, after_bytes=len(data) - 1),  # type: ignore[arg-type]
    ]
    sender, receiver = directed(direction, make_wire(faults=one(*faults)).dial())
    send_in_thread(sender, data)
    wanted = bytearray(data)
    for position, mask in ((70_001, 0x81), (0, 0x02), (len(data) - 1, 0x01)):
        wanted[position] ^= mask
    assert read_exactly(receiver, len(data)) == bytes(wanted)
    send_in_thread(receiver, data)
    assert read_exactly(sender, len(data)) == data


@both_directions
def test_truncate_ends_both_streams_after_its_bytes(make_wire: Make, direction: str) -> None:
    fault = Fault("truncate", direction, after_bytes=20_003)  # type: ignore[arg-type]
    wire = make_wire(faults=one(fault))
    sender, receiver = directed(direction, wire.dial())
    data = random.Random(5).randbytes(60_000)
    send_in_thread(sender, data)
    assert read_all(receiver) == data[:20_003]
    assert read_all(sender) == b""
    assert wire.proxy.bytes_up + wire.proxy.bytes_down == 20_003


@both_directions
def test_reset_reaches_both_ends(make_wire: Make, direction: str) -> None:
    fault = Fault("reset", direction, after_bytes=1_000)  # type: ignore[arg-type]
    sender, receiver = directed(direction, make_wire(faults=one(fault)).dial())
    sender.sendall(bytes(999))
    assert read_exactly(receiver, 999) == bytes(999)
    expect_silence(receiver)
    sender.sendall(bytes(1))
    expect_reset(receiver)
    expect_reset(sender)


@both_directions
def test_half_close_ends_one_stream_and_keeps_the_other(make_wire: Make, direction: str) -> None:
    fault = Fault("half-close", direction, after_bytes=5)  # type: ignore[arg-type]
    sender, receiver = directed(direction, make_wire(faults=one(fault)).dial())
    sender.sendall(b"12345678")
    assert read_all(receiver) == b"12345"
    receiver.sendall(b"still here")
    assert read_exactly(sender, 10) == b"still here"
    sender.sendall(bytes(1_000_000))  # taken, and lost


@both_directions
def test_swallow_loses_bytes_of_one_direction(make_wire: Make, direction: str) -> None:
    fault = Fault("swallow", direction, after_bytes=3)  # type: ignore[arg-type]
    wire = make_wire(faults=one(fault))
    sender, receiver = directed(direction, wire.dial())
    sender.sendall(b"123456")
    assert read_exactly(receiver, 3) == b"123"
    sender.sendall(bytes(1_000_000))
    sender.shutdown(socket.SHUT_WR)  # a black hole swallows this too
    expect_silence(receiver)
    receiver.sendall(b"back")
    assert read_exactly(sender, 4) == b"back"
    assert wire.proxy.bytes_up + wire.proxy.bytes_down == 7


@pytest.mark.parametrize("kind", ["hold", "pause"])
def test_hold_and_pause_deliver_everything_later(make_wire: Make, kind: Any) -> None:
    wire = make_wire(faults=one(Fault(kind, "up", after_bytes=3, seconds=0.4)))
    client, server = wire.dial()
    client.sendall(b"123")
    assert read_exactly(server, 3) == b"123"
    client.sendall(b"456")
    expect_silence(server)
    server.sendall(b"back")
    assert read_exactly(client, 4) == b"back"
    assert read_exactly(server, 3) == b"456"


def test_a_pause_lets_the_senders_window_close(make_wire: Make) -> None:
    client, _ = make_wire(faults=one(Fault("pause", "up"))).dial()
    client.settimeout(QUIET_SECONDS)
    with pytest.raises(TimeoutError):
        client.sendall(bytes(20_000_000))


def test_slow_is_for_one_connection_and_for_a_while(make_wire: Make) -> None:
    slow = Fault("slow", "up", seconds=0.5, bits_per_second=400_000)
    wire = make_wire(faults=one(slow))
    client, server = wire.dial()
    data, began = bytes(400_000), time.monotonic()
    send_in_thread(client, data)
    read_exactly(server, 10_000)
    assert time.monotonic() - began >= 0.1  # at 50 kB/s, less what a bucket may hold back
    other_client, other_server = wire.dial()
    send_in_thread(other_client, data)
    assert read_exactly(other_server, len(data)) == data
    assert read_exactly(server, len(data) - 10_000) == data[10_000:]
    assert 0.4 <= time.monotonic() - began < 4.0  # eight seconds if it lasted


@pytest.mark.parametrize("kind", ["delay", "jitter"])
def test_delay_and_jitter_faults_come_on_top(make_wire: Make, kind: Any) -> None:
    wire = make_wire(faults=lambda number: [Fault(kind, "down", delay_seconds=0.2)] if number else [])
    first = ping(wire)
    rest = [ping(wire) for _ in range(4)]
    assert max(rest) > first + (0.19 if kind == "delay" else 0.01)


def test_refused_connections_never_reach_the_server(make_wire: Make) -> None:
    wire = make_wire(faults=one(Fault("refuse")))
    with contextlib.suppress(ConnectionResetError):  # the reset may come before the call returns
        expect_reset(wire.call())
    client, server = wire.dial()  # the server's first
    client.sendall(b"x")
    assert server.recv(1) == b"x"
    assert wire.proxy.connections == 2


def test_a_fault_can_start_by_the_clock(make_wire: Make) -> None:
    wire = make_wire(faults=one(Fault("reset", at_seconds=0.2)))
    began = time.monotonic()
    client, server = wire.dial()
    client.sendall(b"x")
    assert server.recv(1) == b"x"
    expect_reset(client)
    assert time.monotonic() - began >= 0.19


def test_an_injected_fault_strikes_old_and_new_connections_until_healed(make_wire: Make) -> None:
    wire = make_wire()
    old = wire.dial()
    wire.proxy.inject(Fault("hold", "up"))
    new = wire.dial()
    for client, server in (old, new):
        client.sendall(b"x")
        expect_silence(server)
    wire.proxy.heal()
    for _, server in (old, new):
        assert server.recv(1) == b"x"


def test_injected_bytes_count_from_now(make_wire: Make) -> None:
    wire = make_wire()
    client, server = wire.dial()
    client.sendall(bytes(100))
    assert read_exactly(server, 100) == bytes(100)
    wire.proxy.inject(Fault("corrupt", "up", after_bytes=2, mask=0xFF))
    client.sendall(bytes(4))
    assert read_exactly(server, 4) == b"\0\0\xff\0"
    client, server = wire.dial()  # it struck once, and had no seconds
    client.sendall(bytes(4))
    assert read_exactly(server, 4) == bytes(4)


def test_an_injected_fault_ends_in_time_for_new_connections(make_wire: Make) -> None:
    wire = make_wire()
    wire.proxy.inject(Fault("hold", "up", seconds=0.3))
    began = time.monotonic()
    client, server = wire.dial()
    client.sendall(b"x")
    assert server.recv(1) == b"x"
    assert time.monotonic() - began >= 0.25
    assert ping(wire) < 0.25


def test_cut_resets_all_and_leaves_the_proxy_open(make_wire: Make) -> None:
    wire = make_wire()
    ends = [end for _ in range(3) for end in wire.dial()]
    wire.proxy.cut()
    for end in ends:
        expect_reset(end)
    assert ping(wire) > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "explode"}, "half-close"),
        ({"kind": "reset", "direction": "left"}, "up, down, both"),
        ({"kind": "reset", "after_bytes": 1, "at_seconds": 1.0}, "not both"),
        ({"kind": "reset", "after_bytes": -1}, "0 or more"),
        ({"kind": "hold", "seconds": -1.0}, "0 or more"),
        ({"kind": "slow"}, "bits_per_second"),
        ({"kind": "slow", "bits_per_second": 0.0}, "above 0"),
        ({"kind": "delay"}, "above 0"),
        ({"kind": "refuse", "at_seconds": 1.0}, "neither bytes nor time"),
        ({"kind": "corrupt", "mask": 0}, "1 to 255"),
    ],
)
def test_faults_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongUse, match=said):
        Fault(**options)


def test_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(WrongUse, match="above 0"):
        Shape(0.0)
    with pytest.raises(WrongUse, match="jitter_seconds"):
        Shape(jitter_seconds=-1.0)
