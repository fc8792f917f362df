"""How much of the machine's cores this process is granted: its affinity, and the quota of its container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def granted_cores(own: Path = _OWN, groups: Path = _GROUPS) -> float:
    """At least a hundredth: a process that runs has something."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0.01, min([float(cores), *_quotas(own, groups)]))


def _quotas(own: Path, groups: Path) -> Iterator[float]:
    """Cores by each group of control that the process is in; every parent may limit it further."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in _folders(groups / controllers if controllers else groups, path):
            yield from _new_quota(folder) if not controllers else _old_quota(folder)


def _folders(root: Path, path: str) -> Iterator[Path]:
    """The group's folder and its parents; within a container the path may only exist outside."""
    group = PurePosixPath(path.strip("/"))
    for part in (group, *group.parents):
        yield root / part


def _new_quota(folder: Path) -> Iterator[float]:
    words = _read(folder / "cpu.max").split()
    if len(words) == 2 and words[0] != "max":
        yield int(words[0]) / int(words[1])


def _old_quota(folder: Path) -> Iterator[float]:
    quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota and period and int(quota) > 0:
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
