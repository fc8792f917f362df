"""A recorded run of a softmax head, and requests to it: what the benchmarks of replay share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frozen import CLASSES, Frozen
from headwater.errors import JournalRefused
from headwater.train.replay.batches import NO_SLOTS, Batches, describe
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.linear import LinearHead
from headwater.train.replay.motion import Motion, Rule
from headwater.train.replay.recording import EVERY
from headwater.train.replay.records import Group, Header
from headwater.train.replay.visits import Change, Roster
from headwater.train.replay.writer import JournalWriter

RATE, MOMENTUM, L2 = 1.0, 0.9, 1e-3
_DRAWN = 71
"""Requests that were not looked at when the adaptive policy's constants were chosen; those were of 11."""


def as_features(frozen: Frozen) -> tuple[Features, int]:
    """All rows, those to train on first, and how many these are."""
    values = np.concatenate([frozen.train, frozen.spare])
    labels = np.concatenate([frozen.labels, frozen.spare_labels])
    ids = np.random.default_rng(3).permutation(1 << 20)[: len(values)].astype(np.int64) << 32
    return Features(ids, values, labels, source=frozen.name), len(frozen.train)


def record(path: Path, data: Features, count: int, batches: Batches) -> Journal:
    """Train a head on the first rows, as fast as training again does it, and keep its journal.

    One that is there and whole is taken; one that was cut short is made anew.
    """
    if path.exists():
        try:
            return Journal(path, data)
        except JournalRefused:
            path.unlink()
    head, rows = LinearHead(data.values.shape[1], CLASSES), np.arange(count)
    header = Header(
        objective=head.describe(),
        batches=describe(batches),
        data=data.version(rows),
        ids=data.ids[:count].astype("<i8").tobytes(),
        groups=(Group(head.size, L2),),
        momentum=MOMENTUM,
        nesterov=False,
        every=EVERY,
    )
    motion = Motion(Rule.of(header), np.zeros(head.size, np.float32))
    with JournalWriter(path, header) as writer:
        for visit in Roster(batches, NO_SLOTS, data.ids[:count], rows).visits(Change()):
            if writer.wants_mark:
                writer.mark(motion.place, motion.kept_speed)
            mean = head.gradient(motion.place, data.parts(visit.members)) / np.float32(visit.size)
            writer.step(mean, np.array([RATE]))
            motion.step(mean, np.array([RATE]))
        writer.seal(motion.place, motion.kept_speed)
    return Journal(path, data)


@dataclass(frozen=True, eq=False)
class Asked:
    """A request: ids that go and ids that come."""

    what: str
    size: int
    remove: np.ndarray
    add: np.ndarray


def requests(data: Features, count: int, sizes: list[int], seed: int) -> Iterator[Asked]:
    """So many samples that go, and so many that come, by chance."""
    rng = np.random.default_rng([seed, _DRAWN])
    nobody = np.empty(0, np.int64)
    for size in sizes:
        yield Asked("delete", size, rng.choice(data.ids[:count], size, replace=False), nobody)
        yield Asked("add", size, nobody, rng.choice(data.ids[count:], size, replace=False))
