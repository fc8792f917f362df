"""Images that a store keeps: each in its dataset's inbox, with a label row; sealed, they are a dataset.

An image comes first and its row second, and both are on disk before anybody is told. What was killed in
between finds, when it is sent again, the image there, and writes the row.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.data.forgotten import Forgotten
from headwater.data.sources import SourceOptions, open_source
from headwater.errors import (
    DatasetError,
    DatasetNotFound,
    HeadwaterError,
    InboxFull,
    LabelRefused,
    Refused,
    WrongUse,
)
from headwater.models.version import ModelVersion
from headwater.store.labels.rows import LabelRows, Source
from headwater.store.local import LocalStore
from headwater.store.server.guard import Caller
from headwater.store.server.inbox import Inbox, Kept, bytes_in
from headwater.store.server.shard import Arrival
from headwater.store.server.state import FORGOTTEN, State
from headwater.store.server.talk import Answer
from headwater.store.wire import messages
from headwater.store.wire.messages import DATASET_NAME, InboxSeal, SealedInbox

log = logging.getLogger("headwater")

ENDING = "-inbox"
"""Behind a dataset's name: what its inbox is called when it is served."""
_AUTHOR = "predict"
_SCOPE = "admin"

Publish = Callable[[str, LocalStore], None]
"""Serve a dataset from now on, in the place of one that had its name."""


@dataclass(frozen=True, eq=False)
class Opinion:
    """What a version says of images: for each its class, as the version numbers them, score and margin."""

    version: ModelVersion
    labels: NDArray[np.int32]
    scores: NDArray[np.float32]
    margins: NDArray[np.float32]


@dataclass
class _Box:
    """An inbox, and how the label database numbers the versions and classes that have labelled there."""

    name: str
    inbox: Inbox
    numbers: dict[str, tuple[int, NDArray[np.int32]]] = field(default_factory=dict)
    turn: str = ""


