"""Options and rates: what is refused, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.plan.offload import Offload, Options, Rates, make_plan
from plan.offload.cases import make_options

INF = float("inf")


def test_the_old_import_still_works() -> None:
    assert Offload(2) == Offload(2, "none")
    with pytest.raises(WrongUse, match="cut is 256"):
        Offload(256)


@pytest.mark.parametrize(
    ("sent", "store", "trainer", "words"),
    [
        ([[5.0, np.nan]], 0.0, 0.0, "bytes of sample 0, option 1, is nan"),
        ([[5.0, -1.0]], 0.0, 0.0, "bytes of sample 0, option 1, is -1"),
        ([[5.0, -INF]], 0.0, 0.0, "bytes of sample 0, option 1, is -inf"),
        ([[5.0, 4.0]], [[0.0, INF]], 0.0, "store_seconds of sample 0, option 1, is inf"),
        ([[5.0, 4.0]], 0.0, [[np.nan, 0.0]], "trainer_seconds of sample 0, option 0, is nan"),
        ([[5.0, 4.0], [INF, 4.0]], 0.0, 0.0, "bytes of option 0 must be finite.* sample 1"),
        ([[5.0, 4.0]], [[1.0, 1.0]], 0.0, "store_seconds of option 0 must be 0.* sample 0"),
    ],
)
def test_values_that_cannot_be(sent: object, store: object, trainer: object, words: str) -> None:
    with pytest.raises(WrongUse, match=words):
        make_options(sent, store, trainer)


def test_a_fault_is_found_in_a_later_block_and_named_by_its_place() -> None:
    sent = np.ones((40_000, 2))
    sent[39_999, 1] = np.nan
    with pytest.raises(WrongUse, match="sample 39999, option 1"):
        make_options(sent, 0.0)


def test_seconds_of_an_absent_option_are_not_read() -> None:
    options = make_options([[5.0, INF]], [[0.0, np.nan]], [[1.0, np.nan]])
    plan = make_plan("hull", options, rates=Rates(link=1, store_cores=1, trainer_cores=1))
    assert plan.choice.tolist() == [0]
    assert plan.after.trainer_seconds == 1


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        ((Offload(1), Offload(2)), "the first must be the file as it is"),
        ((Offload(0), Offload(0)), "name each once"),
        ((Offload(0),), r"\(1, 2\).*\(1, 1\)"),
    ],
)
def test_ways_that_cannot_be(ways: tuple[Offload, ...], words: str) -> None:
    with pytest.raises(WrongUse, match=words):
        make_options([[5.0, 4.0]], 0.0, ways=ways)


def test_more_ways_than_a_byte_counts() -> None:
    ways = (Offload(0), *(Offload(1, str(number)) for number in range(256)))
    with pytest.raises(WrongUse, match="257 options"):
        make_options(np.ones((1, 257)), 0.0, ways=ways)


def test_columns_of_other_types_and_shapes() -> None:
    whole, good = np.ones((2, 1), np.int64), np.zeros((2, 1))
    with pytest.raises(WrongUse, match="bytes is of type int64"):
        Options((Offload(0),), whole, good, good)  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match=r"trainer_seconds has the shape \(3, 1\)"):
        Options((Offload(0),), good, good, np.zeros((3, 1)))


@pytest.mark.parametrize("name", ["link", "trainer_cores", "trainer", "store_speed"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_rates_that_cannot_be(name: str, value: float) -> None:
    with pytest.raises(WrongUse, match=f"{name} is"):
        Rates(**({"link": 1.0, "store_cores": 1.0} | {name: value}))


@pytest.mark.parametrize("name", ["store_cores", "store_seconds_per_visit"])
def test_no_store_cores_are_rates_too(name: str) -> None:
    Rates(**({"link": 1.0, "store_cores": 1.0} | {name: 0.0}))
    with pytest.raises(WrongUse, match=f"{name} is -1"):
        Rates(**({"link": 1.0, "store_cores": 1.0} | {name: -1.0}))


@pytest.mark.parametrize(
    ("weights", "words"),
    [([1.0, 2.0], r"shape \(2,\)"), ([-1.0], "negative"), ([np.nan], "not finite"), ([INF], "not finite")],
)
def test_weights_that_cannot_be(weights: list[float], words: str) -> None:
    with pytest.raises(WrongUse, match=words):
        make_plan(
            "none",
            make_options([[1.0]], 0.0),
            rates=Rates(link=1, store_cores=1),
            weights=np.array(weights),
        )
