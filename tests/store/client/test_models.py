"""A client that brings a model to a store that fails, forgets, stalls and complains."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.flight as flight
import pytest
import xxhash

from graphs import make_model
from headwater.errors import ModelError, ModelNotFound, ModelRefused, Refused, StoreLost, Unreachable
from headwater.models.path import Part, cheapest
from headwater.models.registry import Registry
from headwater.models.version import digest_of
from headwater.store.client import models as client
from headwater.store.client.address import Secret
from headwater.store.client.link import Link
from headwater.store.client.models import StoreModels
from headwater.store.wire import messages
from headwater.store.wire.messages import Complaint
from headwater.store.wire.modelmessages import (
    Arrived,
    InForce,
    Inventory,
    ModelOffer,
    ModelPart,
    ModelRollback,
    ModelSwitch,
    ModelTake,
    Shipment,
)
from understudy import be_gone, playing

QUICK = Link(deadline_seconds=2.0, give_up_seconds=2.0)
Answer = Callable[[bytes], bytes]


class Receiver:
    """A store that keeps what it is sent; `script` says what happens instead, call by call, to an action."""

    def __init__(self) -> None:
        self.script: dict[str, deque[Answer]] = {}
        self.body = b""
        self.parts: list[tuple[int, int]] = []
        self.asked: list[str] = []
        self.current = ["b" * 32, "a" * 32]
        self.taken: list[ModelTake] = []

    @property
    def actions(self) -> dict[str, Answer]:
        return {
            "models": lambda _: messages.encode(Inventory({"birds": self.current}, [])),
            **{name: self._scripted(name) for name in ("model_offer", "model_part", "model_take")},
            **{name: self._scripted(name) for name in ("model_switch", "model_rollback")},
        }

    def _scripted(self, name: str) -> Answer:
        def answer(body: bytes) -> bytes:
            self.asked.append(name)
            waiting = self.script.get(name)
            reply: Any = waiting.popleft() if waiting else getattr(self, name)
            found = reply(body)
            return found if isinstance(found, bytes) else messages.encode(found)

        return answer

    def model_offer(self, body: bytes) -> Arrived:
        self.offer: ModelOffer = messages.decode(ModelOffer, body)
        return Arrived(len(self.body))

    def model_part(self, body: bytes) -> Arrived:
        part: ModelPart = messages.decode(ModelPart, body)
        assert part.checksum == xxhash.xxh3_64_intdigest(part.data)
        assert part.digest == self.offer.digest
        self.parts.append((part.offset, len(part.data)))
        if part.offset == len(self.body):
            self.body += part.data
        return Arrived(len(self.body))

    def model_take(self, body: bytes) -> InForce:
        self.taken.append(messages.decode(ModelTake, body))
        return InForce("birds", self.taken[-1].version, [])

    def model_switch(self, body: bytes) -> InForce:
        asked: ModelSwitch = messages.decode(ModelSwitch, body)
        return InForce(asked.name, asked.version, [])

    def model_rollback(self, body: bytes) -> InForce:
        asked: ModelRollback = messages.decode(ModelRollback, body)
        if asked.current == self.current[0]:
            del self.current[0]
        return InForce(asked.name, self.current[0], self.current[1:])


def complain(kind: str, text: str, *, retry: bool = False) -> Answer:
    def answer(_: bytes) -> bytes:
        raise flight.FlightServerError(text, messages.encode(Complaint(kind, text, retry)))

    return answer


def hang_up(_: bytes) -> bytes:
    raise flight.FlightUnavailableError("not here")


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@contextmanager
def speaking(receiver: Receiver, link: Link = QUICK, secret: Secret | None = None) -> Iterator[StoreModels]:
    with playing(be_gone, receiver.actions) as server:
        connection = server.connect(link, secret)
        yield StoreModels(connection)
        connection.close()


@pytest.fixture
def models(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreModels]:
    monkeypatch.setattr(client, "PART_BYTES", 200)
    with speaking(receiver) as made:
        yield made


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    registry = Registry(tmp_path_factory.mktemp("registry"))
    version = registry.put(make_model(), name="birds")
    (found,) = cheapest(registry, [], version.digest).parts
    return found


def body_of(part: Part) -> bytes:
    return messages.encode(Shipment(dict(part.graphs), part.delta))


def test_what_arrives_is_what_was_announced(models: StoreModels, receiver: Receiver, part: Part) -> None:
    seen: list[tuple[int, int]] = []
    found = models.send(part, switch=True, watch=lambda have, total: seen.append((have, total)))
    assert found == InForce("birds", part.version.digest, [])
    body = body_of(part)
    assert receiver.body == body
    assert (receiver.offer.length, receiver.offer.digest) == (len(body), digest_of(body))
    assert msgspec.json.decode(receiver.offer.manifest)["digest"] == part.version.digest
    assert receiver.taken == [ModelTake(part.version.digest, digest_of(body), switch=True)]
    assert all(length <= 200 for _, length in receiver.parts)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((0, len(body)), (len(body), len(body)))
    assert len(body) < models.sent < 3 * len(body) + len(receiver.offer.manifest)


def test_it_goes_on_where_it_stopped(models: StoreModels, receiver: Receiver, part: Part) -> None:
    receiver.body = body_of(part)[:450]
    models.send(part)
    assert receiver.body == body_of(part)
    assert receiver.parts[0][0] == 450


def test_nothing_is_sent_of_what_is_held(models: StoreModels, receiver: Receiver, part: Part) -> None:
    receiver.script["model_offer"] = deque([lambda _: messages.encode(Arrived(9, held=True))])
    models.send(part, switch=True)
    assert receiver.parts == []
    assert len(receiver.taken) == 1


@pytest.mark.parametrize("action", ["model_offer", "model_part", "model_take"])
@pytest.mark.parametrize(
    "failure", [hang_up, complain("Busy", "later", retry=True), lambda _: b"\xc1 no answer"]
)
def test_a_failure_that_passes_is_asked_again(
    models: StoreModels, receiver: Receiver, part: Part, action: str, failure: Answer
) -> None:
    receiver.script[action] = deque([failure])
    models.send(part)
    assert receiver.body == body_of(part)


def test_a_part_that_was_altered_on_its_way_is_sent_again(
    models: StoreModels, receiver: Receiver, part: Part
) -> None:
    receiver.script["model_part"] = deque([receiver.model_part, complain("ModelRefused", "altered")])
    models.send(part)
    assert receiver.body == body_of(part)
    assert [offset for offset, _ in receiver.parts] == sorted({offset for offset, _ in receiver.parts})


def test_a_complaint_counts_when_it_comes_twice(models: StoreModels, receiver: Receiver, part: Part) -> None:
    receiver.script["model_offer"] = deque([complain("ModelRefused", "too large")] * 2)
    with pytest.raises(ModelRefused, match="too large"):
        models.send(part)
    assert receiver.asked == ["model_offer"] * 2


def test_what_a_store_refuses_after_it_came_is_believed_at_once(
    models: StoreModels, receiver: Receiver, part: Part
) -> None:
    receiver.script["model_take"] = deque([complain("ModelRefused", "operator 'Evil' is not allowed")])
    with pytest.raises(ModelRefused, match="'Evil'"):
        models.send(part)
    assert receiver.asked.count("model_take") == 1


@pytest.mark.parametrize("action", ["model_part", "model_take"])
def test_a_store_that_was_started_anew_is_sent_all_again(
    models: StoreModels, receiver: Receiver, part: Part, action: str
) -> None:
    def forget(_: bytes) -> bytes:
        receiver.body = b""
        return complain("ModelNotFound", "offer it first")(b"")

    receiver.script[action] = deque([forget, forget])
    models.send(part)
    assert receiver.body == body_of(part)
    assert receiver.asked.count("model_offer") in (2, 3)


def test_a_store_that_always_forgets_is_given_up(models: StoreModels, receiver: Receiver, part: Part) -> None:
    receiver.script["model_take"] = deque([complain("ModelNotFound", "offer it first")] * 9)
    with pytest.raises(ModelNotFound):
        models.send(part)
    assert receiver.asked.count("model_offer") == 3


def test_a_slow_link_gets_smaller_parts(
    receiver: Receiver, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PART_BYTES", 800)
    monkeypatch.setattr(client, "_LEAST_PART", 100)
    over = threading.Event()

    def stall(_: bytes) -> bytes:
        over.wait(20)
        raise flight.FlightUnavailableError("over")

    receiver.script["model_part"] = deque([stall, stall])
    with speaking(receiver, Link(deadline_seconds=0.3, give_up_seconds=20)) as models:
        models.send(part)
        over.set()
    assert receiver.body == body_of(part)
    assert receiver.parts[0] == (0, 200)


def test_a_store_that_is_lost_in_the_middle_is_named(
    receiver: Receiver, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PART_BYTES", 200)
    receiver.script["model_part"] = deque([receiver.model_part, *[hang_up] * 99])
    with (
        speaking(receiver, Link(deadline_seconds=1, give_up_seconds=0.5)) as models,
        pytest.raises(StoreLost, match=r"no answer from 127\.0\.0\.1:\d+ for \d+ s; the last failure"),
    ):
        models.send(part)


def test_a_store_that_is_not_there_is_unreachable(receiver: Receiver) -> None:
    with playing(be_gone) as server:
        connection = server.connect(Link(deadline_seconds=0.5))
    with pytest.raises(Unreachable, match="does not answer"):
        StoreModels(connection).inventory()
    connection.close()


def test_a_new_token_is_read_from_its_file(receiver: Receiver, part: Part, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    def refuse(_: bytes) -> bytes:
        file.write_text("new")
        raise flight.FlightUnauthenticatedError("this token does not let you in")

    receiver.script["model_offer"] = deque([refuse])
    with speaking(receiver, secret=Secret(file, {})) as models:
        models.send(part)
    receiver.script["model_take"] = deque([refuse])
    with speaking(receiver, secret=Secret("fixed", {})) as models, pytest.raises(Refused):
        models.send(part)


def test_rollback_goes_one_back_also_where_the_answer_is_lost(
    models: StoreModels, receiver: Receiver
) -> None:
    def lose(body: bytes) -> bytes:
        receiver.model_rollback(body)
        return hang_up(body)

    receiver.script["model_rollback"] = deque([lose])
    assert models.rollback("birds") == InForce("birds", "a" * 32, [])
    assert receiver.asked == ["model_rollback"] * 2
    with pytest.raises(ModelError, match="no version of 'birds' was in force before aaaaaaaaaaaa at 127"):
        models.rollback("birds")
    with pytest.raises(ModelError, match="no version of 'cats' was in force at all"):
        models.rollback("cats")


def test_rollback_says_if_somebody_else_switched(models: StoreModels, receiver: Receiver) -> None:
    def race(body: bytes) -> Any:
        receiver.current.insert(0, "c" * 32)
        return receiver.model_rollback(body)

    receiver.script["model_rollback"] = deque([race])
    with pytest.raises(ModelError, match="somebody else put version cccccccccccc of 'birds' in force"):
        models.rollback("birds")


def test_a_manifest_that_fits_into_no_ticket_is_refused_here(models: StoreModels, part: Part) -> None:
    huge = msgspec.structs.replace(part.version, classes=("x" * (1 << 20),))
    with pytest.raises(ModelRefused, match=r"a manifest of 1,0\d\d,\d{3} bytes; stores take 1,047,552"):
        models.send(Part(huge, None, part.delta, part.graphs))
