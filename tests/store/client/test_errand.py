"""One request until it is answered, against a real Flight server that fails as it is told."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow.flight as flight
import pytest

from headwater.errors import DatasetStale, HeadwaterError, Refused, StoreLost, WrongUse
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.errand import Abandoned, Errand, Errands, TooSlow
from headwater.store.client.link import Link
from headwater.store.client.replicas import Replicas
from headwater.store.wire import messages, payloads
from headwater.store.wire.messages import ReadRequest, Request
from headwater.store.wire.payloads import Parcel
from understudy import Understudy, be_gone, complain, playing, stall

IDS = np.array([3, 4], np.int64)
TICKET = messages.encode(ReadRequest("photos", "v", "c", IDS.tobytes()))
QUICK = Link(deadline_seconds=0.4, give_up_seconds=20.0)


def answer(server: Understudy, request: Request) -> list[Any]:
    return [payloads.pack(Parcel(IDS, [b"three", b"four"]))]


def damage(server: Understudy, request: Request) -> list[Any]:
    (batch,) = answer(server, request)
    other = payloads.pack(Parcel(IDS, [b"three", b"fOur"]))
    return [batch.set_column(4, batch.schema.field(4), other.column(4))]


def accept(reply: list[tuple[Any, Any]]) -> list[bytes]:
    ((batch, _),) = reply
    return [bytes(each) for each in payloads.unpack(batch, IDS, cut=False).payloads]


@pytest.fixture
def server() -> Iterator[Understudy]:
    with playing(answer) as made:
        yield made


@pytest.fixture
def second() -> Iterator[Understudy]:
    with playing(answer) as made:
        yield made


Make = Callable[..., Errand[list[bytes]]]


@pytest.fixture
def errand(server: Understudy) -> Iterator[Make]:
    opened: list[Replicas] = []

    def make(*connections: Connection, link: Link = QUICK, **options: Any) -> Errand[list[bytes]]:
        opened.append(Replicas(connections or [server.connect(link)]))
        return Errand(opened[-1], TICKET, accept, **options)

    yield make
    for replicas in opened:
        replicas.close()
        assert [replica.under_way for replica in replicas.all] == [0] * len(replicas.all)


def test_an_answer(errand: Make, server: Understudy) -> None:
    assert errand().run() == [b"three", b"four"]
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "trouble",
    [be_gone, damage, complain("Busy", "no turn", retry=True), complain("WrongUse", "perhaps", retry=True)],
    ids=["gone", "damaged", "busy", "may be retried"],
)
def test_what_may_pass_is_asked_for_again(trouble: Any, errand: Make, server: Understudy) -> None:
    server.script.extend([trouble] * 3)
    assert errand().run() == [b"three", b"four"]
    assert len(server.asked) == 4


def test_errors_that_are_not_ours_may_pass(errand: Make, server: Understudy) -> None:
    def crash(server: Understudy, request: Request) -> list[Any]:
        raise flight.FlightInternalError("the store failed")

    server.script.append(crash)
    assert errand().run() == [b"three", b"four"]


def test_what_will_not_pass_is_raised_as_itself_when_it_is_said_twice(
    errand: Make, server: Understudy
) -> None:
    server.script.extend([complain("DatasetStale", "open it again")] * 2)
    with pytest.raises(DatasetStale, match="open it again") as caught:
        errand().run()
    assert str(server.port) in caught.value.__notes__[0]
    assert len(server.asked) == 2


@pytest.mark.parametrize("answers", [0, 1], ids=["the first of all", "a later one"])
def test_a_request_that_was_altered_on_its_way_is_asked_again(answers: int, server: Understudy) -> None:
    """The store knows no sample with the id that arrived."""
    replicas = Replicas([server.connect(QUICK)])
    for _ in range(answers):
        assert Errand(replicas, TICKET, accept).run() == [b"three", b"four"]
    server.script.append(complain("WrongUse", "no sample with id 5"))
    assert Errand(replicas, TICKET, accept).run() == [b"three", b"four"]
    assert len(server.asked) == answers + 2
    replicas.close()


@pytest.mark.parametrize("kind", ["StoreLost", "Unreachable", "SystemExit", "no such kind", "annotations"])
def test_a_store_cannot_have_anything_else_raised(kind: str, errand: Make, server: Understudy) -> None:
    server.script.extend([complain(kind, "odd")] * 2)
    with pytest.raises(HeadwaterError, match="odd") as caught:
        errand().run()
    assert type(caught.value) is HeadwaterError


def test_a_stalled_request_is_asked_for_again(errand: Make, server: Understudy) -> None:
    server.script.append(stall)
    begun = time.monotonic()
    assert errand().run() == [b"three", b"four"]
    assert 0.4 <= time.monotonic() - begun < 0.4 + 0.5 + 0.3  # the deadline, noticing it, and a rest
    assert len(server.asked) == 2


def test_a_stalled_request_that_can_be_divided_is(errand: Make, server: Understudy) -> None:
    server.script.append(stall)
    begun = time.monotonic()
    with pytest.raises(TooSlow):
        errand(divisible=True).run()
    assert time.monotonic() - begun < 0.4 + 0.5


def test_time_outs_make_requests_smaller(errand: Make, server: Understudy) -> None:
    server.script.extend([stall] * 3)
    replicas = Replicas([server.connect(QUICK)])
    before = replicas.all[0].window.request_bytes
    for _ in range(3):
        with pytest.raises(TooSlow):
            Errand(replicas, TICKET, accept, divisible=True).run()
    assert replicas.all[0].window.request_bytes < before
    replicas.close()


def test_it_gives_up_in_the_end(errand: Make, server: Understudy) -> None:
    server.usual = be_gone
    begun = time.monotonic()
    with pytest.raises(StoreLost, match="not here") as caught:
        errand(link=Link(deadline_seconds=0.4, give_up_seconds=0.6)).run()
    assert 0.6 <= time.monotonic() - begun < 0.6 + 2.0 + 0.5
    assert caught.value.store == f"127.0.0.1:{server.port}"
    assert len(server.asked) > 2


def test_nobody_listens(errand: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    link = Link(deadline_seconds=0.4, give_up_seconds=0.3)
    nobody = Connection(Address.parse(f"grpc://127.0.0.1:{port}"), Secret(None, {}), link)
    with pytest.raises(StoreLost, match=str(port)):
        errand(nobody).run()


def test_somebody_else_listens(errand: Make) -> None:
    """A port that takes connections and says nothing, as a stopped store does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = Link(deadline_seconds=0.3, give_up_seconds=0.2)
        port = silent.getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(StoreLost, match="no answer from 127"):
            errand(Connection(Address.parse(f"grpc://127.0.0.1:{port}"), Secret(None, {}), link)).run()
        assert time.monotonic() - begun < 0.3 + 0.5


