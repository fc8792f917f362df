"""The link that the proxy makes, its life, and the program."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headwater.cli.faults import Fault
from headwater.cli.proxy import Proxy, Shape, main, parse_address, parse_rate, parse_time
from headwater.errors import Unreachable, WrongUse
from wires import (
    PATIENCE_SECONDS,
    Wire,
    directed,
    expect_reset,
    ping,
    read_all,
    read_exactly,
    send_in_thread,
    wires,
)

# Seeds whose first two draws are both low, and both high.
SHORT_SEED, LONG_SEED = 33, 187
WINDOW_SECONDS = 0.5
Make = Callable[..., Wire]
both_directions = pytest.mark.parametrize("direction", ["up", "down"])


@pytest.fixture
def make_wire() -> Iterator[Make]:
    with wires() as make:
        yield make


def test_its_cpu_is_told_apart_from_that_of_its_process(make_wire: Make) -> None:
    wire = make_wire()
    client, server = wire.dial()
    data = random.Random(0).randbytes(8_000_000)
    before, own = wire.proxy.cpu_seconds, time.thread_time()
    sender = send_in_thread(client, data)
    read_exactly(server, len(data))
    sender.join()
    while time.thread_time() < own + 0.2:
        pass
    assert 0 < wire.proxy.cpu_seconds - before < time.process_time()
    wire.proxy.close()
    with pytest.raises(WrongUse, match="does not run"):
        _ = wire.proxy.cpu_seconds


def test_bytes_pass_unchanged_and_are_counted_exactly(make_wire: Make) -> None:
    wire = make_wire()
    up, down = random.Random(0).randbytes(3_000_001), random.Random(1).randbytes(2_000_003)
    for round_number in (1, 2):
        client, server = wire.dial()
        senders = [send_in_thread(client, up), send_in_thread(server, down)]
        assert read_exactly(server, len(up)) == up
        assert read_exactly(client, len(down)) == down
        assert (wire.proxy.bytes_up, wire.proxy.bytes_down) == (
            round_number * len(up),
            round_number * len(down),
        )
        assert wire.proxy.connections == round_number
        for sender in senders:
            sender.join()


def test_the_end_of_one_stream_leaves_the_other_open(make_wire: Make) -> None:
    client, server = make_wire().dial()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert read_all(server) == b"question"
    server.sendall(b"answer")
    server.close()
    assert read_all(client) == b"answer"


def test_a_reset_at_one_end_is_a_reset_at_the_other(make_wire: Make) -> None:
    client, server = make_wire().dial()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.close()
    expect_reset(client)


def test_a_server_that_is_not_there_is_a_reset(make_wire: Make) -> None:
    wire = make_wire()
    wire.server.close()
    with pytest.raises(ConnectionResetError):
        read_all(wire.call())


@both_directions
def test_the_rate_is_kept(make_wire: Make, direction: str) -> None:
    expect_rate(make_wire(shape=Shape(100e6)), direction, 100e6, least=0.98)


def test_connections_share_the_rate(make_wire: Make) -> None:
    wire = make_wire(shape=Shape(40e6))
    ends = [wire.dial() for _ in range(4)]
    count = 500_000
    began = time.monotonic()
    senders = [send_in_thread(server, bytes(count)) for _, server in ends]
    readers = [threading.Thread(target=read_exactly, args=(client, count)) for client, _ in ends]
    for reader in readers:
        reader.start()
    for thread in (*readers, *senders):
        thread.join()
    assert time.monotonic() - began >= 4 * count * 8 / 40e6 * 0.95


def test_a_delay_is_added_each_way_and_keeps_the_rate(make_wire: Make) -> None:
    rate, delay = 100e6, 0.05
    wire = make_wire(shape=Shape(rate, delay_seconds=delay))
    assert ping(wire) >= 2 * delay
    assert min(ping(wire) for _ in range(3)) < 2 * delay + 0.03
    expect_rate(wire, "down", rate, least=0.95)


def test_jitter_never_reorders(make_wire: Make) -> None:
    client, server = make_wire(shape=Shape(jitter_seconds=0.01)).dial()
    data = random.Random(2).randbytes(200_000)
    send_in_thread(client, data)
    assert read_exactly(server, len(data)) == data


def test_jitter_follows_the_seed(make_wire: Make) -> None:
    shape = Shape(jitter_seconds=0.3)
    short, again, long = (
        ping(make_wire(shape=shape, seed=seed)) for seed in (SHORT_SEED, SHORT_SEED, LONG_SEED)
    )
    assert max(short, again) < 0.2
    assert long > 0.4


def test_a_link_can_be_reshaped_while_it_runs(make_wire: Make) -> None:
    wire = make_wire(shape=Shape(8e3))
    client, server = wire.dial()
    data = bytes(1_000_000)  # would take a quarter of an hour
    send_in_thread(client, data)
    assert read_exactly(server, 1) == b"\0"
    wire.proxy.reshape(Shape())
    assert read_exactly(server, len(data) - 1) == data[1:]
    wire.proxy.reshape(Shape(delay_seconds=0.1))
    assert ping(wire) >= 0.2


def test_nothing_is_left_behind() -> None:
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    faults = [
        [Fault("reset")],
        [Fault("truncate")],
        [Fault("refuse")],
        [Fault("swallow")],
        [Fault("hold")],
        [],
    ]
    with socket.create_server(("127.0.0.1", 0)) as server:
        with Proxy(server.getsockname(), faults=faults) as proxy, contextlib.ExitStack() as stack:
            for _ in faults:
                with contextlib.suppress(ConnectionError):  # a reset may come at any time
                    client = socket.create_connection(proxy.address, PATIENCE_SECONDS)
                    stack.enter_context(client).sendall(b"x")
        proxy.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads


def test_many_connections_leave_nothing_open(make_wire: Make) -> None:
    wire = make_wire()
    before = None
    for number in range(300):
        with (
            socket.create_connection(wire.proxy.address, PATIENCE_SECONDS) as client,
            wire.server.accept()[0],
        ):
            client.sendall(b"x")
        if number == 10:
            wire.proxy.cut()
            before = len(os.listdir("/proc/self/fd"))
    wire.proxy.cut()
    assert len(os.listdir("/proc/self/fd")) == before


def test_misuse_is_named(make_wire: Make) -> None:
    proxy = Proxy(("127.0.0.1", 1))
    with pytest.raises(WrongUse, match="does not run"):
        proxy.cut()
    wire = make_wire()
    with pytest.raises(WrongUse, match="already started"):
        wire.proxy.start()
    with pytest.raises(Unreachable, match=str(wire.proxy.port)):
        Proxy(("127.0.0.1", 1), port=wire.proxy.port).start()


def test_words_of_the_command_line() -> None:
    assert (parse_rate("100mbit"), parse_rate("1.5Gbit"), parse_rate("9bit")) == (100e6, 1.5e9, 9.0)
    assert (parse_time("50ms"), parse_time("2s")) == (0.05, 2.0)
    assert (parse_address("host:80"), parse_address("[::1]:80")) == (("host", 80), ("::1", 80))


@pytest.mark.parametrize(
    "words", [["--to", "x"], ["--to", "h:1", "--rate", "5"], ["--to", "h:1", "--delay", "1.1.s"]]
)
def test_wrong_words_are_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert words[-1] in capsys.readouterr().err


def test_the_program_prints_its_port_and_ends_on_sigterm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [
            sys.executable,
            "-m",
            "headwater.cli.proxy",
            "--to",
            f"127.0.0.1:{server.getsockname()[1]}",
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            [*command, "--delay", "100ms"], stdout=subprocess.PIPE, env=environment
        ) as program:
            assert program.stdout
            address = ("127.0.0.1", int(program.stdout.readline()))
            with (
                socket.create_connection(address, PATIENCE_SECONDS) as client,
                server.accept()[0] as accepted,
            ):
                began = time.monotonic()
                client.sendall(b"x")
                assert accepted.recv(1) == b"x"
                assert time.monotonic() - began >= 0.09
            program.send_signal(signal.SIGTERM)
            assert program.wait(PATIENCE_SECONDS) == 0


def expect_rate(wire: Wire, direction: str, rate: float, *, least: float) -> None:
    """The whole must not be faster than `rate`, and of many windows one as fast as `least` of it.

    A busy machine can starve the sender, which no link makes up for: then it goes on for longer than 2 s.
    """
    sender, receiver = directed(direction, wire.dial())
    window = int(rate / 8 * WINDOW_SECONDS)
    thread = send_in_thread(sender, bytes(13 * window))
    read_exactly(receiver, window // 10)
    times: list[float] = []
    while len(times) < 4 or (len(times) < 12 and min(times) > WINDOW_SECONDS / least):
        began = time.monotonic()
        assert len(read_exactly(receiver, window)) == window
        times.append(time.monotonic() - began)
    sender.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert sum(times) >= len(times) * WINDOW_SECONDS / 1.02, times
    assert min(times) <= WINDOW_SECONDS / least, times
