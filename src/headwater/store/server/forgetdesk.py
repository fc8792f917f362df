"""What a store does when samples are to be forgotten.

They are left out of the dataset first, so that nothing new is made of them, and then all that is kept of
them goes. What is to be done is on disk before the first step, and every step may be done again: a store that
was killed leaves the samples out before it opens its datasets again, and does the rest before it listens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.forgetting import Audit, Plans
from headwater.data.forgotten import Forgotten
from headwater.data.index import Index
from headwater.data.indexcache import cache_folder, drop_indexes
from headwater.engine.budget import Busy
from headwater.engine.fetching import content_digests
from headwater.errors import DatasetNotFound, HeadwaterError, Refused, WrongUse
from headwater.store.local import LocalStore
from headwater.store.server.desk import Desk, parse_ids
from headwater.store.server.guard import Caller
from headwater.store.server.jobdesk import JobDesk
from headwater.store.server.keeping import Keeper
from headwater.store.server.state import FORGOTTEN, State
from headwater.store.server.studios import Studios
from headwater.store.server.talk import Answer
from headwater.store.wire import messages
from headwater.store.wire.messages import Forget, ForgottenThere

log = logging.getLogger("headwater")

Ids = NDArray[np.int64]
Reopen = Callable[[str], LocalStore]
"""Open a dataset anew, without what is forgotten of it."""
Publish = Callable[[str, LocalStore], None]

MOST_IDS = 4096
"""That one request may name."""
_SCOPE = "forget"
_PATIENCE = 5.0


class ForgetPlan(msgspec.Struct, frozen=True):
    """What a store is forgetting: ids, keys and digests of contents in clear, until it is done.

    `keys` and `contents` are of those samples that the dataset had, whose version was `before`; `by` is who
    asked for it.
    """

    dataset: str
    ids: tuple[int, ...]
    keys: tuple[str, ...]
    contents: tuple[str, ...]
    before: str
    delete_files: bool = False
    by: str = ""

    def joined(self, other: ForgetPlan | None) -> ForgetPlan:
        """Both; `before` is that of the older one.

        Who asks for all of that again, and not for its files to be deleted, takes that back.
        """
        if other is None:
            return self
        taken_back = self.by == other.by and set(self.ids) >= set(other.ids)
        return ForgetPlan(
            dataset=self.dataset,
            ids=tuple(sorted({*self.ids, *other.ids})),
            keys=tuple(sorted({*self.keys, *other.keys})),
            contents=tuple(sorted({*self.contents, *other.contents})),
            before=other.before,
            delete_files=self.delete_files or (other.delete_files and not taken_back),
            by=self.by,
        )


def leave_out_begun(state: State) -> None:
    """Put on the lists what a store was forgetting when it was killed, so that nobody is served it again.

    Before its datasets are opened. Raises `DatasetError` where it is not known what that was.
    """
    folder = state.folder / FORGOTTEN
    for plan in Plans(folder).unended(ForgetPlan):
        Forgotten(folder, plan.dataset).add(plan.ids)


@dataclass(frozen=True)
class Belongings:
    """What a store keeps of samples beside the data, and who can delete it."""

    studios: Studios
    jobs: JobDesk
    release: Callable[[list[int]], None]
    keeper: Keeper


class ForgetDesk:
    """The action `forget`. Safe to use from many threads; one forgets at a time. It needs a state."""

    def __init__(
        self,
        state: State | None,
        desk: Desk,
        belongings: Belongings,
        *,
        reopen: Reopen,
        publish: Publish,
        may_delete: bool,
    ) -> None:
        self._state, self._desk, self._belongings = state, desk, belongings
        self._reopen, self._publish, self._may_delete = reopen, publish, may_delete
        self._forgetting = threading.Lock()

    @property
    def answers(self) -> Mapping[str, Answer]:
        """Action > what answers it."""
        return {"forget": self._answer}

    def _answer(self, body: bytes, caller: Caller) -> bytes:
        asked: Forget = messages.decode(Forget, body)
        if not caller.may(_SCOPE, asked.dataset):
            raise Refused(
                f"token {caller.name!r} is not good for dataset {asked.dataset[:64]!r}; ask for one that is"
            )
        if self._state is None:
            raise WrongUse("this store keeps no list of forgotten samples; start it with --state FOLDER")
        ids = parse_ids(asked.ids, MOST_IDS)
        try:
            self._check(asked, ids)
            if asked.dry_run:
                return messages.encode(self._look(asked, ids))
            with self._turn():
                return messages.encode(self._forget(asked, ids, caller))
        except HeadwaterError as error:
            raise self.state.hide(error) from error

    @property
    def state(self) -> State:
        assert self._state is not None
        return self._state

    @property
    def folder(self) -> Path:
        return self.state.subfolder(FORGOTTEN)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._forgetting.acquire(timeout=_PATIENCE):
            raise Busy("other samples are being forgotten; ask again")
        try:
            yield
        finally:
            self._forgetting.release()

    def _check(self, asked: Forget, ids: Ids) -> None:
        if asked.dataset not in self._desk.datasets:
            raise DatasetNotFound(f"no dataset is called {asked.dataset!r} here")
        if asked.delete_files:
            self._check_may_delete()
        index = self._desk.datasets[asked.dataset].index
        if index.has(ids).sum() == len(index):
            raise WrongUse(f"these are all samples of {asked.dataset!r}; serve it no more instead")
        if asked.delete_files:
            there = index.position_of(ids[index.has(ids)]).tolist()
            keys = [index.key(position) for position in there]
            self._desk.datasets[asked.dataset].source.check_deletable(keys)

    def _check_may_delete(self) -> None:
        if not self._may_delete:
            raise Refused("this store may not delete files; start it with --may-delete, or leave them")

    def _look(self, asked: Forget, ids: Ids) -> ForgottenThere:
        """What would go, as far as that is known without looking everywhere."""
        index, labels = self._desk.datasets[asked.dataset].index, self.state.kept_labels
        found = {"index": int(index.has(ids).sum())}
        if labels is not None:
            found["labels"] = labels.count_rows(asked.dataset, ids)
        return self._say(asked, index.version, index, found)

    def finish(self) -> None:
        """Do what is left of what a killed store was forgetting; before anybody is served.

        What needs a leave, or a dataset, that this store does not have is left, and said so. Raises
        `HeadwaterError` where what is kept of the samples cannot be deleted: it must not be served.
        """
        for plan in [] if self._state is None else Plans(self.folder).unended(ForgetPlan):
            if plan.dataset not in self._desk.datasets:
                log.warning("samples of %r were being forgotten; serve it to finish that", plan.dataset)
                continue
            self._carry_out(plan)
            log.warning(
                "%s samples of %r were being forgotten when the store ended; %s",
                *(f"{len(plan.ids):,}", plan.dataset),
                "their files stay: start it with --may-delete" if self._keeps_files(plan) else "that is done",
            )

    def _forget(self, asked: Forget, ids: Ids, caller: Caller) -> ForgottenThere:
        name, plans = asked.dataset, Plans(self.folder)
        plan = self._plan(asked, ids, caller).joined(plans.load(name, ForgetPlan))
        if plan.delete_files:  # as it was begun, perhaps by a store that was allowed to
            self._check_may_delete()
        plans.keep(name, plan)
        Forgotten(self.folder, name).add(plan.ids)
        self._publish(name, self._reopen(name))
        found = self._carry_out(plan)
        return self._say(asked, plan.before, self._desk.datasets[name].index, found)

    def _carry_out(self, plan: ForgetPlan) -> dict[str, int]:
        """All but leaving the samples out; what was there of them. The plan ends with it if all was done."""
        found = {"index": len(plan.keys), **self._purge(plan)}
        if not self._keeps_files(plan):
            self._note(plan, found)
            Plans(self.folder).drop(plan.dataset)
        return found

    def _keeps_files(self, plan: ForgetPlan) -> bool:
        """Whether files that were to be deleted stay, because this store may not."""
        return plan.delete_files and not self._may_delete

    def _plan(self, asked: Forget, ids: Ids, caller: Caller) -> ForgetPlan:
        """Keys and contents are known as long as the index has the samples."""
        store = self._desk.datasets[asked.dataset]
        positions = store.index.position_of(ids[store.index.has(ids)])
        return ForgetPlan(
            dataset=asked.dataset,
            ids=tuple(ids.tolist()),
            keys=tuple(store.index.key(position) for position in positions.tolist()),
            contents=tuple(content_digests(store, positions)),
            before=store.index.version,
            delete_files=asked.delete_files,
            by=caller.name,
        )

    def _purge(self, plan: ForgetPlan) -> dict[str, int]:
        """All that is kept of them, by where it was."""
        name, ids = plan.dataset, np.array(plan.ids, np.int64)
        found = self._belongings.jobs.forget(name, plan.ids)
        found |= self._belongings.studios.erase(name, ids)
        self._belongings.release(list(plan.ids))
        labels = self.state.kept_labels
        if labels is not None:
            found["labels"] = labels.forget(name, ids)
        found["inbox"] = self._belongings.keeper.forget(name, plan.keys, plan.contents)
        found["cached indexes"] = drop_indexes(ids, cache_folder())
        if plan.delete_files and self._may_delete:  # last, as it may fail in the middle
            found["files"] = self._desk.datasets[name].source.delete(plan.keys)
        return found

    def _note(self, plan: ForgetPlan, found: Mapping[str, int]) -> None:
        forgotten = Forgotten(self.folder, plan.dataset)
        facts = {
            "dataset": plan.dataset,
            "by": plan.by,
            "samples": len(plan.ids),
            "before": plan.before,
            "version": self._desk.datasets[plan.dataset].index.version,
            "delete_files": plan.delete_files,
            "found": dict(found),
        }
        Audit(self.folder).note([forgotten.hash(id) for id in plan.ids], facts)

    def _say(self, asked: Forget, before: str, index: Index, found: Mapping[str, int]) -> ForgottenThere:
        labels = self.state.kept_labels
        labelled = 0 if labels is None else labels.count_by(asked.dataset, asked.models)
        return ForgottenThere(
            dataset=asked.dataset,
            before=before,
            version=index.version,
            samples=len(index),
            found=dict(found),
            labelled=labelled,
        )
