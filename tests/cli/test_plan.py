from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater import cli, transforms
from headwater.cli.forecast import Forecast
from headwater.cli.presets import PRESETS
from headwater.cli.rehearsal import Prices, rehearse
from headwater.data.pipeline import Pipeline
from headwater.errors import StateMismatch, WrongUse
from headwater.measure.logbook import Key, Logbook
from headwater.measure.profile import Profile
from headwater.plan.offload import Load, Rates, make_plan
from headwater.report.balance import to_rates
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
    found = rehearse(forecast, RATES, "hull", epochs=1, prices=Prices())
    assert found["before"]["bytes"] == pytest.approx(float(forecast.dataset.sizes.sum()))
    assert found["before"]["seconds"] == pytest.approx(plan.before.seconds)
    assert found["after"]["bytes"] == pytest.approx(plan.after.bytes)
    assert found["after"]["store_seconds"] == pytest.approx(plan.after.store_seconds)
    assert found["after"]["bytes"] < found["before"]["bytes"]
    assert found["reason"] == plan.reason


def test_ways_add_up_to_the_whole(forecast: Forecast) -> None:
    found = rehearse(forecast, RATES, "hull", epochs=3, prices=Prices())
    assert sum(way["samples"] for way in found["ways"]) == pytest.approx(3 * len(forecast.dataset))
    for name, total in (("bytes", "after"), ("file_bytes", "before")):
        assert sum(way[name] for way in found["ways"]) == pytest.approx(found[total]["bytes"], rel=1e-6)
    assert sum(way["store_seconds"] for way in found["ways"]) == pytest.approx(
        found["after"]["store_seconds"], rel=1e-6
    )


def test_epochs_multiply(forecast: Forecast) -> None:
    one, ten = (rehearse(forecast, RATES, "hull", epochs=epochs, prices=Prices(0.1)) for epochs in (1, 10))
    for side in ("before", "after"):
        for name in ("bytes", "seconds", "store_seconds", "trainer_seconds", "money"):
            assert ten[side][name] == pytest.approx(10 * one[side][name])
    assert ten["what_if"] == pytest.approx({wish: 10 * value for wish, value in one["what_if"].items()})


def test_some_samples_stand_for_all(forecast: Forecast) -> None:
    whole = rehearse(forecast, RATES, "hull", epochs=1, prices=Prices())
    part = rehearse(forecast, RATES, "hull", epochs=1, prices=Prices(), most=24)
    assert (part["planned"], part["samples"]) == (24, 36)
    for side in ("before", "after"):
        assert part[side]["seconds"] == pytest.approx(whole[side]["seconds"], rel=0.3)
    assert sum(way["samples"] for way in part["ways"]) == pytest.approx(36)


def test_more_of_a_resource_never_hurts(forecast: Forecast) -> None:
    rates = replace(RATES, trainer=1000.0)
    found = rehearse(forecast, rates, "hull", epochs=1, prices=Prices())
    assert len(found["what_if"]) == 4
    assert max(found["what_if"].values()) <= found["after"]["seconds"] * (1 + 1e-9)
    assert found["what_if"]["a link twice as fast"] < found["after"]["seconds"]


LOAD = Load(visits=10, bytes=5e9, trainer_seconds=3000, store_seconds=600, rates=RATES)


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
    assert prices.of(LOAD) == pytest.approx(costs)


def test_the_verb_finds_the_logbook_of_the_data(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--link", "800kbit", "--store-cores", 0.5, "--trainer-cores", 3, "--trainer-rate", 50)
    code, found = run_json(capsys, "plan", photo_folder, *words)
    assert code == 0
    assert found["rates"]["link"] == 1e5
    assert (found["rates"]["store_cores"], found["rates"]["trainer_cores"]) == (0.5, 3)
    assert found["rates"]["trainer"] == 50
    assert found["dataset"] == kept.key.dataset
    assert found["after"]["seconds"] <= found["before"]["seconds"]
    assert "money" not in found["before"]


def test_rates_are_as_measured_unless_given(
    kept: Logbook, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = run_json(capsys, "plan", photo_folder)
    assert found["rates"]["link"] == SLOW_LINK.link
    assert found["rates"]["store_cores"] == SLOW_LINK.store_cores
    assert found["rates"]["trainer"] is None  # infinite
    assert to_rates(SLOW_LINK).store_speed == found["rates"]["store_speed"]


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
    logbook.key = Key("another", logbook.key.pipeline, WAYS)
    with pytest.raises(StateMismatch, match="dataset version another"):
        Forecast.of(logbook, dataset)


def test_a_logbook_of_other_libraries_is_refused(photo_folder: Path) -> None:
    dataset = hw.open(photo_folder)
    logbook = learn_logbook(dataset)
    logbook.key = Key(logbook.key.dataset, logbook.key.pipeline, WAYS, {"pillow": "0.1"})
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
    found = rehearse(Forecast.of(logbook, dataset), RATES, "hull", epochs=1, prices=Prices())
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
