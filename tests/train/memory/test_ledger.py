"""The account, and what it says of what left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headwater.train.memory.holding import Holding
from headwater.train.memory.ledger import Ledger, Ways
from headwater.train.memory.lineage import Lineage
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.streams import Clock, Streams
from headwater.train.memory.tracker import Tracker
from headwater.train.memory.transfer import FileTier

CPU = torch.device("cpu")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    tier = FileTier(SpillFile(tmp_path))
    yield Ledger(2**20, tier, Ways(), Clock(Streams(CPU)))
    tier.close()


def hold(ledger: Ledger, key: int) -> Holding:
    holding = Holding(torch.randn(2**12), key, (0, key), ledger.obituaries)
    ledger.admit(holding)
    return holding


def test_relieving_says_whether_anything_left(ledger: Ledger) -> None:
    holdings = [hold(ledger, key) for key in range(3)]
    assert ledger.relieve()
    assert ledger.held == 0
    assert all(holding.tensor is None and holding.clean for holding in holdings)
    assert not ledger.relieve(), "nothing was left"


def test_what_was_leaving_and_had_only_to_be_let_go_counts_as_left(ledger: Ledger) -> None:
    holding = hold(ledger, 1)
    ledger.swap_out(holding)
    assert holding.writing is not None
    holding.writing.wait()
    assert ledger.held == holding.size, "until somebody looks"
    assert Tracker(ledger, Lineage(ledger.clock), CPU).relieve()
    assert ledger.held == 0
    assert holding.tensor is None


def test_what_is_in_use_stays(ledger: Ledger) -> None:
    holding = hold(ledger, 1)
    tensor = ledger.give(holding)
    assert not ledger.relieve()
    ledger.next_step()
    assert ledger.relieve()
    assert torch.equal(ledger.give(holding).view(tensor.dtype), tensor)
