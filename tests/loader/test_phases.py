from __future__ import annotations

from headwater.loader.phases import CHECK, Phases


def ready() -> bool:
    return True


def take(phases: Phases, count: int) -> list[str]:
    return [phases.next(ready)[0] for _ in range(count)]


def test_ways_are_tried_until_there_is_something_to_plan_with() -> None:
    phases = Phases()
    assert [phases.next(lambda: False)[0] for _ in range(3)] == ["explore"] * 3
    assert phases.next(ready) == ("plan", 512)


def test_plans_grow_and_now_and_then_the_link_is_looked_at() -> None:
    phases = Phases()
    assert [phases.next(ready)[1] for _ in range(7)] == [512, 1024, 2048, 4096, 8192, 16_384, 16_384]
    assert take(phases, 3) == ["plan", "guard", "plan"]


def test_with_the_rates_of_an_earlier_run_the_link_comes_first() -> None:
    phases = Phases()
    phases.measure_first()
    assert take(phases, 3) == ["guard", "plan", "plan"]


def test_a_trainer_that_does_not_wait_needs_nothing_until_it_does() -> None:
    phases = Phases()
    phases.judge_trainer(CHECK - 1, 10.0, 0.0)
    assert take(phases, 1) == ["plan"]
    phases.judge_trainer(1, 0.1, 0.0)
    assert phases.next(ready) == ("link", CHECK)
    phases.judge_trainer(CHECK, 10.0, 5.0)
    assert take(phases, 1) == ["plan"]


def test_plans_that_are_late_are_put_to_the_test() -> None:
    phases = Phases()
    take(phases, 2)
    phases.doubt()
    assert phases.next(ready)[0] == "guard"
    assert phases.next(ready) == ("plan", 512)
    phases.judge_plans(1.0, files=1.1)
    assert not phases.in_doubt
    assert take(phases, 1) == ["plan"]


def test_where_files_are_quicker_they_are_sent_for_a_while_longer_each_time() -> None:
    phases, rests = Phases(), []
    for _ in range(9):
        phases.doubt()
        assert take(phases, 1) == ["guard"]
        phases.judge_plans(2.0, files=1.0)
        rests.append(take(phases, 100).index("plan"))
        phases.measure_first()
        take(phases, 1)
    assert rests == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    phases.judge_plans(1.0, files=2.0)
    assert take(phases, 1) == ["plan"]


def test_a_doubt_outlives_a_loop_that_is_left_early() -> None:
    phases = Phases()
    phases.doubt()
    assert take(phases, 1) == ["guard"]
    phases.begin()
    assert take(phases, 1) == ["guard"]