def test_a_rest_that_is_longer_than_the_limit_is_not_waited_for(server: Understudy) -> None:
    replicas = Replicas([server.connect(Link(deadline_seconds=0.4, give_up_seconds=0.3))])
    replicas.all[0].complained(time.monotonic())
    begun = time.monotonic()
    with pytest.raises(StoreLost, match=r"no answer from .*it is left alone for a while"):
        Errand(replicas, TICKET, accept).run()
    assert 0.3 <= time.monotonic() - begun < 0.3 + 0.5
    assert not server.asked
    replicas.close()


class TestToken:
    @pytest.fixture
    def file(self, tmp_path: Path, server: Understudy) -> Path:
        server.accepts = "new"
        (tmp_path / "token").write_text("old")
        return tmp_path / "token"

    def test_one_that_was_renewed_in_its_file(self, errand: Make, server: Understudy, file: Path) -> None:
        connection = server.connect(QUICK, Secret(file, {}))
        file.write_text("new")
        assert errand(connection).run() == [b"three", b"four"]
        assert server.tokens == ["Bearer old", "Bearer new"]

    def test_one_that_is_still_wrong(self, errand: Make, server: Understudy, file: Path) -> None:
        connection = server.connect(QUICK, Secret(file, {}))
        with pytest.raises(Refused, match="does not let you in"):
            errand(connection).run()
        file.write_text("newer")
        with pytest.raises(Refused):
            errand(connection).run()
        assert server.tokens == ["Bearer old", "Bearer old", "Bearer newer"]

    def test_one_that_was_given(self, errand: Make, server: Understudy, file: Path) -> None:
        with pytest.raises(Refused):
            errand(server.connect(QUICK, Secret("old", {}))).run()
        assert len(server.asked) == 1

    def test_all_requests_under_way_take_the_new_one(self, server: Understudy, file: Path) -> None:
        """The first to be refused reads the file; the others must not take that for a refusal of the new."""
        connection = server.connect(QUICK, Secret(file, {}))
        together = threading.Barrier(6)

        def refused_together(server: Understudy, request: Request) -> list[Any]:
            together.wait(10)
            raise flight.FlightUnauthenticatedError("this token does not let you in")

        server.accepts = None
        server.script.extend([refused_together] * 6)
        replicas = Replicas([connection])
        file.write_text("new")
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: Errand(replicas, TICKET, accept).run(), range(6)))
        replicas.close()
        assert found == [[b"three", b"four"]] * 6
        assert sorted(server.tokens) == ["Bearer new"] * 6 + ["Bearer old"] * 6


