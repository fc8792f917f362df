"""Samples that a store is to forget, and versions that it is to use no more, from afar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from headwater.errors import HeadwaterError
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.opening import act, choose, greet
from headwater.store.wire import messages
from headwater.store.wire.messages import Forget, ForgottenThere, Message
from headwater.store.wire.modelmessages import ModelSeal, SealedVersions
from headwater.store.wire.payloads import Damaged

M = TypeVar("M", bound=Message)

_AT_ONCE = 4096
_LEAST_SECONDS = 60.0
"""How long an answer may take: a store writes its label database anew before it gives one."""


class ForgetClient:
    """One store over one connection. Raises `Unreachable`, `Refused`, or what the store says."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def dataset(self) -> tuple[str, str]:
        """What the address means there: the name of a dataset, and its version."""
        welcome = greet(self._connection)
        name = choose(self._connection.address, welcome)
        return name, welcome.datasets[name].version

    def forget(
        self,
        dataset: str,
        ids: Sequence[int],
        *,
        delete_files: bool = False,
        dry_run: bool = False,
        models: Sequence[str] = (),
    ) -> ForgottenThere:
        """Have samples forgotten, which is done, and on disk, when this returns. It may be asked again."""
        answers = [
            self._act(
                "forget",
                Forget(
                    dataset,
                    np.array(ids[start : start + _AT_ONCE], "<i8").tobytes(),
                    delete_files=delete_files,
                    dry_run=dry_run,
                    models=list(models),
                ),
                ForgottenThere,
            )
            for start in range(0, len(ids), _AT_ONCE)
        ]
        found: dict[str, int] = {}
        for answer in answers:
            found = {name: found.get(name, 0) + answer.found.get(name, 0) for name in found | answer.found}
        last = answers[-1]
        return ForgottenThere(
            last.dataset, answers[0].before, last.version, last.samples, found, labelled=last.labelled
        )

    def seal(self, versions: Sequence[str]) -> list[str]:
        """Let versions of models be used no more there; those that were not sealed before."""
        return self._act("model_seal", ModelSeal(list(versions)), SealedVersions).versions

    def _act(self, action: str, wish: Message, kind: type[M]) -> M:
        return act(self._connection, action, messages.encode(wish), read=_reader(kind))


@contextmanager
def forget_client(store: str, secret: Secret, link: Link) -> Iterator[ForgetClient]:
    """A client that waits as long as forgetting takes."""
    patient = replace(
        link,
        deadline_seconds=max(link.deadline_seconds, _LEAST_SECONDS),
        give_up_seconds=max(link.give_up_seconds, _LEAST_SECONDS),
    )
    connection = Connection(Address.parse(store), secret, patient)
    try:
        yield ForgetClient(connection)
    finally:
        connection.close()


def _reader(kind: type[M]) -> Callable[[bytes], M]:
    def read(answer: bytes) -> M:
        try:
            found: M = messages.decode(kind, answer)
        except HeadwaterError as error:
            raise Damaged(str(error)) from error
        return found

    return read
