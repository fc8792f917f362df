"""The models of one store: what it holds, how a version gets there, which is in force."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import xxhash

from headwater.errors import HeadwaterError, ModelError, ModelNotFound, ModelRefused, Refused, StoreLost
from headwater.models.path import Part
from headwater.models.version import ModelVersion, digest_of
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection, Passing, TimedOut
from headwater.store.client.link import Link
from headwater.store.client.opening import act
from headwater.store.wire import messages
from headwater.store.wire.messages import MOST_TICKET_BYTES, PART_BYTES, Message
from headwater.store.wire.modelmessages import (
    Arrived,
    InForce,
    Inventory,
    ModelOffer,
    ModelPart,
    ModelQuery,
    ModelRollback,
    ModelSwitch,
    ModelTake,
    Shipment,
)
from headwater.store.wire.payloads import Damaged

M = TypeVar("M", bound=Message)
Watch = Callable[[int, int], None]
"""Called with the bytes that have got there, and those of the whole."""

_REST_SECONDS = 0.2
_LEAST_PART = 1 << 14
_MOST_STARTS = 3  # of one shipment: the store may have been started anew, or a bit flipped on the way
_AROUND = 1 << 10  # bytes of an offer beside its manifest


class StoreModels:
    """What a store knows of models, over a connection that is open. One thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._part_bytes = PART_BYTES
        self.sent = 0
        """Bytes of all messages on the way to other models, also of those that had to be sent again."""

    def inventory(self, version: str = "") -> Inventory:
        """What the store holds, with the manifest of a version if one is named.

        Raises `Unreachable` after a deadline: whether the store is there at all is found out here.
        """
        query = messages.encode(ModelQuery(version))
        return act(self._connection, "models", query, read=lambda answer: _read(Inventory, answer))

    def send(
        self,
        part: Part,
        *,
        switch: bool = False,
        unmeasured: bool = False,
        watch: Watch = lambda have, total: None,
    ) -> InForce:
        """Bring a version there and have it verified, and with `switch` put in force, also `unmeasured`.

        An upload that was interrupted goes on where it stopped. Raises `ModelRefused` for what the store does
        not take, `ModelNotFound` if it lacks what the delta starts from, `StoreLost`, `Refused`.
        """
        body = messages.encode(Shipment(dict(part.graphs), part.delta))
        offer = ModelOffer(_manifest(part.version), len(body), digest_of(body), part.base)
        take = ModelTake(part.version.digest, offer.digest, switch, unmeasured)
        lost: ModelNotFound | None = None
        for _ in range(_MOST_STARTS):
            arrived = self._ask("model_offer", offer, Arrived)
            try:
                self._upload(take, arrived, body, watch)
                return self._ask("model_take", take, InForce, believe=True)
            except ModelNotFound as error:  # it was given up there, or a bit of the offer flipped on the way
                lost = error
        assert lost is not None
        raise lost

    def switch(self, name: str, version: str, *, unmeasured: bool = False) -> InForce:
        """Put a version in force that the store holds; int8 layers that nobody measured only as `unmeasured`.

        Raises `ModelRefused`.
        """
        return self._ask("model_switch", ModelSwitch(name, version, unmeasured), InForce)

    def rollback(self, name: str) -> InForce:
        """Put the version in force that was before.

        Raises `ModelError` if there was none, or if somebody else switched meanwhile.
        """
        current, *before = self.inventory().current.get(name, [""])
        if not before:
            when = f"before {current[:12]}" if current else "at all"
            raise ModelError(
                f"no version of {name!r} was in force {when} at {self._connection.address.place}"
            )
        found = self._ask("model_rollback", ModelRollback(name, current), InForce)
        if found.current != before[0]:
            raise ModelError(
                f"somebody else put version {found.current[:12]} of {name!r} in force meanwhile; look again"
            )
        return found

    def _upload(self, take: ModelTake, arrived: Arrived, body: bytes, watch: Watch) -> None:
        """Send what the store has not yet, in smaller parts where the link is slow."""
        patience = _Patience(self._connection)
        while not arrived.held and arrived.have < len(body):
            watch(arrived.have, len(body))
            data = body[arrived.have : arrived.have + self._part_bytes]
            checksum = xxhash.xxh3_64_intdigest(data)
            part = ModelPart(take.version, take.digest, arrived.have, data, checksum)
            try:
                arrived = self._ask("model_part", part, Arrived, divisible=True)
            except TimedOut as error:
                self._part_bytes = max(_LEAST_PART, self._part_bytes // 2)
                patience.spend(error)
            else:
                patience = _Patience(self._connection)
        watch(len(body), len(body))

    def _ask(
        self, action: str, message: Message, kind: type[M], *, believe: bool = False, divisible: bool = False
    ) -> M:
        """An action until it is answered; what is `divisible` fails with `TimedOut` when it was late.

        Unless it is to `believe` at once, a complaint counts when it comes twice: a bit that was flipped on
        the way makes another message of one.
        """
        patience, body = _Patience(self._connection), messages.encode(message)
        while True:
            self.sent += len(body)
            try:
                return _read(kind, self._connection.act(action, body))
            except (Passing, Damaged) as error:
                if divisible and isinstance(error, TimedOut):
                    raise
                patience.spend(error)
            except Refused:
                if not patience.has_new_token():
                    raise
            except HeadwaterError:
                if believe:
                    raise
                believe = True


class _Patience:
    """How long one action is tried."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._begun = time.monotonic()
        self._renewed = False

    def spend(self, error: HeadwaterError) -> None:
        """Rest, or raise `StoreLost` if there was no answer for too long."""
        waited = time.monotonic() - self._begun
        place, link = self._connection.address.place, self._connection.link
        if waited >= link.give_up_seconds:
            raise StoreLost(
                f"no answer from {place} for {waited:.0f} s; the last failure: {error}", store=place
            ) from error
        time.sleep(min(_REST_SECONDS, link.give_up_seconds))

    def has_new_token(self) -> bool:
        """Whether the token's file holds another one than was sent; asked once."""
        renewed, self._renewed = self._renewed, True
        return not renewed and self._connection.secret.renew()


@contextmanager
def models_of(
    uri: str, *, token: str | os.PathLike[str] | None = None, link: Link | None = None
) -> Iterator[StoreModels]:
    """The models of the store at this address. Connects with the first call."""
    connection = Connection(Address.parse(uri), Secret(token), link or Link())
    try:
        yield StoreModels(connection)
    finally:
        connection.close()


def _manifest(version: ModelVersion) -> bytes:
    """As it is sent, which is within the length of a ticket."""
    manifest = msgspec.json.encode(version)
    if len(manifest) + _AROUND > MOST_TICKET_BYTES:
        raise ModelRefused(
            f"version {version.digest[:12]} has {len(version.tensors):,} tensors and a manifest of "
            f"{len(manifest):,} bytes; stores take {MOST_TICKET_BYTES - _AROUND:,}"
        )
    return manifest


def _read(kind: type[M], answer: bytes) -> M:
    try:
        found: M = messages.decode(kind, answer)
    except HeadwaterError as error:
        raise Damaged(str(error)) from error
    return found