class TestAbandon:
    def run_and_abandon(self, errand: Errand[list[bytes]], when: Callable[[], object]) -> float:
        """Seconds from the wish to stop until `run` is over."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(errand.run)
            when()
            begun = time.monotonic()
            errand.abandon()
            with pytest.raises(Abandoned):
                running.result(10)
            return time.monotonic() - begun

    def test_while_it_waits_for_an_answer(self, errand: Make, server: Understudy) -> None:
        asked = threading.Event()

        def stall_and_tell(server: Understudy, request: Request) -> list[Any]:
            asked.set()
            return stall(server, request)

        server.usual = stall_and_tell
        patient = errand(link=Link(deadline_seconds=10))
        assert self.run_and_abandon(patient, lambda: asked.wait(10)) < 1.0

    def test_while_it_waits_for_the_window(self, errand: Make, server: Understudy) -> None:
        replicas = Replicas([server.connect(QUICK)])
        assert replicas.all[0].window.enter(64 << 20, lambda: False)
        waiting = Errand(replicas, TICKET, accept, size=10)
        assert self.run_and_abandon(waiting, lambda: None) < 1.0
        assert not server.asked
        replicas.close()

    def test_while_the_store_rests(self, errand: Make, server: Understudy) -> None:
        replicas = Replicas([server.connect(QUICK)])
        for _ in range(8):
            replicas.all[0].failed(time.monotonic())
        assert self.run_and_abandon(Errand(replicas, TICKET, accept), lambda: None) < 0.8
        assert not server.asked
        replicas.close()

    def test_before_it_runs(self, errand: Make, server: Understudy) -> None:
        late = errand()
        late.abandon()
        with pytest.raises(Abandoned):
            late.run()


class TestErrands:
    """Those of one run."""

    def test_answers_pass_through_and_nothing_is_kept(self, errand: Make) -> None:
        errands = Errands()
        assert errands.run(errand()) == [b"three", b"four"]
        assert not errands._under_way

    def test_all_are_abandoned_and_later_ones_at_once(self, errand: Make, server: Understudy) -> None:
        errands, asked = Errands(), threading.Semaphore(0)

        def stall_and_tell(server: Understudy, request: Request) -> list[Any]:
            asked.release()
            return stall(server, request)

        server.usual = stall_and_tell
        with ThreadPoolExecutor(2) as pool:
            patient = [errand(link=Link(deadline_seconds=10)) for _ in range(2)]
            running = [pool.submit(errands.run, one) for one in patient]
            for _ in running:
                assert asked.acquire(timeout=10)
            errands.abandon()
            for one in running:
                with pytest.raises(Abandoned):
                    one.result(5)
        with pytest.raises(Abandoned):
            errands.run(errand())


class TestReplicas:
    def test_another_answers_when_one_is_gone(
        self, errand: Make, server: Understudy, second: Understudy
    ) -> None:
        server.usual = be_gone
        for _ in range(3):
            assert errand(server.connect(QUICK), second.connect(QUICK)).run() == [b"three", b"four"]
        assert len(second.asked) == 3

    def test_a_stalled_one_is_left_after_its_deadline(
        self, errand: Make, server: Understudy, second: Understudy
    ) -> None:
        server.usual = stall
        begun = time.monotonic()
        both = errand(server.connect(QUICK), second.connect(QUICK), divisible=True)
        assert both.run() == [b"three", b"four"]
        assert time.monotonic() - begun < 0.4 + 0.5
        assert (len(server.asked), len(second.asked)) == (1, 1)

    def test_an_unusually_slow_one_is_not_waited_for(self, server: Understudy, second: Understudy) -> None:
        link = Link(deadline_seconds=5.0)
        replicas = Replicas([server.connect(link), second.connect(link)])
        first, other = replicas.all
        for _ in range(10):
            first.answered(0.01)
            other.answered(0.02)
        server.usual = stall
        begun = time.monotonic()
        assert Errand(replicas, TICKET, accept, size=100).run() == [b"three", b"four"]
        assert time.monotonic() - begun < 2.0
        assert replicas.hedged == 1
        assert (first.under_way, other.under_way) == (0, 0)
        assert first.window.enter(64 << 20, lambda: False)  # what was asked of it is no longer counted
        replicas.close()

    def test_a_refusal_of_all_is_a_refusal(
        self, errand: Make, server: Understudy, second: Understudy
    ) -> None:
        server.usual = complain("WrongUse", "never")
        second.usual = complain("WrongUse", "never")
        with pytest.raises(WrongUse, match="never"):
            errand(server.connect(QUICK), second.connect(QUICK)).run()
        assert sorted((len(server.asked), len(second.asked))) == [1, 2]

    def test_one_that_refused_is_used_again_when_it_lets_us_in(
        self, server: Understudy, second: Understudy
    ) -> None:
        """Its token file was mended, or its limit on failures has passed."""
        ahead = [0.0]
        connections = [server.connect(QUICK), second.connect(QUICK)]
        replicas = Replicas(connections, lambda: time.monotonic() + ahead[0])
        server.accepts = "another"
        for _ in range(3):
            assert Errand(replicas, TICKET, accept).run() == [b"three", b"four"]
        assert (len(server.asked), len(second.asked)) == (1, 3)
        server.accepts, second.usual = None, be_gone
        ahead[0] = 61.0
        assert Errand(replicas, TICKET, accept).run() == [b"three", b"four"]
        assert len(server.asked) == 2
        replicas.close()

    def test_a_hedge_does_not_wait_for_room(self, server: Understudy, second: Understudy) -> None:
        """Else, when both stores stall, each errand waits for room that another one holds, for ever."""
        link = Link(deadline_seconds=0.4, give_up_seconds=0.5, in_flight_bytes=1000)
        replicas = Replicas([server.connect(link), second.connect(link)])
        for replica in replicas.all:
            for _ in range(10):
                replica.answered(0.01)
        server.usual = second.usual = stall
        ended: list[Exception] = []

        def run() -> None:
            try:
                Errand(replicas, TICKET, accept, size=900).run()
            except HeadwaterError as error:
                ended.append(error)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert [type(error) for error in ended] == [StoreLost] * 4
        replicas.close()

    def test_late_at_two_stores_is_too_slow(
        self, errand: Make, server: Understudy, second: Understudy
    ) -> None:
        server.usual = second.usual = stall
        with pytest.raises(TooSlow):
            errand(server.connect(QUICK), second.connect(QUICK), divisible=True).run()

    def test_a_cancelled_call_does_not_cost_the_connection(self, server: Understudy) -> None:
        connection = server.connect(QUICK)
        clients = [connection._connect() for _ in range(2)]
        server.usual = stall
        call = connection.begin(TICKET, answers := SimpleQueue(), list)
        call.cancel()
        assert answers.get(timeout=5) is call
        assert {connection._connect() for _ in range(2)} == set(clients)
        connection.close()


def test_threads_go_with_the_connection(server: Understudy) -> None:
    connection = server.connect(QUICK)
    connection.begin(TICKET, answers := SimpleQueue(), list)
    answers.get(timeout=5)
    alive = [thread for thread in threading.enumerate() if thread.name.startswith("headwater-link")]
    assert alive
    del connection
    gc.collect()
    for thread in alive:
        thread.join(5)
    assert not any(thread.is_alive() for thread in alive)
