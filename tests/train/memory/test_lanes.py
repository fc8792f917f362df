"""A lane carries whatever happens to what it carries, and its thread is there before memory is short."""

from __future__ import annotations

import os
import threading

import pytest
import torch

import headwater as hw
from headwater.train.memory import transfer
from headwater.train.memory.threads import start_thread
from headwater.train.memory.transfer import Lane, Transfer


class Unbegun(Transfer):
    """For which there is not even the memory of a call."""

    def run(self) -> None:
        raise MemoryError


def test_the_thread_is_there_from_the_start_and_ends_with_the_lane() -> None:
    before = set(threading.enumerate())
    lane = Lane("carrier")
    (thread,) = set(threading.enumerate()) - before
    assert thread.name == "carrier"
    lane.close()
    assert not thread.is_alive()


def test_what_goes_wrong_is_raised_where_it_is_waited_for_and_the_lane_goes_on() -> None:
    def fail() -> None:
        raise OSError("no")

    done: list[int] = []
    lane = Lane("carrier")
    tensor = torch.zeros(1)
    wrong = lane.send(Transfer(fail, 4, tensor))
    unbegun = lane.send(Unbegun(lambda: done.append(1), 4, tensor))
    right = lane.send(Transfer(lambda: done.append(2), 4, tensor))
    with pytest.raises(OSError, match="no"):
        wrong.wait()
    with pytest.raises(MemoryError):
        unbegun.wait()
    right.wait()
    lane.close()
    assert done == [2]
    assert wrong.tensor is unbegun.tensor is right.tensor is None


def test_a_transfer_that_is_done_does_not_fail_afterwards() -> None:
    done = Transfer(lambda: None, 4, torch.zeros(1))
    done.run()
    done.fail(MemoryError())
    done.wait()


def test_both_lanes_begin_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before, left = set(threading.enumerate()), [1]

    def start(thread: threading.Thread, stack: int) -> None:
        if not left:
            raise MemoryError
        left.pop()
        start_thread(thread, stack)

    monkeypatch.setattr(transfer, "start_thread", start)
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(MemoryError), hw.memory_budget("1MiB", device="cpu"):
        pass
    assert set(threading.enumerate()) == before
    assert len(os.listdir("/proc/self/fd")) == files
