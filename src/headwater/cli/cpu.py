"""CPU that processes have used, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PARENT, _CPU = 1, slice(11, 15)  # of the fields after the name; own and ended children's, user and system


def cpu_seconds(pids: Iterable[int]) -> float:
    """Of these processes, and of those of their children that have ended; to a hundredth of a second."""
    return _sum(_read(pid) for pid in pids)


def tree_cpu_seconds(pid: int) -> float:
    """Of a process, its descendants and those of them that have ended; to a hundredth of a second."""
    lines = {each: fields for each in _list_pids() if (fields := _read(each))}
    tree = {pid}
    while more := {each for each, fields in lines.items() if int(fields[_PARENT]) in tree} - tree:
        tree |= more
    return _sum(lines[each] for each in tree & lines.keys())


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read(pid: int) -> list[str]:
    """What the kernel says of a process, after its name; nothing of one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # its name, in brackets, may hold anything
    return text.rpartition(")")[2].split()


def _sum(lines: Iterable[list[str]]) -> float:
    return sum(int(field) for fields in lines for field in fields[_CPU]) / os.sysconf("SC_CLK_TCK")
