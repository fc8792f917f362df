"""The real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def headwater() -> Run:
    """Run `headwater WORDS...`; `env` adds to the environment."""

    def run(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200", **(env or {})}
        command = [sys.executable, "-m", "headwater.cli", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)

    return run


@pytest.fixture
def headwater_json(headwater: Run) -> Callable[..., dict[str, Any]]:
    """Run with --json, expect success, and parse: anything else on standard output is an error."""

    def run(*words: object) -> dict[str, Any]:
        done = headwater(*words, "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document

    return run
