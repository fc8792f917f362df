"""What each store has sent of what is wanted of it: one store, shards, replicas, and data that lies here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.store.server.daemon import Daemon
from headwater.tune.portions import Portions
from stores import running_daemon
from tunings import write_colours


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Thirty pictures and six others."""
    few = write_colours(tmp_path_factory.mktemp("few"), 2)
    for picture in few.rglob("*.png"):
        picture.rename(picture.with_name(f"few-{picture.name}"))
    return [write_colours(tmp_path_factory.mktemp("many"), 10), few]


@pytest.fixture(scope="module")
def daemons(folders: list[Path]) -> Iterator[list[Daemon]]:
    """The first two hold the many, the third the few."""
    with ExitStack() as stack:
        served = (folders[0], *folders)
        yield [stack.enter_context(running_daemon({"colours": folder})) for folder in served]


def open_at(daemons: list[Daemon]) -> hw.Dataset:
    addresses = [f"{daemon.serving.address}/colours" for daemon in daemons]
    return hw.open(addresses[0] if len(addresses) == 1 else addresses)


def place(daemon: Daemon) -> str:
    return daemon.serving.address.partition("://")[2]


def test_one_store(daemons: list[Daemon]) -> None:
    with closing(open_at(daemons[:1])) as data:
        data.store.read(data.positions()[:5])
        portions = Portions(data.store, [data.positions()[:8], data.positions()[20:]])
        name = place(daemons[0])
        assert list(portions) == [(name, 0, 18)], "what came before does not count"
        data.store.read(data.positions()[:8])
        assert list(portions) == [(name, 8, 18)]
        data.store.read(data.positions())
        assert list(portions) == [(name, 18, 18)], "nor does what is asked for twice"


def test_shards_have_what_is_theirs(daemons: list[Daemon]) -> None:
    with closing(open_at(daemons[1:])) as data:
        portions = Portions(data.store, [data.positions()])
        wanted = {place(daemons[1]): 30, place(daemons[2]): 6}
        assert {name: total for name, _, total in portions} == wanted
        owners = data.store.site_of(data.positions())
        (smaller,) = np.flatnonzero(np.bincount(owners) == 6)
        data.store.read(data.positions()[owners == smaller])
        assert {name: done for name, done, _ in portions} == {place(daemons[1]): 0, place(daemons[2]): 6}


def test_each_replica_may_send_all(daemons: list[Daemon]) -> None:
    with closing(open_at(daemons[:2])) as data:
        portions = Portions(data.store, [data.positions()])
        data.store.read(data.positions())
        found = {name: (done, total) for name, done, total in portions}
        assert set(found) == {place(daemons[0]), place(daemons[1])}
        assert {total for _, total in found.values()} == {30}
        assert sum(done for done, _ in found.values()) == 30


def test_data_that_lies_here_has_none(folders: list[Path]) -> None:
    data = hw.open(folders[0])
    assert list(Portions(data.store, [data.positions()])) == []
