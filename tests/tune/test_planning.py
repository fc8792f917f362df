"""How many stores a plan takes, by links that are measured: real stores behind links with a rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import headwater as hw
from headwater.cli.proxy import Proxy, Shape
from headwater.models.registry import Registry
from headwater.plan.finetune import FinetunePlan
from headwater.store.server.daemon import Daemon
from headwater.tune.recipe import Recipe
from headwater.tune.tuner import Tuner
from stores import running_daemon

RATE = Shape(bits_per_second=6e6)
"""Far below what the processes can do, so that it decides."""
BYTES = 6e6 / 8


@pytest.fixture(scope="module")
def daemon(colours: Path) -> Iterator[Daemon]:
    with running_daemon({"colours": colours}) as made:
        yield made


def plan_over(
    addresses: list[str], registry: Registry, *, meanwhile: Callable[[], None] = lambda: None
) -> FinetunePlan:
    """With images across the link; `meanwhile` is called when the stores have been found."""
    recipe = Recipe(epochs=1, runs=1, cut="images")
    link = hw.Link(deadline_seconds=1.0, give_up_seconds=3.0)
    with closing(hw.open([f"{address}/colours" for address in addresses], link=link)) as data:
        meanwhile()
        return Tuner(data, "plain", registry=registry, recipe=recipe).plan()


def link_seconds(plan: FinetunePlan) -> float:
    return plan.bytes / BYTES


def test_one_of_two_replicas_is_enough_where_the_tuners_link_is_the_limit(
    daemon: Daemon, registry: Registry
) -> None:
    """Both come over one link: two names of one place."""
    port = int(daemon.serving.address.rpartition(":")[2])
    with Proxy(("127.0.0.1", port), shape=RATE) as proxy:
        plan = plan_over([f"grpc://127.0.0.1:{proxy.port}", f"grpc://localhost:{proxy.port}"], registry)
    assert plan.stores == 1
    assert plan.stages.link == pytest.approx(link_seconds(plan), rel=0.3)


def test_both_replicas_are_asked_where_each_has_a_link_of_its_own(daemon: Daemon, registry: Registry) -> None:
    port = int(daemon.serving.address.rpartition(":")[2])
    with ExitStack() as stack:
        links = [stack.enter_context(Proxy(("127.0.0.1", port), shape=RATE)) for _ in range(2)]
        plan = plan_over([f"grpc://127.0.0.1:{link.port}" for link in links], registry)
    assert plan.stores == 2
    assert plan.stages.link == pytest.approx(link_seconds(plan) / 2, rel=0.3)


def test_a_replica_that_goes_away_keeps_nobody_from_planning(daemon: Daemon, registry: Registry) -> None:
    port = int(daemon.serving.address.rpartition(":")[2])
    with Proxy(("127.0.0.1", port)) as first, Proxy(("127.0.0.1", port)) as second:
        addresses = [f"grpc://127.0.0.1:{link.port}" for link in (first, second)]
        plan = plan_over(addresses, registry, meanwhile=first.close)
    assert plan.cut.name == "images"
