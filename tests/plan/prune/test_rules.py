"""When the ticket is drawn: the contract of all rules, what sets the two apart, and runs that are resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater.errors import StateMismatch, WrongUse
from headwater.plan.prune import RULES, Channels, MaskDistance, PrunePlan, Rule, SettledMask, Watch
from headwater.plan.prune.rules import find_rule

CHANNELS = Channels(("one", "two", "three"), (200, 300, 500))
STEPS = 1_000
Scales = NDArray[np.float64]


def watch(rule: Rule, *, ratio: float = 0.5, channels: Channels = CHANNELS) -> Watch:
    return Watch(channels, ratio=ratio, steps=STEPS, rule=rule)


def show(
    seen: Watch, scales: Iterable[Scales], rate: Callable[[int], float] = lambda step: 0.1
) -> PrunePlan | None:
    """Every tenth step a look, until there is a plan."""
    for number, values in enumerate(scales, start=1):
        if (plan := seen.observe(10 * number, values, rate=rate(10 * number))) is not None:
            return plan
    return None


def shuffled(count: int = 100, seed: int = 0) -> Iterable[Scales]:
    """Nothing to do with each other."""
    rng = np.random.default_rng(seed)
    return (rng.random(len(CHANNELS)) for _ in range(count))


def settling(count: int = 100, seed: int = 0, half_life: float = 3.0) -> Iterable[Scales]:
    """Noise that dies away around values that stay."""
    rng = np.random.default_rng(seed)
    final = rng.random(len(CHANNELS))
    return (final + rng.normal(0, 0.5**number, len(CHANNELS)) for number in np.arange(count) / half_life)


def still(count: int = 100) -> Iterable[Scales]:
    return (np.linspace(0, 1, len(CHANNELS)) for _ in range(count))


@pytest.mark.parametrize("name", RULES)
def test_every_rule_draws_when_masks_stand_still_and_not_before_its_window_is_full(name: str) -> None:
    plan = show(watch(find_rule(name)), still())
    assert plan is not None
    assert plan.step == 50
    assert "the last 5 masks" in plan.reason
    # the largest, and one of each layer that would lose them all
    assert np.flatnonzero(plan.keep).tolist() == [199, 499, *range(500, 1000)]


@pytest.mark.parametrize("name", RULES)
def test_every_rule_draws_when_noise_has_died_away(name: str) -> None:
    plan = show(watch(find_rule(name)), settling())
    assert plan is not None
    assert 50 < plan.step < 200


@pytest.mark.parametrize("name", RULES)
def test_no_rule_draws_from_random_masks_at_half(name: str) -> None:
    assert show(watch(find_rule(name)), shuffled(19)) is None


@pytest.mark.parametrize("ratio", [0.9, 0.95, 0.97])
@pytest.mark.parametrize("seed", range(5))
def test_random_masks_at_a_high_ratio_do_not_count_as_settled(ratio: float, seed: int) -> None:
    assert show(watch(SettledMask(), ratio=ratio), shuffled(19, seed)) is None
    assert show(watch(SettledMask(memory=0.0), ratio=ratio), shuffled(19, seed)) is None


def test_the_published_rule_takes_random_masks_at_a_high_ratio_for_settled() -> None:
    """Two random masks at 0.95 differ in 0.095 of the channels, which its limit of 0.1 lets pass."""
    plan = show(watch(MaskDistance(limit=0.105), ratio=0.95), shuffled(19))
    assert plan is not None
    assert plan.step == 50


def test_the_published_rule_compares_with_the_newest_only() -> None:
    """A, B, A, B apart by more than the limit from each other never draw, whatever neighbours do."""
    steps = [np.roll(np.linspace(0, 1, len(CHANNELS)), 60 * number) for number in range(40)]
    assert show(watch(MaskDistance()), steps) is None
    slow = [np.roll(np.linspace(0, 1, len(CHANNELS)), 10 * number) for number in range(40)]
    plan = show(watch(MaskDistance()), slow)
    assert plan is not None
    assert plan.reason.startswith("the last 5 masks are within 0.080 of the newest")


def drifting_until(cut: int, count: int = 100) -> Iterable[Scales]:
    """Masks that never settle while the learning rate is high, and stand still after it is cut."""
    rng = np.random.default_rng(0)
    values = rng.random(len(CHANNELS))
    for number in range(1, count + 1):
        if 10 * number <= cut:
            values = rng.random(len(CHANNELS))
        yield values


def test_a_cut_of_the_learning_rate_is_no_sign_of_a_settled_mask() -> None:
    def cut(step: int) -> float:
        return 0.1 if step <= 80 else 0.01

    published = show(watch(MaskDistance()), drifting_until(80), cut)
    assert published is not None
    assert published.step == 120  # four still masks after the last that moved
    ours = show(watch(SettledMask()), drifting_until(80), cut)
    assert ours is not None
    assert ours.step == 200
    assert ours.reason == ("the deadline, 20% of 1,000 steps; the learning rate was cut, from 0.1 to 0.01")


def test_a_rate_that_falls_slowly_is_no_cut() -> None:
    plan = show(watch(SettledMask()), still(), lambda step: 0.1 * (1 - step / STEPS))
    assert plan is not None
    assert plan.step == 50


def test_masks_of_a_rate_that_has_just_begun_to_rise_do_not_count() -> None:
    plan = show(watch(SettledMask()), still(), lambda step: 0.1 * min(1.0, step / 100))
    assert plan is not None
    assert plan.step == 80  # the first look that counts is at 40, of the 0.08 that there is by then


def test_at_the_deadline_the_ticket_is_drawn_anyway_and_it_says_so() -> None:
    plan = show(watch(SettledMask()), shuffled())
    assert plan is not None
    assert plan.step == 200
    assert plan.reason.startswith("the deadline, 20% of 1,000 steps; the last 5 masks were up to ")
    few = show(watch(SettledMask(deadline=0.02)), shuffled())
    assert few is not None
    assert few.reason == "the deadline, 2% of 1,000 steps; 2 looks are too few"


def test_equal_scales_are_no_settled_mask() -> None:
    """A fresh model, or one whose scales are not trained: still masks that tell nothing."""
    equal = [np.full(len(CHANNELS), 0.5)] * 100
    plan = show(watch(SettledMask()), equal)
    assert plan is not None
    assert plan.reason == "the deadline, 20% of 1,000 steps; scales were equal"
    assert plan.widths == (100, 150, 250)


def test_memory_quietens_noise() -> None:
    rng = np.random.default_rng(0)
    final = rng.random(len(CHANNELS))
    noisy = [final + rng.normal(0, 0.12, len(CHANNELS)) for _ in range(19)]
    assert show(watch(SettledMask(memory=0.0)), noisy) is None
    assert show(watch(SettledMask(memory=0.8)), noisy) is not None


@pytest.mark.parametrize(
    ("rule", "steps", "every"),
    [
        (SettledMask(), 1_000, 10),
        (SettledMask(), 1_001, 11),
        (MaskDistance(every=391), 9_000, 391),
        (SettledMask(), 7, 1),
    ],
)
def test_looks_come_at_shares_of_the_run(rule: Rule, steps: int, every: int) -> None:
    seen = Watch(CHANNELS, ratio=0.5, steps=steps, rule=rule)
    assert [step for step in range(1, steps + 1) if seen.is_due(step)][:2] == [every, 2 * every]


def test_there_is_no_look_after_the_plan() -> None:
    seen = watch(SettledMask())
    show(seen, still())
    assert not any(seen.is_due(step) for step in range(1, STEPS))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaskDistance(limit=0),
        lambda: MaskDistance(window=1),
        lambda: SettledMask(every=0),
        lambda: SettledMask(deadline=1.5),
        lambda: SettledMask(memory=1.0),
        lambda: find_rule("tea leaves"),
        lambda: find_rule(None),  # type: ignore[arg-type]
        lambda: find_rule(SettledMask),  # type: ignore[arg-type]
        lambda: find_rule([]),  # type: ignore[arg-type]
        lambda: Watch(CHANNELS, ratio=0.5, steps=0, rule=SettledMask()),
        lambda: Watch(CHANNELS, ratio=0.5, steps=float("nan"), rule=SettledMask()),  # type: ignore[arg-type]
        lambda: Watch(CHANNELS, ratio=0.5, steps=4.5, rule=SettledMask()),  # type: ignore[arg-type]
        lambda: Watch(CHANNELS, ratio=0.5, steps=None, rule=SettledMask()),  # type: ignore[arg-type]
        lambda: Watch(CHANNELS, ratio=0.5, steps=10, rule=SettledMask(), multiple=1.5),  # type: ignore[arg-type]
        lambda: Watch(CHANNELS, ratio=1.0, steps=10, rule=SettledMask()),
        lambda: watch(SettledMask()).observe(1, np.ones(3), rate=0.1),
        lambda: Channels(("one",), (0,)),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(WrongUse):
        make()


@pytest.mark.parametrize("stop", [1, 3, 6, 11])
def test_a_run_that_was_stopped_draws_the_same_ticket_at_the_same_step(stop: int) -> None:
    scales = list(settling(half_life=2.0))
    whole = show(straight := watch(SettledMask()), scales)
    first = watch(SettledMask())
    show(first, scales[:stop])
    second = watch(SettledMask())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    plan = second.plan
    for number in range(stop, len(scales)):
        plan = plan or second.observe(10 * number + 10, scales[number], rate=0.1)
    assert whole is not None
    assert plan is not None
    assert plan.to_dict() == whole.to_dict()
    assert second.state_dict() == straight.state_dict()


def test_the_state_of_another_run_is_refused() -> None:
    seen = watch(SettledMask())
    show(seen, still(3))
    state = seen.state_dict()
    for other in (
        watch(SettledMask(), ratio=0.3),
        watch(MaskDistance()),
        watch(SettledMask(), channels=Channels(("one",), (1000,))),
    ):
        with pytest.raises(StateMismatch, match="the state was saved with"):
            other.load_state_dict(state)
    for damaged in (
        {**state, "format": 2},
        {**state, "scales": [1.0]},
        {**state, "scales": [np.nan] * len(CHANNELS)},
        {**state, "looks": [{**state["looks"][0], "keep": "00"}]},
        {"format": 1},
    ):
        with pytest.raises(StateMismatch):
            watch(SettledMask()).load_state_dict(damaged)
