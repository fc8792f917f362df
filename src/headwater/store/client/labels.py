"""Labels from a store: pages of those that it keeps of a dataset, each checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.errors import LabelError, StoreLost, WrongUse
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.errand import Errand, TooSlow, locate
from headwater.store.client.link import Link
from headwater.store.client.opening import choose, greet
from headwater.store.client.replicas import Replicas
from headwater.store.labels.page import Glossary, LabelPage
from headwater.store.labels.rows import LabelRows
from headwater.store.labels.wanted import ALL, BEFORE_ALL, LabelQuery
from headwater.store.wire import labelpages, messages
from headwater.store.wire.labelpages import ROWS, Counts
from headwater.store.wire.messages import LabelRequest
from headwater.store.wire.payloads import Damaged, seal_of

if TYPE_CHECKING:
    from headwater.store.labels.exchange.sheet import Sheet

_LEAST_ROWS = 500
_ROW_BYTES = 45

Answer = tuple[LabelPage, Counts | None]


class LabelReader:
    """Reads the labels that one store keeps of a dataset with this version. One thread at a time.

    Of the samples that the store serves, not of others in the same database. Raises `StoreLost`, `Refused`,
    `LabelError`, or what else the store says.
    """

    def __init__(self, connection: Connection, dataset: str, version: str, *, client: str = "") -> None:
        self.name = connection.address.place
        self._dataset, self._version, self._client = dataset, version, client
        # Of replicas each may have labels of its own, so that pages of two of them do not go together.
        self._store = Replicas([connection])
        self._known = Glossary()
        self._rows = ROWS

    def pages(
        self, query: LabelQuery = ALL, *, after: int = BEFORE_ALL, opinions: bool = False
    ) -> Iterator[LabelPage]:
        """All rows with ids above `after`, in order of id, each page as things stood when it was asked for.

        A page may have no rows although others follow.
        """
        following: int | None = after
        while following is not None:
            page = self.page(query, after=following, opinions=opinions)
            following = page.next
            yield page

    def page(
        self,
        query: LabelQuery = ALL,
        *,
        after: int = BEFORE_ALL,
        limit: int = ROWS,
        opinions: bool = False,
    ) -> LabelPage:
        """A page of `limit` rows at most; fewer where the link is slow."""
        while True:
            request = self._request(
                **labelpages.asking(query), after=after, rows=min(limit, self._rows), opinions=opinions
            )
            try:
                return self._ask(request)[0]
            except TooSlow:
                self._rows = max(_LEAST_ROWS, request.rows // 2)

    def counts(self) -> Counts:
        """Rows by class and source, of all that the store's database has under the dataset's name."""
        return self._ask(self._request(counts=True))[1] or {}

    def _request(self, **wishes: Any) -> LabelRequest:
        return LabelRequest(self._dataset, self._version, self._client, known=self._known.digest, **wishes)

    def _ask(self, request: LabelRequest) -> Answer:
        ticket = messages.encode(request)
        errand: Errand[Answer] = Errand(
            self._store,
            ticket,
            self._acceptor(request.after, seal_of(ticket)),
            size=_ROW_BYTES * request.rows,
            divisible=request.rows > _LEAST_ROWS,
        )
        try:
            found = errand.run()
        except StoreLost as error:
            raise locate(error, self._dataset, 0, "fetching labels") from error
        self._known = found[0].glossary
        return found

    def _acceptor(self, after: int, seal: int) -> Callable[[list[tuple[Any, Any]]], Answer]:
        known = self._known

        def accept(reply: list[tuple[Any, Any]]) -> Answer:
            if len(reply) != 1 or reply[0][1] is None:
                raise Damaged(f"{len(reply)} pages of labels instead of one")
            batch, beside = reply[0]
            return labelpages.unpack(batch, beside.to_pybytes(), after=after, seal=seal, known=known)

        return accept


class StoreLabels:
    """The labels that a store keeps, as far as they are read from afar: like a `LabelDatabase`, in part."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._readers: dict[str, LabelReader] = {}

    def counts(self, dataset: str) -> Counts:
        return self._reader(dataset).counts()

    def glossary(self, dataset: str) -> Glossary:
        return self._reader(dataset).page(limit=1).glossary

    def search(
        self, dataset: str, query: LabelQuery = ALL, *, after: int = BEFORE_ALL, limit: int = 1000
    ) -> LabelRows:
        """The first rows with ids above `after`, in order of id."""
        reader, found, following = self._reader(dataset), LabelRows.fetched([]), after
        while len(found) < limit:
            page = reader.page(query, after=following, limit=limit - len(found))
            found = found.join(page.rows)
            if page.next is None:
                break
            following = page.next
        return found

    def sheets(self, dataset: str, query: LabelQuery = ALL, *, opinions: bool = False) -> Iterator[Sheet]:
        """Rows with names instead of numbers, for files; `opinions` brings those of contradicting models."""
        from headwater.store.labels.exchange.sheet import to_sheet

        for page in self._reader(dataset).pages(query, opinions=opinions):
            yield to_sheet(page.glossary, page.rows, page.opinions)

    def _reader(self, dataset: str) -> LabelReader:
        """Raises `DatasetNotFound` for a dataset that the store does not serve, `LabelError` for one of which
        it keeps no labels."""
        if dataset not in self._readers:
            address, welcome = self._connection.address, greet(self._connection)
            if address.dataset not in ("", dataset):
                raise WrongUse(f"{address} is another dataset than {dataset!r}; leave it out of the address")
            name = choose(replace(address, dataset=dataset), welcome)
            reader = LabelReader(self._connection, name, welcome.datasets[name].version)
            if not reader.page(limit=1).glossary.names:
                raise LabelError(f"{address.place} keeps no labels of a dataset {dataset!r}")
            self._readers[dataset] = reader
        return self._readers[dataset]


@contextmanager
def labels_of(
    uri: str, *, token: str | os.PathLike[str] | None = None, link: Link | None = None
) -> Iterator[StoreLabels]:
    """The labels of the store at this address. Connects with the first call."""
    connection = Connection(Address.parse(uri), Secret(token), link or Link())
    try:
        yield StoreLabels(connection)
    finally:
        connection.close()
