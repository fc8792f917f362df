"""What a store says of itself, to whom, and when it has finished."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headwater import __version__
from headwater.data.codecs.excerpts import known_codecs
from headwater.data.image import Limits
from headwater.data.index import Index
from headwater.data.sources import open_source
from headwater.engine.budget import Budget, Cores, Turnstile
from headwater.errors import HeadwaterError, Incompatible
from headwater.store.local import LocalStore
from headwater.store.server.desk import Desk
from headwater.store.server.guard import Caller
from headwater.store.server.ledger import Ledger
from headwater.store.server.pacing import Pacing
from headwater.store.server.prefix import Prefix
from headwater.store.server.talk import Stay, Talk
from headwater.store.server.workers import Workers
from headwater.store.wire import messages
from headwater.store.wire.messages import PROTOCOLS, Hello, Release, Welcome
from headwater.store.wire.pages import content_of

READER = Caller("reader", "ipv4:10.0.0.1:5", frozenset({"read"}))
ELSEWHERE = Caller("elsewhere", "ipv4:10.0.0.1:6", frozenset({"read"}), frozenset({"tars"}))
LABELLER = Caller("labeller", "ipv4:10.0.0.1:7", frozenset({"labels"}))


def make_desk(datasets: dict[str, LocalStore], workers: Workers) -> Desk:
    budget, ledger = Budget(cores=2, request_samples=77), Ledger()
    cores = Cores(budget.cores)
    return Desk(
        datasets, budget, Turnstile(2, 1 << 20), Pacing(cores), Prefix(workers, cores, ledger), ledger
    )


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(1, limits=Limits())  # none starts
    made.catalogue = {"decode": "digest"}
    yield made
    made.close()


@pytest.fixture
def datasets(photo_folder: Path, photo_tars: Path) -> dict[str, LocalStore]:
    return {
        "photos": LocalStore(open_source(str(photo_folder))),
        "tars": LocalStore(open_source(str(photo_tars))),
    }


@pytest.fixture
def talk(datasets: dict[str, LocalStore], workers: Workers) -> Talk:
    return Talk(make_desk(datasets, workers), workers)


def greet(talk: Talk, caller: Caller, *protocols: int) -> Welcome:
    hello = messages.encode(Hello(list(protocols), "9.9"))
    found: Welcome = messages.decode(Welcome, talk.answer("hello", hello, caller))
    return found


class TestHello:
    def test_what_a_client_must_know(self, talk: Talk, datasets: dict[str, LocalStore]) -> None:
        welcome = greet(talk, READER, *PROTOCOLS)
        assert welcome.version == __version__
        assert welcome.catalogue == {"decode": "digest"}
        assert welcome.codecs == known_codecs()
        assert (welcome.request_samples, welcome.request_bytes) == (77, 64 << 20)
        facts, index = welcome.datasets["photos"], datasets["photos"].index
        assert (facts.samples, facts.bytes) == (36, int(index.sizes.sum()))
        assert (facts.version, facts.content) == (index.version, content_of(index))
        assert "simplejpeg" in welcome.libraries

    @pytest.mark.parametrize("protocols", [(1,), (1, 99), (99, 1, 0)])
    def test_the_newest_that_both_speak(self, talk: Talk, protocols: tuple[int, ...]) -> None:
        assert greet(talk, READER, *protocols).protocol == 1

    @pytest.mark.parametrize("protocols", [(), (99,), (0, 2, -1)])
    def test_none_that_both_speak(self, talk: Talk, protocols: tuple[int, ...]) -> None:
        with pytest.raises(Incompatible, match=rf"store {__version__} speaks protocols \[1\], client 9\.9"):
            greet(talk, READER, *protocols)

    def test_a_client_that_speaks_very_many(self, talk: Talk) -> None:
        with pytest.raises(Incompatible) as caught:
            greet(talk, READER, *range(100, 10_000))
        assert len(str(caught.value)) < 300

    def test_only_what_the_caller_may_read_is_told(self, talk: Talk) -> None:
        assert set(greet(talk, READER, 1).datasets) == {"photos", "tars"}
        assert set(greet(talk, ELSEWHERE, 1).datasets) == {"tars"}
        assert set(greet(talk, LABELLER, 1).datasets) == set()

    def test_another_version_of_the_client_is_logged_once_and_not_without_end(
        self, talk: Talk, caplog: pytest.LogCaptureFixture
    ) -> None:
        for version in (__version__, "9.9", "9.9", "a\nb", *map(str, range(100))):
            talk.answer("hello", messages.encode(Hello([1], version)), READER)
        assert caplog.messages[:2] == [
            f"client reader has headwater '9.9', this store {__version__}",
            f"client reader has headwater 'a\\nb', this store {__version__}",
        ]
        assert len(caplog.messages) == 16

    def test_something_that_is_no_hello(self, talk: Talk) -> None:
        with pytest.raises(HeadwaterError, match="no Hello"):
            talk.answer("hello", b"\xc1", READER)


class TestStatus:
    def tell(self, talk: Talk, caller: Caller = READER) -> Any:
        return msgspec.json.decode(talk.answer("status", b"", caller))

    def test_everything_that_top_shows(self, talk: Talk) -> None:
        found = self.tell(talk)
        assert (found["version"], found["status"]) == (__version__, "ok")
        assert found["datasets"]["photos"]["samples"] == 36
        assert found["budget"]["cores"] == 2
        assert found["budget"]["request_samples"] == 77
        assert found["uptime_seconds"] >= 0
        assert "headwater_samples_total" in found["metrics"]

    def test_no_names_of_what_the_caller_may_not_read(self, talk: Talk) -> None:
        assert set(self.tell(talk, ELSEWHERE)["datasets"]) == {"tars"}

    def test_health(self, talk: Talk) -> None:
        assert msgspec.json.decode(talk.answer("health", b"", READER)) == {"status": "ok"}
        talk.drain(0)
        assert msgspec.json.decode(talk.answer("health", b"", READER)) == {"status": "draining"}

    def test_every_action_is_answered(self, talk: Talk) -> None:
        bodies = {"hello": messages.encode(Hello([1], "v")), "release": messages.encode(Release())}
        for action in ("hello", "health", "status", "release"):
            assert talk.answer(action, bodies.get(action, b""), READER)

    def test_others_answer_for_what_is_theirs(
        self, datasets: dict[str, LocalStore], workers: Workers
    ) -> None:
        asked: list[tuple[bytes, Caller]] = []

        def answer(body: bytes, caller: Caller) -> bytes:
            asked.append((body, caller))
            return b"theirs"

        talk = Talk(make_desk(datasets, workers), workers, {"models": answer})
        assert talk.answer("models", b"body", READER) == b"theirs"
        assert asked == [(b"body", READER)]
        with pytest.raises(HeadwaterError, match="does not answer the action 'model_take'"):
            talk.answer("model_take", b"", READER)


class TestRelease:
    @pytest.mark.parametrize(("asked", "released"), [([], [3, 5, 9]), ([5, 77], [5])])
    def test_all_or_those_named(
        self, talk: Talk, workers: Workers, asked: list[int], released: list[int]
    ) -> None:
        workers._quarantine |= {id: b"digest" for id in (9, 3, 5)}
        found = msgspec.json.decode(talk.answer("release", messages.encode(Release(asked)), READER))
        assert found == {"released": released}
        assert workers.quarantined == {3, 5, 9} - set(released)


class TestDrain:
    def test_nothing_under_way(self, talk: Talk) -> None:
        assert talk.drain(0)
        assert talk.draining

    def test_it_waits_for_what_is_under_way(self, talk: Talk) -> None:
        first, second = talk.begin("a"), talk.begin("b")
        ended: list[bool] = []
        draining = threading.Thread(target=lambda: ended.append(talk.drain(20)))
        draining.start()
        first.end()
        first.end()
        assert not ended
        second.end()
        draining.join(20)
        assert ended == [True]

    def test_but_not_for_ever(self, talk: Talk) -> None:
        stay = talk.begin("a")
        assert not talk.drain(0.01)
        stay.end()

    def test_nor_for_a_stream_that_was_never_begun(self, talk: Talk) -> None:
        def stream(stay: Stay) -> Iterator[None]:
            yield None

        waiting = stream(talk.begin("a"))
        assert not talk.drain(0.01)
        del waiting
        assert talk.drain(0)


def test_clients_are_counted_once(talk: Talk) -> None:
    assert talk.clients() == 0
    for client in ("a", "b", "a"):
        talk.begin(client).end()
    assert talk.clients() == 2
    talk._seen["a"] -= 61
    assert talk.clients() == 1


def test_an_empty_dataset_is_not_served(workers: Workers, photo_folder: Path) -> None:
    class Empty(LocalStore):
        index = Index.build([], np.array([], np.int64))  # type: ignore[assignment]

    store = Empty(open_source(str(photo_folder)))
    with pytest.raises(HeadwaterError, match="is empty"):
        Talk(make_desk({"photos": store}, workers), workers)
