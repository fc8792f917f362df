from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headwater.plan.offload import Rates, make_plan, plan_each
from logbooks import make_options

SLOW = Rates(link=1e6, store_cores=2, trainer_cores=4, trainer=1000)
OPTIONS = make_options(60)
OWNERS = np.arange(60) % 3


def test_every_store_gets_the_plan_that_its_samples_would_get_alone() -> None:
    rates = {0: SLOW, 1: replace(SLOW, link=1e9), 2: replace(SLOW, store_cores=0.01)}
    plans = plan_each("hull", OPTIONS, owners=OWNERS, rates=rates)
    assert plans.keys() == rates.keys()
    for number, its in rates.items():
        alone = replace(its, trainer_cores=4 / 3, trainer=1000 / 3)
        expected = make_plan("hull", OPTIONS.take(slice(number, None, 3)), rates=alone)
        assert plans[number].choice.tolist() == expected.choice.tolist()
        assert plans[number].after == expected.after
    assert plans[0].offloaded > plans[2].offloaded
    assert plans[1].before.bottleneck != "link"


def test_a_store_of_which_nothing_is_known_or_asked_gets_none() -> None:
    assert plan_each("hull", OPTIONS, owners=OWNERS, rates={1: SLOW}).keys() == {1}
    nobody = np.zeros(60, np.intp)
    assert plan_each("hull", OPTIONS, owners=nobody, rates={0: SLOW, 1: SLOW}).keys() == {0}


def test_one_store_has_the_trainer_for_itself() -> None:
    (plan,) = plan_each("hull", OPTIONS, owners=np.zeros(60, np.intp), rates={0: SLOW}).values()
    assert plan.before == make_plan("hull", OPTIONS, rates=SLOW).before


def test_weights_go_with_their_samples() -> None:
    weights = np.where(OWNERS == 1, 5.0, 1.0)
    plans = plan_each("hull", OPTIONS, owners=OWNERS, rates={0: SLOW, 1: SLOW}, weights=weights)
    assert (plans[0].before.visits, plans[1].before.visits) == (20, 100)


def test_a_share_of_the_trainer_leaves_link_and_store_as_they_are() -> None:
    found = SLOW.share(0.25)
    assert (found.trainer_cores, found.trainer) == (1.0, 250.0)
    assert replace(found, trainer_cores=4, trainer=1000) == SLOW


@pytest.mark.parametrize("rows", [np.array([3, 1]), slice(None, None, 7)], ids=["places", "slice"])
def test_some_of_the_options(rows: np.ndarray | slice) -> None:
    some = OPTIONS.take(rows)
    assert some.ways == OPTIONS.ways
    assert np.array_equal(some.bytes, OPTIONS.bytes[rows])
    assert np.array_equal(some.store_seconds, OPTIONS.store_seconds[rows])
    assert np.array_equal(some.trainer_seconds, OPTIONS.trainer_seconds[rows])
