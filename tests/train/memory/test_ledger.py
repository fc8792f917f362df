"""The account, and what it says of what left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headwater.errors import SavedTensorChanged
from headwater.train.memory.holding import Holding
from headwater.train.memory.iteration import Counts
from headwater.train.memory.ledger import Ledger, Ways
from headwater.train.memory.lineage import Lineage
from headwater.train.memory.places import Extent
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.streams import Clock, Streams
from headwater.train.memory.tracker import Tracker
from headwater.train.memory.transfer import FileTier, Transfer

CPU = torch.device("cpu")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    tier = FileTier(SpillFile(tmp_path))
    yield Ledger(2**20, tier, Ways(), Clock(Streams(CPU)))
    tier.close()


def hold(ledger: Ledger, key: int) -> Holding:
    holding = Holding(torch.randn(2**12), key, (0, key), ledger.obituaries)
    ledger.note(holding)
    ledger.admit(holding)
    return holding


def test_an_interrupt_leaves_a_right_account_to_the_next_iteration(ledger: Ledger) -> None:
    first = hold(ledger, 0)
    ledger.held += 1_000  # made room, and then there was an interrupt
    strange = Holding(torch.randn(2**12), 1, (0, 1), ledger.obituaries)
    del strange  # of which nothing was noted
    ledger.settle()
    ledger.begin(Counts())
    assert (ledger.held, ledger.alive, ledger.whole) == (first.size, 1, first.size)


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


class Broken(FileTier):
    """Its writes find no memory, the first of them."""

    times = 1

    def write(self, extent: Extent, tensor: torch.Tensor) -> Transfer:
        if self.times:
            self.times -= 1
            transfer = Transfer(lambda: None, extent.size, tensor)
            transfer.fail(MemoryError())
            return transfer
        return super().write(extent, tensor)


def test_a_write_without_memory_is_tried_again(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    tier = Broken(file)
    ledger = Ledger(2**20, tier, Ways(), Clock(Streams(CPU)))
    holding = hold(ledger, 1)
    assert not ledger.relieve()
    assert holding.tensor is not None
    assert file.used == 0
    assert not ledger.disk_closed
    assert ledger.relieve()
    tier.close()


def test_what_is_wanted_back_while_it_leaves_stays(ledger: Ledger) -> None:
    holding = hold(ledger, 1)
    ledger.swap_out(holding)
    assert ledger.prefetch(holding)
    assert holding.writing is not None
    holding.writing.wait()
    ledger.settle()
    assert holding.tensor is not None
    assert ledger.held == holding.size
    assert ledger.counts.fetches == 0


def test_what_could_not_be_brought_back_comes_from_its_copy_or_is_an_error(ledger: Ledger) -> None:
    copied, alone = hold(ledger, 1), hold(ledger, 2)
    ledger.swap_out(copied)
    assert copied.writing is not None
    copied.writing.wait()
    assert copied.tensor is not None
    assert alone.tensor is not None
    content = copied.tensor.clone()
    ledger.prefetch(copied)
    ledger.settle()
    for holding in (copied, alone):
        holding.tensor.untyped_storage().resize_(0)  # type: ignore[union-attr]
    assert not ledger.relieve(), "nothing would be won"
    assert not ledger.disk_closed
    assert torch.equal(ledger.give(copied).view(content.dtype), content)
    with pytest.raises(SavedTensorChanged):
        ledger.give(alone)
