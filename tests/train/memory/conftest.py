"""Networks of these tests are on the CPU, whatever else the machine has."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def the_cpu_counts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test is about an accelerator, a budget finds none."""
    if request.path.name != "test_accelerator.py":
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
