"""Versions that came to the registry while samples were being forgotten: training runs know no turns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from headwater.models.registry import Registry
from headwater.store.dataset import Dataset
from headwater.tune.forget.affected import Witnesses
from headwater.tune.forget.task import Task

_AGAIN = "it came into force meanwhile: forget them again, or put another in force"


@dataclass(frozen=True)
class Newcomers:
    """Those that saw the samples: to seal, by digest, with their names; and in force, with what to do."""

    seal: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def find_newcomers(registry: Registry, task: Task, open_data: Callable[[], Dataset]) -> Newcomers:
    """Those that the survey did not know; the data are opened only if there are any."""
    known, versions = {*task.known, *task.new.values()}, registry.versions()
    late = {version.digest for version in versions} - known
    if not late:
        return Newcomers()
    with closing(open_data()) as data:
        ids = np.array(task.ids, np.int64)
        witnesses = Witnesses(registry, versions, ids, dataset=data, data=task.before, without={data.version})
        in_force = {name: digest for name, digest in registry.in_force().items() if digest in late}
        saw = witnesses.judge(in_force)
    left = {**dict.fromkeys(saw.replay, _AGAIN), **saw.stuck}
    current = set(registry.in_force().values())
    gone = {one.digest: one.name for one in saw.versions if one.digest in late and one.digest not in current}
    return Newcomers(gone if task.models else {}, left)
