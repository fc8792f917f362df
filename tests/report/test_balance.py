from __future__ import annotations

import msgspec
import pytest

from headwater.measure.logbook import SiteRates
from headwater.plan.offload import make_plan
from headwater.report.balance import balances, slowest, to_rates
from logbooks import SLOW_LINK, empty_logbook, make_logbook, make_options, make_stretch, make_trial


def test_times_are_those_of_the_plan() -> None:
    logbook = empty_logbook()
    logbook.add(make_stretch())
    plan = make_plan("hull", make_options(), rates=to_rates(SLOW_LINK))
    (balance,) = balances(logbook)
    assert balance.times_before == pytest.approx(plan.before.times)
    assert balance.times_after == pytest.approx(plan.after.times)
    assert balance.bottleneck_before == plan.before.bottleneck == "link"
    assert balance.bottleneck_after == plan.after.bottleneck


def test_each_stretch_counts_at_its_own_rates() -> None:
    logbook, faster = empty_logbook(), msgspec.structs.replace(SLOW_LINK, link=SLOW_LINK.link * 2)
    first, second = make_stretch(), make_stretch(faster)
    logbook.stretches = [first, second]
    assert first.none is not None
    (balance,) = balances(logbook)
    assert balance.times_before["link"] == pytest.approx(first.none.bytes / 1e6 * 1.5)
    assert balance.rates == faster
    assert balance.measured == first.measured + second.measured


def test_times_are_at_the_rates_that_the_plan_assumed() -> None:
    logbook, found = empty_logbook(), msgspec.structs.replace(SLOW_LINK, store_cores=0.01)
    logbook.add(msgspec.structs.replace(make_stretch(), rates=found, assumed=SLOW_LINK))
    plan = make_plan("hull", make_options(), rates=to_rates(SLOW_LINK))
    (balance,) = balances(logbook)
    assert balance.times_after == pytest.approx(plan.after.times)
    assert (balance.rates, balance.assumed) == (found, SLOW_LINK)


def test_where_nothing_was_planned_the_files_tell_the_bottleneck() -> None:
    logbook = empty_logbook()
    files = make_trial([10, 0, 0, 0, 0, 0], phase="link")
    unknown = msgspec.structs.replace(files, rates=SiteRates(link=0, store_cores=1))
    logbook.stretches = [unknown, files, make_trial([5, 1, 1, 1, 1, 1])]
    (balance,) = balances(logbook)
    assert balance.predicted is None
    assert balance.before == balance.measured == files.measured
    assert balance.times_before == balance.times_after
    assert balance.bottleneck_before == "link"


def test_only_what_was_predicted_is_compared() -> None:
    logbook = empty_logbook()
    logbook.add(make_trial([10, 2, 2, 2, 2, 2]))
    assert balances(logbook) == []
    logbook.add(make_stretch())
    (balance,) = balances(logbook)
    assert balance.measured == make_stretch().measured


def test_the_busiest_store_comes_first() -> None:
    logbook = empty_logbook()
    logbook.stretches = [make_stretch(site="a"), make_stretch(site="b"), make_stretch(site="b")]
    assert [balance.site for balance in balances(logbook)] == ["b", "a"]


def test_of_equals_the_one_that_offloading_cannot_help() -> None:
    times = dict.fromkeys(("link", "trainer CPU", "store CPU", "trainer"), 1.0)
    assert slowest(times) == "trainer"
    assert slowest(times | {"link": 2.0}) == "link"


def test_an_endless_rate_takes_no_time() -> None:
    logbook = empty_logbook()
    logbook.add(make_stretch(SiteRates(link=1e6, store_cores=1)))
    (balance,) = balances(logbook)
    assert balance.times_before["trainer"] == balance.times_before["trainer CPU"] == 0


def test_a_run_of_several_epochs_is_one_balance() -> None:
    (balance,) = balances(make_logbook())
    assert balance.predicted is not None
    assert balance.measured.seconds == pytest.approx(1.25 * balance.predicted.seconds)
    assert balance.predicted.bytes < balance.before.bytes / 2
