"""A store that is killed while it labels photos, and what its label database holds afterwards."""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import headwater as hw
from classifiers import Photos
from headwater.models.presets import PRESETS
from headwater.models.runtime import Engine, decide, make_head
from headwater.store.jobs.record import DONE, FAILED, JobRecord
from headwater.store.labels import open_labels
from headwater.tune.relabel import relabel_at
from relabel import with_noise
from serving import Store, kill, serve
from tuners import KEEP_NOTHING, TRUNK, state_of

LONGEST = 4.0
"""Seconds of a life, at most, from when the store is ready."""
NOISE = 0.3
"""Of a new head, relative to its weights: enough to change labels."""
END_SECONDS = 300
DONE_TO = ("labelled", "unchanged", "changed", "skipped")
"""What becomes of a photo, each of one."""


@dataclass
class Labels:
    """What became of a store's labels: kills at work and after, versions that labelled all; what is wrong."""

    kills: int = 0
    idle: int = 0
    versions: int = 0
    lost: int = 0
    doubled: int = 0
    miscounted: int = 0
    wrong: int = 0


class Relabelling:
    """A store that labels photos with one version after the other, and the truth about them."""

    def __init__(self, folder: Path, photos: Photos) -> None:
        self._photos, self._folder = photos.folder, folder
        self._registry, flags = state_of(folder)
        self._flags = (*flags, *KEEP_NOTHING)
        self._model = PRESETS["efficientnet-lite0"]()
        self._registry.put(self._model, name=TRUNK, switch=True)
        self._features = Engine(self._model).features(photos.pixels).astype(np.float16)
        self._ids = hw.open(photos.folder, progress=False).ids
        self.found = Labels()

    def run(self, kills: int) -> Labels:
        dice, job = random.Random(0), ""
        while self.found.kills < kills:
            with serve(self._photos, further=self._flags) as store:
                job = job or self._begin(store)
                time.sleep(dice.uniform(0.0, LONGEST))
                kill(store)
            job = self._look(job)
        with serve(self._photos, further=self._flags) as store:
            job = job or self._begin(store)
            self._wait(job)
        self._check(self._record(job))
        return self.found

    def _begin(self, store: Store) -> str:
        (one,) = relabel_at([store.address], wait=False)
        if one.job is None:
            raise RuntimeError(f"the job did not begin: {one.error}")
        return one.job.id

    def _look(self, job: str) -> str:
        """The job that goes on; none if this one has ended and all is there."""
        record = self._record(job)
        if record.state == FAILED:
            raise RuntimeError(f"the job failed: {record.error}")
        if record.state != DONE:
            self.found.kills += 1
            print(f"relabel, kill {self.found.kills}", file=sys.stderr, flush=True)
            return job
        self.found.idle += 1
        self._check(record)
        self._model = with_noise(self._model, NOISE)
        self._registry.put(self._model, name=TRUNK, switch=True)
        return ""

    def _wait(self, job: str) -> None:
        end = time.monotonic() + END_SECONDS
        while self._record(job).state != DONE:
            if time.monotonic() > end:
                raise RuntimeError(f"the job did not come to its end: {self._record(job)}")
            time.sleep(0.2)

    def _record(self, job: str) -> JobRecord:
        return msgspec.json.decode((self._folder / "jobs" / f"{job}.json").read_bytes(), type=JobRecord)

    def _check(self, record: JobRecord) -> None:
        """Every photo has the label that this process finds, was written once by each version, and was
        counted once by the job, however often that began again."""
        found = self.found
        found.versions += 1
        logits = make_head(self._model).run(self._features.astype(np.float32))
        names = [self._model.classes[label] for label in decide(logits).labels]
        labels, truth = self._labels(), dict(zip(self._ids.tolist(), names, strict=True))
        found.lost += sum(id not in labels for id in truth)
        found.wrong += sum(labels.get(id, name) != name for id, name in truth.items())
        found.miscounted += abs(sum(record.counts[name] for name in DONE_TO) - len(truth))
        found.doubled += sum(count > found.versions for count in self._writes())

    def _labels(self) -> dict[int, str]:
        """By id, of rows that the version in force has written."""
        digest = self._registry.current(TRUNK).digest
        with closing(open_labels(self._folder / "labels.db")) as labels:
            classes = labels.classes("photos").names
            numbers = {one.number for one in labels.models() if one.digest == digest}
            return {
                id: classes[label]
                for rows in labels.scan("photos")
                for id, label, model in zip(
                    rows.samples.tolist(), rows.labels.tolist(), rows.models.tolist(), strict=True
                )
                if model in numbers
            }

    def _writes(self) -> list[int]:
        """How often each sample was written."""
        with closing(sqlite3.connect(self._folder / "labels.db")) as database:
            return [n for (n,) in database.execute("SELECT count(*) FROM history GROUP BY sample")]
