"""Network namespaces and slow links between them: made, used, and gone afterwards whatever happens.

Needs root and `ip` and `tc` of iproute2. The limit is a token bucket on both ends, so both directions have
it. TCP's share of such a link is 1448 of every 1514 bytes: 95.6 of 100 Mbit.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

RATE_MBIT = 100
TCP_SHARE = 1448 / 1514
"""Payload of a full segment over what the bucket counts: headers of Ethernet, IP, TCP with timestamps."""

_TOOLS = ("ip", "tc")


@dataclass(frozen=True)
class Side:
    """One end of the link: run a command there by putting `words` before it."""

    name: str
    device: str
    address: str

    @property
    def words(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    @property
    def entering(self) -> tuple[str, ...]:
        """The same without `ip netns exec`, which hides the control groups: who is held must see by what."""
        return ("nsenter", f"--net=/run/netns/{self.name}")

    def pids(self) -> list[int]:
        """Who runs in this namespace now."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        return [int(word) for word in found.stdout.split()]


@dataclass(frozen=True)
class Ends:
    store: Side
    trainer: Side


def demand_root() -> None:
    """Exit 2 where namespaces cannot be made."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        _refuse(f"{' and '.join(missing)} not found; install iproute2")
    if os.geteuid() != 0:
        _refuse("network namespaces need root; run this as root, or see delay.py, which needs none")


def _refuse(reason: str) -> NoReturn:
    print(f"{os.path.basename(sys.argv[0])}: {reason}", file=sys.stderr)
    sys.exit(2)


@contextmanager
def slow_link(*, rate_mbit: float = RATE_MBIT) -> Iterator[Ends]:
    """Two namespaces joined by a veth pair with `tbf` on both ends; the names hold this process's id."""
    with slow_links(1, rate_mbit=rate_mbit) as (ends,):
        yield ends


@contextmanager
def slow_links(stores: int, *, rate_mbit: float) -> Iterator[tuple[Ends, ...]]:
    """A namespace for each store and one for the trainer, who has such a link to each of them."""
    links = tuple(_name(number) for number in range(stores))
    with ExitStack() as stack, _ended_by_sigterm():
        for side in (links[0].trainer, *(ends.store for ends in links)):
            stack.callback(_remove, side)
            _run("ip", "netns", "add", side.name)
        for ends in links:
            _join(ends, rate_mbit)
        yield links


def _name(number: int) -> Ends:
    """The ends of one link; the trainer's side is the same namespace in all of them."""
    pid, network = os.getpid(), f"10.{os.getpid() % 200 + 20}.{77 + number}"
    return Ends(
        Side(f"headwater-store-{pid}-{number}", f"hws{pid}n{number}", f"{network}.1"),
        Side(f"headwater-trainer-{pid}", f"hwt{pid}n{number}", f"{network}.2"),
    )


def _join(ends: Ends, rate_mbit: float) -> None:
    store, trainer = ends.store, ends.trainer
    _run("ip", "link", "add", store.device, "netns", store.name, "type", "veth",
         "peer", "name", trainer.device, "netns", trainer.name)  # fmt: skip
    for side in (store, trainer):
        _prepare(side, rate_mbit)


def _prepare(side: Side, rate_mbit: float) -> None:
    _run(*side.words, "ip", "link", "set", "lo", "up")
    _run(*side.words, "ip", "address", "add", f"{side.address}/24", "dev", side.device)
    _run(*side.words, "ip", "link", "set", side.device, "up")
    limit = ("tbf", "rate", f"{rate_mbit:g}mbit", "burst", "32kb", "latency", "50ms")
    _run(*side.words, "tc", "qdisc", "add", "dev", side.device, "root", *limit)


def _remove(side: Side) -> None:
    """The namespace is ours alone, so whoever is still in it is ours too. Its end of the veth goes along."""
    for pid in side.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", side.name], stderr=subprocess.DEVNULL, check=False)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does; its default would leave the namespaces behind."""

    def stop(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(words)}: {done.stderr.strip()}; is the kernel built with veth and tbf?"
        )


def measure_stream(ends: Ends, script: str, *, seconds: float) -> float:
    """Mbit per second of a bare TCP stream from store to trainer, all that the link can carry."""
    send = _python(ends.store, script, "send", ends.store.address)
    with subprocess.Popen(send, stdout=subprocess.PIPE, text=True, start_new_session=True) as sender:
        assert sender.stdout is not None
        try:
            port = sender.stdout.readline().strip()
            receive = _python(ends.trainer, script, "receive", ends.store.address, port, str(seconds))
            return float(subprocess.run(receive, capture_output=True, text=True, check=True).stdout)
        finally:
            sender.kill()


def _python(side: Side, script: str, *arguments: str) -> Sequence[str]:
    return [*side.words, sys.executable, script, *arguments]
