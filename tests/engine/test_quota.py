"""The cores that a container grants, read from made-up control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.engine.quota import granted_cores

CORES = float(len(os.sched_getaffinity(0)))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_groups_it_is_the_affinity(tmp_path: Path) -> None:
    assert granted_cores(tmp_path / "absent", tmp_path) == CORES


@pytest.mark.parametrize(
    ("words", "cores"), [("25000 100000", 0.25), ("max 100000", CORES), ("900000000 100000", CORES)]
)
def test_the_second_version(tmp_path: Path, words: str, cores: float) -> None:
    write(tmp_path / "own", "0::/pods/one\n")
    write(tmp_path / "groups/pods/one/cpu.max", words + "\n")
    assert granted_cores(tmp_path / "own", tmp_path / "groups") == cores


@pytest.mark.parametrize(("quota", "cores"), [("10000", 0.1), ("-1", CORES)])
def test_the_first_version(tmp_path: Path, quota: str, cores: float) -> None:
    write(tmp_path / "own", "4:memory:/pods/one\n3:cpu,cpuacct:/pods/one\n0::/\n")
    write(tmp_path / "groups/cpu,cpuacct/pods/one/cpu.cfs_quota_us", quota)
    write(tmp_path / "groups/cpu,cpuacct/pods/one/cpu.cfs_period_us", "100000")
    assert granted_cores(tmp_path / "own", tmp_path / "groups") == cores


def test_a_parent_may_grant_less(tmp_path: Path) -> None:
    write(tmp_path / "own", "0::/pods/one\n")
    write(tmp_path / "groups/pods/one/cpu.max", "max 100000")
    write(tmp_path / "groups/pods/cpu.max", "50000 100000")
    assert granted_cores(tmp_path / "own", tmp_path / "groups") == 0.5


def test_within_a_container_the_path_is_that_of_the_outside(tmp_path: Path) -> None:
    write(tmp_path / "own", "0::/../../docker/4711\n")
    write(tmp_path / "groups/cpu.max", "50000 100000")
    assert granted_cores(tmp_path / "own", tmp_path / "groups") == 0.5
