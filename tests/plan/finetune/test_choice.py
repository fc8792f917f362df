"""Which cut, how many stores and runs: the optimum by brute force, wishes, and where nothing is done."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.plan.finetune import Convergence, Cut, FinetunePlan, Rates, Stages, Work, make_plan
from headwater.plan.finetune.choice import SLACK, TIE, Wish

IMAGE = 110_000.0
FEW = Convergence(weights=100)
# The engine's figures for ResNet-50 on a core, rounded: early cuts ship more than the image.
CUTS = (
    Cut("images", 0.0, IMAGE, 0.080),
    Cut("layer1", 0.025, 1_600_000, 0.055),
    Cut("layer3", 0.060, 401_000, 0.020),
    Cut("layer4", 0.078, 201_000, 0.002),
    Cut("features", 0.080, 4_096, 0.0),
)
WORK = Work(images=9_000, held=1_000, epochs=20, train_seconds=2e-5)


def plan(cuts: tuple[Cut, ...] = CUTS, *, rates: Rates, work: Work = WORK, **changes: object) -> FinetunePlan:
    settings = {"stores": 1, "image_bytes": IMAGE, "convergence": FEW, "steps": 1e6, **changes}
    return make_plan(cuts, work, rates=rates, **settings)  # type: ignore[arg-type]


def slow_link(stores: float = 1.0) -> Rates:
    return Rates(store_cores=stores, store_link=12.5e6, tuner_link=12.5e6, tuner_cores=2)


def test_a_slow_link_wants_features() -> None:
    found = plan(rates=slow_link(8.0))
    assert found.cut.name == "features"
    assert found.bytes == 10_000 * 4_096
    assert found.seconds == found.stages.seconds(found.runs)


@pytest.mark.parametrize(("longer", "taken"), [(1.03, "features"), (1.08, "images")])
def test_of_two_cuts_that_are_about_as_quick_the_one_that_ships_less_is_taken(
    longer: float, taken: str
) -> None:
    rates = Rates(store_cores=1.0, store_link=1e9, tuner_cores=1.0)
    cuts = (Cut("images", 0.0, IMAGE, 0.080), Cut("features", longer * 0.080, 4_096))
    for order in (cuts, cuts[::-1]):
        found = plan(order, rates=rates, work=Work(10_000))
        assert found.cut.name == taken
        assert ("of 2 cuts about as quick as images and ships less" in found.reason) == (taken == "features")


def test_a_tie_with_an_estimate_that_is_longer_by_its_doubt_is_said() -> None:
    cuts = (Cut("inner", 0.080 / 1.3 / 1.03, 4_000, estimated=True), Cut("features", 0.080, 2_560))
    found = plan(cuts, rates=slow_link())
    assert found.cut.name == "features"
    assert "about as quick as inner, which is an estimate, and ships less" in found.reason


@pytest.mark.parametrize(("share", "taken"), [(0.8, "features"), (0.7, "inner")])
def test_an_estimate_must_be_clearly_quicker_than_what_was_measured(share: float, taken: str) -> None:
    cuts = (Cut("inner", share * 0.080, 4_000, estimated=True), Cut("features", 0.080, 2_560))
    found = plan(cuts, rates=slow_link())
    assert found.cut.name == taken
    assert ("1 may be quicker, by less than estimates err" in found.reason) == (taken == "features")


def test_a_fast_link_and_a_weak_store_want_images() -> None:
    assert plan(rates=Rates(store_cores=0.2, store_link=1e9, tuner_cores=8)).cut.name == "images"


def test_cuts_that_ship_more_than_the_image_are_left_out_unless_allowed() -> None:
    even = Rates(store_cores=1.0, store_link=1e12, tuner_cores=0.5)
    assert plan(rates=even).cut.name == "features"
    assert "layer1, layer3, layer4 left out: more bytes than an image" in plan(rates=even).reason
    assert plan(rates=even, wish=Wish(more_bytes=True)).cut.name == "layer3"


def test_a_named_cut_that_ships_more_is_refused_unless_allowed() -> None:
    with pytest.raises(WrongUse, match=r"401,000 bytes would cross for an image of 110,000; .* more_bytes"):
        plan(rates=slow_link(), wish=Wish(cut="layer3"))
    assert plan(rates=slow_link(), wish=Wish(cut="layer3", more_bytes=True)).cut.name == "layer3"


def test_small_images_leave_no_cut_at_all() -> None:
    with pytest.raises(WrongUse, match="'features', 4,096 bytes would cross for an image of 2,300"):
        plan(CUTS[1:], rates=slow_link(), image_bytes=2300.0)


def test_runs_overlap_what_takes_about_as_long() -> None:
    even = Work(images=9_000, held=1_000, epochs=20, train_seconds=0.080 / 20)
    found = plan(rates=slow_link(), work=even)
    assert found.runs == 3
    assert found.seconds < 0.75 * found.seconds_without_runs


def test_one_run_where_there_is_hardly_anything_to_overlap() -> None:
    found = plan(rates=slow_link(), work=Work(images=9_000, epochs=1, train_seconds=1e-6))
    assert found.runs == 1
    assert "hardly anything to overlap" in found.reason


def test_one_run_where_smaller_ones_would_forget() -> None:
    large = Convergence(weights=10**6)
    found = plan(rates=slow_link(), work=Work(100, epochs=20, train_seconds=0.01), convergence=large)
    assert found.runs == 1
    assert "forget" in found.reason


def test_asking_for_more_runs_than_the_bound_is_obeyed_and_said() -> None:
    large = Convergence(weights=10**6)
    found = plan(rates=slow_link(), work=Work(100), convergence=large, wish=Wish(runs=5))
    assert found.runs == 5
    assert "more than the 1 that the bound on drift allows" in found.reason
    assert "bound" not in plan(rates=slow_link(), wish=Wish(runs=5)).reason


def test_stores_beyond_the_knee_are_not_used() -> None:
    """Three stores fill the link of the tuner; more of them would wait."""
    rates = Rates(store_cores=0.2, store_link=2.5e6, tuner_link=1e5, tuner_cores=2)
    cuts = (Cut("features", 0.0195, 4_096),)
    found = plan(cuts, rates=rates, stores=16, work=Work(10_000, train_seconds=1e-9))
    assert found.stores == 3
    assert found.stages.bottleneck == "link"
    assert plan(cuts, rates=rates, stores=2, work=Work(10_000, train_seconds=1e-9)).stores == 2


def with_all(cut: Cut, work: Work, rates: Rates, runs: int) -> float:
    return Stages.of(cut, work, rates=rates, stores=5).seconds(runs)


def test_the_best_of_all_by_brute_force() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        cuts = tuple(
            Cut(str(number), *(10 ** rng.uniform(-4, -1), 10 ** rng.uniform(3, 6), 10 ** rng.uniform(-5, -1)))
            for number in range(4)
        )
        rates = Rates(*(10 ** rng.uniform(-1, 1), 10 ** rng.uniform(4, 8), 10 ** rng.uniform(4, 8), 2.0))
        work = Work(1_000, epochs=5, train_seconds=10 ** rng.uniform(-6, -2))
        found = plan(cuts, rates=rates, work=work, stores=5, wish=Wish(more_bytes=True))
        most = FEW.most_runs(samples=1_000, steps=1e6)
        best = min(
            Stages.of(cut, work, rates=rates, stores=stores).seconds(runs)
            for cut in cuts
            for stores in range(1, 6)
            for runs in range(1, most + 1)
        )
        assert best <= found.seconds <= best * (1 + TIE) * (1 + SLACK) ** 2
        close = [cut for cut in cuts if with_all(cut, work, rates, most) <= best * (1 + TIE)]
        assert found.cut.bytes == min(cut.bytes for cut in close)


def test_the_plan_says_what_it_expects() -> None:
    text = str(plan(rates=slow_link(), work=Work(9_000, 1_000, 1, 20, 0.004), stores=2))
    assert "cut at features: 2 stores, 3 runs" in text
    assert "41 MB over the link" in text
    assert "in one run it would be" in text
    assert "within 0.037 of the loss of the one before it" in text


def test_the_same_numbers_give_the_same_plan() -> None:
    assert plan(rates=slow_link(), stores=4) == plan(rates=slow_link(), stores=4)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (Wish(cut="layer9"), "cannot be cut at 'layer9'; choose from images, layer1"),
        (Wish(runs=9_001), "9001 runs are asked for; 9,000 images"),
        (Wish(stores=2), "2 stores are asked for, and there are 1"),
    ],
)
def test_wishes_that_cannot_be(wish: Wish, says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        plan(rates=slow_link(), wish=wish)
