"""The schedules themselves: one from one seed, every kind drawn, and always a whole link at the end."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace
from typing import get_args

import pytest

import faults
from faults import Event, Schedule
from headwater.cli.faults import Fault, Kind
from headwater.cli.proxy import Proxy, Shape
from wires import PATIENCE_SECONDS, Wire, read_exactly, wires

MANY = [Schedule.random(seed) for seed in range(300)]


class Recorder:
    """A process that only remembers what was done to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def restart(self) -> None:
        self.calls.append("restart")

    def suspend(self) -> None:
        self.calls.append("suspend")

    def resume(self) -> None:
        self.calls.append("resume")

    def fill(self) -> None:
        self.calls.append("fill")

    def free(self) -> None:
        self.calls.append("free")


def test_a_seed_gives_one_schedule() -> None:
    assert [Schedule.random(schedule.seed) for schedule in MANY] == MANY
    assert len({schedule.events for schedule in MANY}) > 290


def test_a_printed_schedule_can_be_played_again() -> None:
    names = {name: getattr(faults, name) for name in ("Schedule", "Event", "Fault", "Shape")}
    assert [eval(str(schedule), dict(names)) for schedule in MANY] == MANY


def test_every_kind_is_drawn() -> None:
    events = [event for schedule in MANY for event in schedule.events]
    assert {event.kind for event in events} == set(get_args(faults.EventKind))
    drawn = {event.argument.kind for event in events if isinstance(event.argument, Fault)}
    assert drawn == set(get_args(Kind))


def test_nothing_goes_on_beyond_the_end_and_a_cut_is_last() -> None:
    for schedule in MANY:
        assert schedule.events[-1] == Event(schedule.seconds, "cut")
        assert list(schedule.events) == sorted(schedule.events, key=lambda event: event.at_seconds)
        for event in schedule.events:
            lasts = event.argument.seconds or 0.0 if isinstance(event.argument, Fault) else 0.0
            lasts = event.argument if isinstance(event.argument, float) else lasts
            assert lasts <= 1.5
            assert event.at_seconds + lasts <= schedule.seconds + 1e-9


def test_process_events_need_a_process() -> None:
    schedule = Schedule(0, (Event(0.0, "kill"), Event(0.1, "cut")))
    with pytest.raises(ValueError, match="no process to kill"):
        schedule.apply(Proxy(("127.0.0.1", 1)))
    for seed in range(100):
        kinds = {event.kind for event in Schedule.random(seed, processes=False).events}
        assert not kinds & set(faults.PROCESS_KINDS)


def test_events_are_played_in_time_and_the_link_is_mended() -> None:
    process, shape = Recorder(), Shape(delay_seconds=0.001)
    events = (
        Event(0.0, "fault", Fault("pause")),
        Event(0.01, "shape", Shape(1e6)),
        Event(0.02, "stop", 0.05),
        Event(0.1, "kill"),
        Event(0.12, "full", 0.02),
        Event(0.15, "cut"),
    )
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname(), shape=shape) as proxy:
        Schedule(0, events).apply(proxy, process).join(10)
        assert process.calls == ["suspend", "resume", "restart", "fill", "free", "resume", "free"]
        assert proxy.shape == shape
        _expect_echo(proxy, server)


def test_stopping_early_mends_too() -> None:
    process = Recorder()
    events = (
        Event(0.0, "fault", Fault("refuse")),
        Event(0.0, "full", 600.0),
        Event(0.0, "stop", 600.0),
        Event(900.0, "cut"),
    )
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()) as proxy:
        with Schedule(0, events).apply(proxy, process) as playing:
            while "suspend" not in process.calls:
                assert not playing.done
        assert playing.done
        assert process.calls == ["fill", "suspend", "resume", "free"]
        _expect_echo(proxy, server)


def test_an_event_that_fails_is_told_to_who_joins() -> None:
    class Broken(Recorder):
        def restart(self) -> None:
            raise RuntimeError("it did not start again")

    schedule = replace(MANY[0], events=(Event(0.0, "kill"), Event(0.1, "cut")))
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()) as proxy:
        playing = schedule.apply(proxy, Broken())
        with pytest.raises(RuntimeError, match="did not start"):
            playing.join(10)
    assert "schedule" not in {thread.name for thread in threading.enumerate()}


def test_random_schedules_leave_the_link_whole() -> None:
    with wires() as make:
        for seed in range(8):
            wire = make(seed=seed)
            schedule = Schedule.random(seed, seconds=0.4, processes=False)
            playing = schedule.apply(wire.proxy)
            while not playing.done:
                _try_to_pass(wire)
            playing.join()
            _expect_echo(wire.proxy, wire.server)


def _try_to_pass(wire: Wire) -> None:
    """A question and an answer, given up as soon as something goes wrong."""
    wire.server.settimeout(0.05)
    with (
        contextlib.suppress(OSError),
        socket.create_connection(wire.proxy.address, PATIENCE_SECONDS) as client,
        wire.server.accept()[0] as accepted,
    ):
        client.settimeout(0.05)
        accepted.settimeout(0.05)
        for end, other in ((client, accepted), (accepted, client)):
            end.sendall(bytes(100_000))
            read_exactly(other, 100_000)


def _expect_echo(proxy: Proxy, server: socket.socket) -> None:
    server.settimeout(PATIENCE_SECONDS)
    with socket.create_connection(proxy.address, PATIENCE_SECONDS) as client, contextlib.ExitStack() as stack:
        client.sendall(b"up")
        while True:  # connections from before may still wait to be accepted
            accepted = stack.enter_context(server.accept()[0])
            accepted.settimeout(PATIENCE_SECONDS)
            with contextlib.suppress(ConnectionResetError):
                if read_exactly(accepted, 2) == b"up":
                    break
        accepted.sendall(b"down")
        assert read_exactly(client, 4) == b"down"