class Keeper:
    """The inboxes of a store. Safe to use from many threads. Without a state nothing is kept.

    All together have about `most_bytes`, sealed or not, with those of datasets that are not served any more:
    a batch more where several come at once.
    """

    def __init__(
        self,
        state: State | None,
        datasets: Sequence[str],
        publish: Publish = lambda name, store: None,
        *,
        most_bytes: int = 1 << 62,
    ) -> None:
        """`datasets` are those that images may be sent for."""
        self._state, self._datasets, self._publish = state, frozenset(datasets), publish
        self._most_bytes = most_bytes
        self._lock, self._sealing = threading.Lock(), threading.Lock()
        self._boxes: dict[str, _Box] = {}
        self._versions: dict[str, str] = {}  # of the inboxes that are served
        self._bytes_elsewhere = 0  # in inboxes of datasets that are not served

    @property
    def answers(self) -> Mapping[str, Answer]:
        """Action > what answers it."""
        return {"inbox_seal": self._answer_seal}

    @property
    def unsealed_bytes(self) -> int:
        """Bytes of images that wait to be sealed."""
        return sum(box.inbox.unsealed_bytes for box in list(self._boxes.values()))

    def check(self, dataset: str, arrivals: Sequence[Arrival] = ()) -> None:
        """Raises `DatasetNotFound`, `WrongUse` or `InboxFull` where `keep` could not keep these.

        What is kept already needs no room: it is sent again by who was not told so.
        """
        box = self._box(dataset)
        held = self._bytes_elsewhere + sum(box.inbox.nbytes for box in list(self._boxes.values()))
        if held + sum(len(arrival.data) for arrival in arrivals) < self._most_bytes:
            return  # no digest is needed to know it
        more = box.inbox.fresh_bytes(arrivals)
        if more and held + more >= self._most_bytes:
            raise InboxFull(
                f"the store keeps {held:,} bytes of images and may keep {self._most_bytes:,}; raise "
                "inbox_bytes there, or move sealed shards away"
            )

    def keep(self, dataset: str, arrivals: Sequence[Arrival], opinion: Opinion) -> list[Kept]:
        """Keep images of a dataset, with what a model says of them; both are on disk when this returns.

        Raises `HeadwaterError`; what was sent may then be sent again.
        """
        self.check(dataset, arrivals)
        box = self._box(dataset)
        kept = box.inbox.add(arrivals)
        ids, places = np.unique([one.id for one in kept], return_index=True)
        number, classes = self._numbers(box, opinion.version)
        rows = LabelRows.of(
            ids,
            classes[opinion.labels[places]],
            source=Source.MODEL,
            scores=opinion.scores[places],
            margins=opinion.margins[places],
            model=number,
        )
        self._write(box, rows, opinion.version)
        return kept

    def seal(self, dataset: str) -> SealedInbox:
        """Make all that is kept of a dataset a version of its inbox, and serve it.

        Doing it again changes nothing; of an inbox without images there is no version.
        """
        box = self._box(dataset)
        with self._sealing:
            shards = box.inbox.seal()
            if not box.inbox.is_sealed:
                return SealedInbox(box.name)
            store = self._open(box.inbox.folder)
            index = store.index
            if self._versions.get(box.name) == index.version:
                store.close()
            else:
                self._publish(box.name, store)
                self._versions[box.name] = index.version
        return SealedInbox(box.name, index.version, len(index), int(index.sizes.sum()), shards)

    def forget(self, name: str, keys: Sequence[str], contents: Sequence[str]) -> int:
        """Remove images from the inbox of a dataset that have one of these contents, with their labels.

        Of an inbox itself, those with these keys. How many there were.
        """
        dataset = name.removesuffix(ENDING)
        if self._state is None or not (self._state.folder / "inbox" / dataset).is_dir():
            return 0
        digests = [key.rpartition("/")[2] for key in keys] if name != dataset else contents
        box = self._box(dataset)
        with self._sealing:
            gone = box.inbox.forget(digests)
            labels = self._state.kept_labels
            if gone and labels is not None:
                labels.forget(box.name, [one.id for one in gone])
            if box.name in self._versions:
                self._serve(box)
        return len(gone)

    def reopen(self, name: str) -> LocalStore:
        """A sealed inbox, without what is forgotten of it."""
        return self._open(self.state.folder / "inbox" / name.removesuffix(ENDING))

    def _serve(self, box: _Box) -> None:
        """What is sealed of an inbox, if it is another than before."""
        if not box.inbox.is_sealed:
            return
        store = self._open(box.inbox.folder)
        if self._versions.get(box.name) == store.index.version:
            store.close()
            return
        self._publish(box.name, store)
        self._versions[box.name] = store.index.version

    def restore(self) -> Iterator[tuple[str, LocalStore]]:
        """Go on with the inboxes that there are; what was sealed of them, by the names it is served under."""
        folder = None if self._state is None else self._state.folder / "inbox"
        for place in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
            if place.name in self._datasets:
                self._box(place.name)
            else:
                self._bytes_elsewhere += bytes_in(place)
            if any(place.glob("*.tar")):
                try:
                    store = self._open(place)
                except DatasetError as error:
                    log.error("the inbox of %s is not served: %s", place.name, error)
                    continue
                self._versions[place.name + ENDING] = store.index.version
                yield place.name + ENDING, store

    def close(self) -> None:
        with self._lock:
            for box in self._boxes.values():
                box.inbox.close()

    @property
    def state(self) -> State:
        if self._state is None:
            raise WrongUse("this store keeps no images; start it with --state FOLDER")
        return self._state

    def _open(self, folder: Path) -> LocalStore:
        """The sealed shards of an inbox."""
        forgotten = Forgotten(self.state.folder / FORGOTTEN, folder.name + ENDING)
        options = SourceOptions(progress=False, forgotten=forgotten)
        return LocalStore(open_source(folder, options=options))

    def _answer_seal(self, body: bytes, caller: Caller) -> bytes:
        asked: InboxSeal = messages.decode(InboxSeal, body)
        if not caller.may(_SCOPE, asked.dataset):
            raise Refused(
                f"token {caller.name!r} is not good for dataset {asked.dataset[:64]!r}; ask for one that is"
            )
        try:
            return messages.encode(self.seal(asked.dataset))
        except HeadwaterError as error:
            raise self.state.hide(error) from error

    def _box(self, dataset: str) -> _Box:
        if dataset not in self._datasets:
            raise DatasetNotFound(f"no dataset is called {dataset!r} here")
        name = dataset + ENDING
        if not DATASET_NAME.fullmatch(name):
            raise WrongUse(
                f"{name!r} is too long for a dataset's name; serve {dataset!r} under a shorter one"
            )
        with self._lock:
            if dataset not in self._boxes:
                self._boxes[dataset] = _Box(name, Inbox(self.state.subfolder("inbox") / dataset))
            return self._boxes[dataset]

    def _numbers(self, box: _Box, version: ModelVersion) -> tuple[int, NDArray[np.int32]]:
        """The version's number in the label database, and those of its classes."""
        found = box.numbers.get(version.digest)
        if found is None:
            labels = self.state.labels
            known = labels.announce_line(self.state.registry.line(version), author=_AUTHOR)
            found = known.number, labels.adopt(box.name, version.classes)
            box.numbers[version.digest] = found
        return found

    def _write(self, box: _Box, rows: LabelRows, version: ModelVersion) -> None:
        """As parts of one revision a day and version, until somebody undoes it: then as parts of another."""
        try:
            self._write_part(box, rows, version)
        except LabelRefused:
            box.turn = os.urandom(4).hex()
            box.numbers.clear()
            self._write_part(box, rows, version)

    def _write_part(self, box: _Box, rows: LabelRows, version: ModelVersion) -> None:
        day = datetime.now(UTC).date().isoformat()
        key = " ".join([_AUTHOR, box.name, version.digest, day, box.turn]).strip()
        self.state.labels.write(box.name, rows, author=_AUTHOR, key=key, chunk=rows.chunk)
