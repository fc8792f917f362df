"""A share of the machine's cores for a command and all that it starts: Linux's control groups, version 1."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup/cpu")
_PERIOD_MICROSECONDS = 100_000
_END_SECONDS = 10
_numbers = count()


def demand_groups() -> None:
    """Exit 2 where no group can be made."""
    if not os.access(_GROUPS / "cpu.cfs_quota_us", os.W_OK):
        name = os.path.basename(sys.argv[0])
        print(f"{name}: {_GROUPS} cannot be written to; mount cgroup v1 with its cpu part", file=sys.stderr)
        sys.exit(2)


@dataclass(frozen=True)
class Group:
    """A group of processes, without a limit until it gets one."""

    folder: Path

    @property
    def words(self) -> tuple[str, ...]:
        """To put before a command, which is then in the group from its first instruction."""
        join = f'echo $$ > {shlex.quote(str(self.folder / "cgroup.procs"))} && exec "$@"'
        return ("sh", "-c", join, "sh")

    def limit(self, cores: float) -> None:
        """All of them together have so many cores from now on."""
        (self.folder / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
        (self.folder / "cpu.cfs_quota_us").write_text(str(round(cores * _PERIOD_MICROSECONDS)))


@contextmanager
def make_group() -> Iterator[Group]:
    """A group that is gone afterwards, with all who are in it."""
    group = _GROUPS / f"headwater-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    try:
        yield Group(group)
    finally:
        _remove(group)


@contextmanager
def hold_to(cores: float) -> Iterator[tuple[str, ...]]:
    """Words to put before a command, which is then in a group of so many cores from its first instruction."""
    with make_group() as group:
        group.limit(cores)
        yield group.words


def _remove(group: Path) -> None:
    """The group is ours alone, so whoever is still in it is ours too."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
    raise RuntimeError(f"{group} could not be removed")
