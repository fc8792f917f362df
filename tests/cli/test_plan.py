from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from datasets import Photo
from fleets import learn_fleet, running_fleet
from headwater import cli, transforms
from headwater.cli.forecast import Forecast
from headwater.cli.presets import PRESETS
from headwater.cli.rehearsal import Prices, rehearse
from headwater.data.pipeline import Pipeline
from headwater.errors import StateMismatch, WrongUse
from headwater.measure.key import Key
from headwater.measure.logbook import Logbook, SiteRates
from headwater.measure.profile import Profile
from headwater.plan.offload import Rates, make_plan
from logbooks import PIPELINE, SLOW_LINK, WAYS, learn_logbook

RATES = Rates(link=1e5, store_cores=2, trainer_cores=4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def forecast(photo_folder: Path) -> Forecast:
    dataset = hw.open(photo_folder)
    return Forecast.of(learn_logbook(dataset), dataset)


@pytest.fixture
def kept(photo_folder: Path) -> Logbook:
    logbook = learn_logbook(hw.open(photo_folder))
    logbook.keep()
    return logbook


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = cli.run([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_before_and_after_by_hand(forecast: Forecast) -> None:
    options = forecast.options(forecast.dataset.positions(), epoch=0)
    plan = make_plan("hull", options, rates=RATES)
    found = rehearse(forecast, [RATES], "hull", epochs=1, prices=Prices())
    assert found["before"]["bytes"] == pytest.approx(float(forecast.dataset.sizes.sum()))
    assert found["before"]["seconds"] == pytest.approx(plan.before.seconds)
    assert found["after"]["bytes"] == pytest.approx(plan.after.bytes)
    assert found["after"]["store_seconds"] == pytest.approx(plan.after.store_seconds)
    assert found["after"]["bytes"] < found["before"]["bytes"]
    (store,) = found["stores"]
    assert store["reason"] == plan.reason
    assert (store["before"], store["after"]) == (found["before"], found["after"])


def test_ways_add_up_to_the_whole(forecast: Forecast) -> None:
    found = rehearse(forecast, [RATES], "hull", epochs=3, prices=Prices())
    assert sum(way["samples"] for way in found["ways"]) == pytest.approx(3 * len(forecast.dataset))
    for name, total in (("bytes", "after"), ("file_bytes", "before")):
        assert sum(way[name] for way in found["ways"]) == pytest.approx(found[total]["bytes"], rel=1e-6)
    assert sum(way["store_seconds"] for way in found["ways"]) == pytest.approx(
        found["after"]["store_seconds"], rel=1e-6
    )


def test_epochs_multiply(forecast: Forecast) -> None:
    one, ten = (rehearse(forecast, [RATES], "hull", epochs=epochs, prices=Prices(0.1)) for epochs in (1, 10))
    for side in ("before", "after"):
        for name in ("bytes", "seconds", "store_seconds", "trainer_seconds", "money"):
            assert ten[side][name] == pytest.approx(10 * one[side][name])
    assert ten["what_if"] == pytest.approx({wish: 10 * value for wish, value in one["what_if"].items()})


def test_some_samples_stand_for_all(forecast: Forecast) -> None:
    whole = rehearse(forecast, [RATES], "hull", epochs=1, prices=Prices())
    part = rehearse(forecast, [RATES], "hull", epochs=1, prices=Prices(), most=24)
    assert (part["planned"], part["samples"]) == (24, 36)
    for side in ("before", "after"):
        assert part[side]["seconds"] == pytest.approx(whole[side]["seconds"], rel=0.3)
    assert sum(way["samples"] for way in part["ways"]) == pytest.approx(36)


def test_more_of_a_resource_never_hurts(forecast: Forecast) -> None:
    rates = replace(RATES, trainer=1000.0)
    found = rehearse(forecast, [rates], "hull", epochs=1, prices=Prices())
    assert len(found["what_if"]) == 4
    assert max(found["what_if"].values()) <= found["after"]["seconds"] * (1 + 1e-9)
    assert found["what_if"]["a link twice as fast"] < found["after"]["seconds"]


@pytest.mark.parametrize(
    ("prices", "costs"),
    [
        (Prices(), {}),
        (Prices(per_gb=0.1), {"money": 0.5}),
        (Prices(per_core_hour=2.0), {"money": 2.0}),
        (Prices(per_gb=0.1, per_core_hour=2.0), {"money": 2.5}),
        (Prices(watts_per_core=10), {"joules": 36_000}),
        (Prices(joules_per_gb=100, watts_per_core=10), {"joules": 36_500}),
    ],
)
def test_only_what_has_a_price_costs(prices: Prices, costs: dict[str, float]) -> None:
    assert prices.of(5e9, 3600) == pytest.approx(costs)


def test_the_verb_finds_the_logbook_of_the_data(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--link", "800kbit", "--store-cores", 0.5, "--trainer-cores", 3, "--trainer-rate", 50)
    code, found = run_json(capsys, "plan", photo_folder, *words)
    assert code == 0
    rates = found["stores"][0]["rates"]
    assert (rates["link"], rates["store_cores"]) == (1e5, 0.5)
    assert (rates["trainer_cores"], rates["trainer"]) == (3, 50)
    assert found["dataset"] == kept.key.dataset
    assert found["after"]["seconds"] <= found["before"]["seconds"]
    assert "money" not in found["before"]


def test_rates_are_as_measured_unless_given(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = run_json(capsys, "plan", photo_folder)
    rates = found["stores"][0]["rates"]
    assert rates["link"] == SLOW_LINK.link
    assert rates["store_cores"] == SLOW_LINK.store_cores
    assert rates["trainer"] is None  # infinite
    assert rates["store_speed"] == SLOW_LINK.store_speed


def test_a_logbook_can_be_given_itself(
    photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn_logbook(hw.open(photo_folder)).save(tmp_path / "run.json")
    code, found = run_json(capsys, "plan", tmp_path / "run.json", "--policy", "all")
    assert (code, found["policy"]) == (0, "all")
    assert [way["way"] for way in found["ways"]] == ["after resize"]


def test_the_tables_show_it(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    prices = ("--price-per-gb", 0.09, "--price-per-core-hour", 0.04, "--watts-per-core", 10)
    assert cli.run(["plan", str(photo_folder), "--link", "800kbit", *map(str, prices), "--epochs", "90"]) == 0
    shown = capsys.readouterr().out
    for text in ("90 epochs", "over the link", "money", "Wh", "what if", "0.8 Mbit/s", "policy hull"):
        assert text in shown


def test_money_and_energy_stand_only_where_a_price_was_given(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", str(photo_folder)]) == 0
    shown = capsys.readouterr().out
    assert "money" not in shown
    assert "energy" not in shown


def test_data_without_a_logbook(photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", str(photo_folder)]) == 2
    assert f"run `headwater profile {photo_folder}` first" in capsys.readouterr().err


def test_a_logbook_of_another_transform_does_not_count(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", str(photo_folder), "--transform", "cifar"]) == 2
    assert "these steps, decode > " in capsys.readouterr().err


def test_the_transform_chooses_among_logbooks(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is newer, but of other steps."""
    pipeline = PRESETS["imagenet"]()
    learn_logbook(hw.open(photo_folder), pipeline.samplewise).keep()
    _, found = run_json(capsys, "plan", photo_folder, "--transform", "imagenet")
    assert found["pipeline"] == str(pipeline.samplewise)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--link", "quick"), "write bits as 100Mbit"),
        (("--policy", "fixed"), "choose from none, all"),
        (("--transform", "nope"), "known: imagenet"),
    ],
)
def test_wrong_use(
    photo_folder: Path, words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", str(photo_folder), *words]) == 2
    assert text in capsys.readouterr().err


def test_a_logbook_of_other_data_is_refused(photo_folder: Path) -> None:
    dataset = hw.open(photo_folder)
    logbook = learn_logbook(dataset)
    logbook.key = Key("another", logbook.key.pipeline, "hull", WAYS)
    with pytest.raises(StateMismatch, match="dataset version another"):
        Forecast.of(logbook, dataset)


def test_a_logbook_of_other_libraries_is_refused(photo_folder: Path) -> None:
    dataset = hw.open(photo_folder)
    logbook = learn_logbook(dataset)
    logbook.key = Key(logbook.key.dataset, logbook.key.pipeline, "hull", WAYS, {"pillow": "0.1"})
    with pytest.raises(StateMismatch, match=r"pillow 0\.1"):
        Forecast.of(logbook, dataset)


def test_a_logbook_without_measurements_is_refused(photo_folder: Path) -> None:
    dataset = hw.open(photo_folder)
    logbook = learn_logbook(dataset)
    logbook.profile = {}
    with pytest.raises(WrongUse, match="holds no measurements"):
        Forecast.of(logbook, dataset)


def test_where_nothing_was_measured_files_are_sent(photo_folder: Path) -> None:
    dataset = hw.open(photo_folder)
    logbook = learn_logbook(dataset)
    logbook.profile = Profile(PIPELINE, WAYS, samples=len(dataset), seed=logbook.seed).to_dict()
    found = rehearse(Forecast.of(logbook, dataset), [RATES], "hull", epochs=1, prices=Prices())
    assert [way["way"] for way in found["ways"]] == ["file"]


def test_steps_after_a_users_function_are_not_needed(photo_folder: Path) -> None:
    dataset = hw.open(photo_folder)
    base = learn_logbook(dataset)
    pipeline = transforms.Compose([Pipeline.from_spec(base.steps, _catalogue()), abs])
    logbook = learn_logbook(dataset, pipeline)
    options = Forecast.of(logbook, dataset).options(dataset.positions(), epoch=0)
    expected = Forecast.of(base, dataset).options(dataset.positions(), epoch=0)
    np.testing.assert_allclose(options.bytes, expected.bytes)


def _catalogue() -> Any:
    from headwater.data.steps import catalogue

    return catalogue()


def test_a_cap_on_the_stores_cpu_is_kept(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, free = run_json(capsys, "plan", photo_folder, "--link", "800kbit")
    _, capped = run_json(capsys, "plan", photo_folder, "--link", "800kbit", "--store-seconds", 0.0003)
    assert capped["stores"][0]["rates"]["store_seconds_per_visit"] == 0.0003
    assert 0 < capped["after"]["store_seconds"] <= 0.0003 * capped["samples"] < free["after"]["store_seconds"]
    assert cli.run(["plan", str(photo_folder), "--store-seconds", "0.0003"]) == 0
    assert "at most 0.3 ms of store CPU a sample" in capsys.readouterr().out


STARVED = SiteRates(link=1e5, store_cores=2, trainer_cores=4)
IDLE = SiteRates(link=1e9, store_cores=2, trainer=5)
"""A trainer that is the slowest of all, so that there is nothing to gain."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, photos: list[Photo]) -> Iterator[list[str]]:
    with running_fleet([photos[:12], photos[12:]], tmp_path_factory.mktemp("fleet")) as addresses:
        yield addresses


def test_every_store_of_a_fleet_gets_a_plan_of_its_own(
    fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    learn_fleet(fleet, [STARVED, IDLE]).keep()
    code, found = run_json(capsys, "plan", *fleet)
    assert code == 0
    starved, idle = found["stores"]
    assert starved["store"] != idle["store"]
    assert sorted(store["samples"] for store in found["stores"]) == [12, 24]
    assert starved["after"]["bytes"] < starved["before"]["bytes"]
    assert idle["after"]["bytes"] == idle["before"]["bytes"]
    assert "nothing is offloaded: the trainer is the slowest" in idle["reason"]
    for side in ("before", "after"):
        for name in ("bytes", "store_seconds", "trainer_seconds"):
            assert found[side][name] == pytest.approx(starved[side][name] + idle[side][name])
        assert found[side]["seconds"] == max(store[side]["seconds"] for store in found["stores"])
    assert sum(way["samples"] for way in found["ways"]) == 36


def test_what_is_given_once_is_for_all_stores_and_a_list_for_each(
    fleet: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    learn_fleet(fleet, [STARVED, IDLE]).save(tmp_path / "run.json")
    words = ("--link", "800kbit,8Mbit", "--store-cores", 0.5)
    _, found = run_json(capsys, "plan", tmp_path / "run.json", *words)
    rates = [store["rates"] for store in found["stores"]]
    assert [its["link"] for its in rates] == [1e5, 1e6]
    assert [its["store_cores"] for its in rates] == [0.5, 0.5]
    assert [its["trainer"] for its in rates] == [None, 5]


def test_a_list_that_does_not_match_the_stores_is_wrong_use(
    fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    learn_fleet(fleet, [STARVED, IDLE]).keep()
    assert cli.run(["plan", *fleet, "--store-cores", "1,2,3"]) == 2
    said = capsys.readouterr().err
    assert "--store-cores has 3 values, there are 2 stores; give one for all" in said
    for address in fleet:
        assert address.removeprefix("grpc://").removesuffix("/photos") in said


def test_the_tables_have_a_row_for_each_store(
    fleet: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    logbook = learn_fleet(fleet, [STARVED, IDLE])
    logbook.keep()
    assert cli.run(["plan", *fleet]) == 0
    shown = capsys.readouterr().out
    assert "link > " in shown
    for stretch in logbook.stretches:
        assert shown.count(stretch.site) >= 3


@pytest.mark.parametrize("cores", ["many", "-1", "inf", "1,,2"])
def test_cores_that_are_none_are_wrong_use(
    photo_folder: Path, cores: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", str(photo_folder), "--store-cores", cores]) == 2
    assert "is no number of cores" in capsys.readouterr().err
