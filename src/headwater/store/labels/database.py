"""The label database as its users see it: a method for each thing to do, a transaction for each method."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import sqlalchemy as sa
from numpy.typing import ArrayLike, NDArray

from headwater.errors import WrongUse
from headwater.store.labels import (
    address,
    announced,
    classes,
    datasets,
    failures,
    forgetting,
    migrating,
    queries,
    recalling,
    reviewing,
    revisions,
    undoing,
    writing,
)
from headwater.store.labels.announced import Announced, Version
from headwater.store.labels.classes import ClassList
from headwater.store.labels.exchange.sheet import Sheet, to_label_rows, to_sheet
from headwater.store.labels.page import Glossary, LabelPage
from headwater.store.labels.recalling import Recalled
from headwater.store.labels.reviewing import QUEUES, Asked, Review, VersionDiff
from headwater.store.labels.revisions import Deed, Revision, Written
from headwater.store.labels.rows import LabelRows, Source, check_samples
from headwater.store.labels.schema import IN_FORCE, OPINION
from headwater.store.labels.schema import revisions as log
from headwater.store.labels.wanted import ALL, BEFORE_ALL, LabelQuery
from headwater.store.labels.writing import Change

WAIT_SECONDS = 30.0


class LabelDatabase:
    """Labels of datasets, with their history; made by `open_database`.

    Threads may share it; each process opens its own. What a method has written when it returns survives the
    end of the process, however it comes.
    """

    def __init__(self, engine: sa.Engine, *, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock
        self._lists = classes.Lists()

    def __repr__(self) -> str:
        return f"LabelDatabase({address.name(self._engine.url)!r})"

    def close(self) -> None:
        """Let go of the connections."""
        self._engine.dispose()

    def announce(self, digest: str, *, name: str, parent: str | None = None, author: str = "") -> Announced:
        """Tell the database of a model version, which is newer than all that were announced before.

        Only announced versions can label. The same one again changes nothing. A parent is older than its
        child also if it is announced after it.
        """
        with self._writing() as connection:
            return announced.announce(
                connection, digest, name=name, parent=parent, author=author, now=self._now()
            )

    def announce_line(self, versions: Sequence[Version], *, author: str = "") -> Announced:
        """Tell the database of the last of these, and first of the others, which came before it.

        So they are older than the last, whichever of them labels first. Where the last is known already they
        are left out: they would count as newer.
        """
        *before, last = versions
        known = {one.digest for one in self.models()}
        for one in before if last.digest not in known else ():
            if one.digest not in known:
                self.announce(one.digest, name=one.name, parent=one.parent, author=author)
        return self.announce(last.digest, name=last.name, parent=last.parent, author=author)

    def announce_all(self, versions: Iterable[Announced], *, author: str = "") -> list[Announced]:
        """Tell the database of all versions of another one, as its `models` gives them, in their order.

        Raises `LabelRefused`, and announces none, where their order here is another one.
        """
        with self._writing() as connection:
            return announced.announce_all(connection, versions, author=author, now=self._now())

    def model(self, version: str) -> Announced:
        """By digest, its first 8 or more digits, or name; raises `LabelRefused` for an unknown one."""
        with self._reading() as connection:
            return announced.find(connection, version)

    def models(self) -> list[Announced]:
        """All announced versions, oldest first."""
        with self._reading() as connection:
            return announced.known(connection)

    def write(
        self,
        dataset: str,
        rows: LabelRows,
        *,
        author: str = "",
        key: str | None = None,
        chunk: int = 0,
        over_imports: bool = False,
    ) -> Written:
        """Put labels in force, as one revision, in one transaction.

        A human replaces everything; an import replaces models and imports; a model replaces older models, and
        imports with `over_imports`. What a model may not replace it contradicts: see `review`. A job that
        writes in parts gives a `key` and numbers its chunks: they are one revision, and a chunk that was
        written already is not written again. Labels are places in `classes(dataset)`.
        Raises `WrongUse` for labels outside that list and for no rows at all, `LabelRefused` for a version
        that was not announced.
        """
        if not len(rows):
            raise WrongUse("a write holds at least one row")
        deed = Deed("write", author=author, key=key, model=_only_model(rows))
        with self._writing() as connection:
            number = datasets.lock(connection, dataset, create=True)
            now = self._now()
            if key is None:
                revision = revisions.add(connection, number, deed, now=now)
            else:
                revision = revisions.resume(connection, number, deed, name=dataset, now=now)
                done = revisions.chunk(connection, revision, chunk)
                if done is not None:
                    return done
            change = Change(number, revision, now, over_imports)
            written = self._write(connection, change, rows)
            if key is not None:
                revisions.add_chunk(connection, chunk, written)
            return written

    def written(self, key: str, chunk: int) -> Written | None:
        """What `write` did with this chunk of the revision with this key; None if it was never written."""
        with self._reading() as connection:
            revision = revisions.find(connection, log.c.key == key)
            return None if revision is None else revisions.chunk(connection, revision.number, chunk)

    def enrol(
        self, dataset: str, ids: ArrayLike, labels: ArrayLike, *, class_names: Sequence[str], author: str = ""
    ) -> Written:
        """Take over the labels that a dataset brings along, as imports; -1 is none, and gets no row.

        `labels` are places in `class_names`. Doing it again changes only what differs.
        """
        samples, places = np.asarray(ids, np.int64), np.asarray(labels, np.int64)
        (known,) = np.nonzero(places >= 0)
        if len(known) and int(places.max()) >= len(class_names):
            raise WrongUse(f"label {places.max()} is no place in a list of {len(class_names)} classes")
        order = known[np.argsort(samples[known])]
        check_samples(samples[order])
        with self._writing() as connection:
            change = self._begin(connection, dataset, Deed("enrol", author=author))
            numbers = classes.adopt(connection, change.dataset, class_names, revision=change.revision)
            wrote = kept = 0
            for start in range(0, len(order), writing.ROWS_AT_ONCE):  # never all columns of all rows
                some = order[start : start + writing.ROWS_AT_ONCE]
                rows = LabelRows.of(samples[some], numbers[places[some]], source=Source.IMPORT)
                written = self._write(connection, change, rows)
                wrote, kept = wrote + written.wrote, kept + written.kept
            return Written(change.revision, wrote, kept)

    def undo(self, dataset: str, revision: int | None = None, *, author: str = "") -> Written:
        """Take back a revision, the last that is in force unless it is named; an undo can be undone too.

        Raises `LabelRefused` where a later revision has changed a row of it.
        """
        with self._writing() as connection:
            number = datasets.lock(connection, dataset)
            target = undoing.choose(connection, number, revision)
            return undoing.undo(connection, number, target, author=author, now=self._now())

    def forget(self, dataset: str, samples: ArrayLike) -> int:
        """Delete all rows of these samples, those of their history too; how many. It cannot be undone.

        No file of the database holds them when this returns; to repeat it makes sure of that, though there
        is no row left.
        """
        wanted = np.asarray(samples, np.int64)
        with self._writing() as connection:
            found = forgetting.delete(connection, dataset, wanted)
        with failures.told(self._engine.url):
            forgetting.scrub(self._engine)
        return found

    def count_rows(self, dataset: str, samples: ArrayLike) -> int:
        """How many rows `forget` would delete."""
        with self._reading() as connection:
            return forgetting.count(connection, dataset, np.asarray(samples, np.int64))

    def count_by(self, dataset: str, digests: Iterable[str]) -> int:
        """How many rows one of these versions wrote that are in force, or stand beside others' labels."""
        with self._reading() as connection:
            return forgetting.count_by(connection, dataset, list(digests))

    def classes(self, dataset: str) -> ClassList:
        """The class list as it stands."""
        with self._reading() as connection:
            return self._lists.load(connection, datasets.find(connection, dataset))

    def adopt(self, dataset: str, names: Sequence[str]) -> NDArray[np.int32]:
        """The number of each class; those that are not there yet are added."""
        with self._writing() as connection:
            number = datasets.lock(connection, dataset, create=True)
            there = self._lists.load(connection, number)
            numbers, became = classes.add(connection, number, there, names, revision=0)
        self._lists.learn(became)
        return numbers

    def rename(self, dataset: str, old: str, new: str, *, author: str = "") -> Written:
        """Give a class another name. The old one still means it, unless another class gets it."""
        deed = Deed("rename", author=author, note=f"{old!r} to {new!r}")
        with self._writing() as connection:
            change = self._begin(connection, dataset, deed, create=False)
            classes.rename(connection, change.dataset, old, new, revision=change.revision)
            return Written(change.revision, 0, 0)

    def merge(self, dataset: str, old: str, into: str, *, author: str = "") -> Written:
        """Make one class a part of another. Rows keep their class, and are read as the other."""
        deed = Deed("merge", author=author, note=f"{old!r} into {into!r}")
        with self._writing() as connection:
            change = self._begin(connection, dataset, deed, create=False)
            classes.merge(connection, change.dataset, old, into, revision=change.revision)
            return Written(change.revision, 0, 0)

    def datasets(self) -> list[str]:
        """The names of all datasets that labels are kept of."""
        with self._reading() as connection:
            return datasets.names(connection)

    def get(self, dataset: str, samples: ArrayLike, *, opinions: bool = False) -> LabelRows:
        """Rows of those samples that have one, in order of id; `opinions`: what models say against them."""
        layer = OPINION if opinions else IN_FORCE
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            there = self._lists.load(connection, number)
            return queries.look_up(connection, number, np.asarray(samples, np.int64), there, layer=layer)

    def search(
        self, dataset: str, query: LabelQuery = ALL, *, after: int = BEFORE_ALL, limit: int = 1000
    ) -> LabelRows:
        """The first rows with ids above `after`, in order of id."""
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            there = self._lists.load(connection, number)
            return queries.page(connection, number, query, there, after=after, limit=limit)

    def page(
        self,
        dataset: str,
        query: LabelQuery = ALL,
        *,
        after: int = BEFORE_ALL,
        limit: int = 1000,
        opinions: bool = False,
    ) -> LabelPage:
        """What `search` gives, and what its numbers mean; `opinions`: and what models say against the rows.

        It may hold fewer rows, or none, although there are more: no more than `LOOKED_AT` are gone through.
        """
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            there = self._lists.load(connection, number)
            last = queries.end_of(connection, number, after=after, rows=queries.LOOKED_AT)
            rows = queries.page(connection, number, query, there, after=after, limit=limit, last=last)
            others = None
            if opinions:
                others = queries.look_up(connection, number, rows.samples, there, layer=OPINION)
            following = int(rows.samples[-1]) if len(rows) == limit else last
            state = revisions.state(connection)
            return LabelPage(rows, _glossary(connection, there), following, others, state)

    def glossary(self, dataset: str) -> Glossary:
        """What the numbers in rows of this dataset mean."""
        with self._reading() as connection:
            return _glossary(connection, self._lists.load(connection, datasets.find(connection, dataset)))

    def scan(self, dataset: str, query: LabelQuery = ALL) -> Iterator[LabelRows]:
        """All rows, in order of id, in parts, as they were at one moment."""
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            yield from queries.stream(connection, number, query, self._lists.load(connection, number))

    def counts(self, dataset: str) -> Mapping[str, Mapping[Source, int]]:
        """Rows by class and source; classes that were merged into another count there."""
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            there = self._lists.load(connection, number)
            found = queries.counts(connection, number, there)
        rows = zip(there.names, there.merged_into, found.tolist(), strict=True)
        return {name: dict(zip(Source, row, strict=True)) for name, into, row in rows if into is None}

    def stale(
        self,
        dataset: str,
        version: str,
        *,
        of: Sequence[Source] = (Source.MODEL,),
        after: int = BEFORE_ALL,
        limit: int = 10_000,
    ) -> NDArray[np.int64]:
        """Ids above `after`, in order, whose row is of a model older than this version.

        With other sources in `of`, also samples with such a label of which this version, or a newer one, has
        not said what it thinks.
        """
        with self._reading() as connection:
            number, model = datasets.find(connection, dataset), announced.find(connection, version)
            return queries.stale(connection, number, model.number, of=of, after=after, limit=limit)

    def pending(
        self, dataset: str, version: str, samples: ArrayLike, *, of: Sequence[Source] = (Source.MODEL,)
    ) -> NDArray[np.int64]:
        """Those of the samples that have no row at all, or a stale one; in order of id."""
        return self.recall(dataset, version, samples, of=of).pending

    def recall(
        self, dataset: str, version: str, samples: ArrayLike, *, of: Sequence[Source] = (Source.MODEL,)
    ) -> Recalled:
        """What is `pending`, and what models said of that before: in force, or of others' labels in `of`."""
        wanted = np.asarray(samples, np.int64)
        with self._reading() as connection:
            number, model = datasets.find(connection, dataset), announced.find(connection, version)
            there = self._lists.load(connection, number)
            return recalling.recall(connection, number, model.number, wanted, there, of=of)

    def review(
        self,
        dataset: str,
        queue: str = "margin",
        *,
        after: tuple[float, int] | None = None,
        limit: int = 100,
    ) -> Review:
        """What to look at first, by one of `QUEUES`: `margin`, `disagreement` or `models`."""
        if queue not in QUEUES:
            raise WrongUse(f"no review queue is called {queue!r}; known: {', '.join(QUEUES)}")
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            page = Asked(number, self._lists.load(connection, number), limit, after)
            return QUEUES[queue](connection, page)

    def diff(self, dataset: str, before: str, after: str) -> VersionDiff:
        """Samples that both versions have labelled, by the class that each gave."""
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            old, new = announced.find(connection, before), announced.find(connection, after)
            there = self._lists.load(connection, number)
            return reviewing.diff(connection, number, there, before=old, after=new)

    def diff_rows(self, dataset: str, before: str, after: str) -> Iterator[tuple[LabelRows, LabelRows]]:
        """The samples whose class differs between two versions, in order of id, in parts."""
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            old, new = announced.find(connection, before), announced.find(connection, after)
            there = self._lists.load(connection, number)
            yield from reviewing.diff_rows(connection, number, there, before=old, after=new)

    def log(
        self, dataset: str | None = None, *, before: int | None = None, limit: int = 100
    ) -> list[Revision]:
        """Revisions, newest first; with `before`, only those with smaller numbers."""
        with self._reading() as connection:
            wanted = []
            if dataset is not None:
                wanted.append(log.c.dataset == datasets.find(connection, dataset))
            if before is not None:
                wanted.append(log.c.number < before)
            return revisions.listing(connection, *wanted, limit=limit)

    def sheets(self, dataset: str, query: LabelQuery = ALL, *, opinions: bool = False) -> Iterator[Sheet]:
        """Rows with names instead of numbers, for files; `opinions` brings those of contradicting models."""
        with self._reading() as connection:
            number = datasets.find(connection, dataset)
            there = self._lists.load(connection, number)
            glossary = _glossary(connection, there)
            for rows in queries.stream(connection, number, query, there):
                others = None
                if opinions:
                    others = queries.look_up(connection, number, rows.samples, there, layer=OPINION)
                yield to_sheet(glossary, rows, others)

    def take_in(self, dataset: str, sheets: Iterable[Sheet], *, author: str = "", note: str = "") -> Written:
        """Write all sheets as one revision, or, if one of them raises, nothing."""
        with self._writing() as connection:
            change = self._begin(connection, dataset, Deed("import", author=author, note=note))
            wrote = kept = 0
            for sheet in sheets:
                written = self._write(connection, change, to_label_rows(connection, change, sheet))
                wrote, kept = wrote + written.wrote, kept + written.kept
                if sheet.opinions is not None:
                    said = to_label_rows(connection, change, sheet.opinions)
                    self._write(connection, change, said, counted=False)
            return Written(change.revision, wrote, kept)

    def _begin(self, connection: sa.Connection, dataset: str, deed: Deed, *, create: bool = True) -> Change:
        number = datasets.lock(connection, dataset, create=create)
        now = self._now()
        return Change(number, revisions.add(connection, number, deed, now=now), now)

    def _write(
        self, connection: sa.Connection, change: Change, rows: LabelRows, *, counted: bool = True
    ) -> Written:
        writing.check(connection, rows, classes=classes.count(connection, change.dataset))
        written = writing.write(connection, change, rows)
        if counted:
            revisions.count(connection, written)
        return written

    def _now(self) -> int:
        return round(1000 * self._clock())

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with failures.told(self._engine.url), address.for_reading(self._engine).begin() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with failures.told(self._engine.url), address.for_writing(self._engine).begin() as connection:
            yield connection


def open_database(
    place: str | os.PathLike[str],
    *,
    create: bool = True,
    wait_seconds: float = WAIT_SECONDS,
    clock: Callable[[], float] = time.time,
) -> LabelDatabase:
    """Open the label database in a SQLite file or at a URL, and bring its tables up to date.

    `create` makes it if need be. `wait_seconds` is how long to wait for other writers. Raises `WrongUse`,
    `LabelError`, `LabelRefused`, `Unreachable`, `Incompatible` for one that a newer program made, or
    `MissingExtra` for a driver that is not installed.
    """
    url = address.parse(place)
    if not create:
        address.require_file(url)
    engine = address.make_engine(url, wait_seconds)
    try:
        with failures.told(url):
            migrating.bring_up(engine, create=create)
    except BaseException:
        engine.dispose()
        raise
    return LabelDatabase(engine, clock=clock)


def _glossary(connection: sa.Connection, there: ClassList) -> Glossary:
    known = announced.known(connection)
    return Glossary(there.names, {version.number: version.digest for version in known})


def _only_model(rows: LabelRows) -> int | None:
    """The version that wrote all rows, if it was one."""
    found = np.unique(rows.models)
    return int(found[0]) or None if len(found) == 1 else None
