from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headwater as hw
from datasets import Photo
from fleets import learn_fleet, running_fleet
from headwater import cli
from headwater.measure.epochplan import EpochPlan, SitePlan
from headwater.measure.key import record_path
from headwater.measure.logbook import Amounts, Logbook, SiteRates, logbook_path
from headwater.report.ways import way_names
from logbooks import SITE, SLOW_LINK, WAYS, empty_logbook, learn_logbook, make_logbook


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert cli.run(["explain", *map(str, words), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_document_holds_sums_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    logbook = make_logbook()
    logbook.keep()
    found = run_json(capsys)
    (store,) = found["stores"]
    assert store["site"] == SITE
    assert store["measured"]["seconds"] == pytest.approx(1.25 * store["predicted"]["seconds"])
    assert store["bottleneck_before"] == "link"
    assert store["rates"]["trainer"] is None  # infinite
    assert store["advice"]
    assert [way["why"] for way in found["ways"]]
    assert [way["asked"] for way in found["ways"]] == [total.asked for total in logbook.totals]


def test_the_tables_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    make_logbook().keep()
    assert cli.run(["explain"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "Predicted and measured",
        "1.25",
        "slowest before",
        "cut inside the JPEG, jpeg",
        "of what was planned",
        "of visits are offloaded",
    ):
        assert text in shown


def keep_at(logbook: Logbook, when: int) -> None:
    logbook.keep()
    os.utime(logbook_path(logbook.key), (when, when))


def test_which_logbook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_at(empty_logbook(dataset="v1", uri="grpc://a:7077/photos"), 1)
    keep_at(empty_logbook(dataset="v2", uri="grpc://b:7077/photos"), 2)
    empty_logbook(dataset="v3").save(tmp_path / "run.json")
    assert run_json(capsys)["dataset"] == "v2"
    assert run_json(capsys, "grpc://a:7077/photos")["dataset"] == "v1"
    assert run_json(capsys, "grpc://a/photos/")["dataset"] == "v1"
    assert run_json(capsys, "grpc://a")["dataset"] == "v1"
    assert run_json(capsys, tmp_path / "run.json")["dataset"] == "v3"


@pytest.mark.parametrize("words", [[], ["grpc://nowhere:7077/photos"], ["nothing.json"]])
def test_no_logbook_is_wrong_use(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["explain", *words]) == 2
    assert f"run `headwater profile {words[0] if words else 'URI'}`" in capsys.readouterr().err


def test_a_damaged_logbook_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{")
    assert cli.run(["explain", str(tmp_path / "run.json")]) == 1
    assert "is no logbook that can be used" in capsys.readouterr().err


def test_the_page_has_the_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_logbook().keep()
    assert cli.run(["explain", "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    for title in ("Samples by way", "Bytes by way", "Efficiency of offloading", "The four resources"):
        assert title in page
    assert page.count("measured / predicted") >= 2


def test_one_sample(photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = hw.open(photo_folder)
    learn_logbook(dataset).keep()
    found = run_json(capsys, "--sample", dataset.ids[5])["sample"]
    assert found["key"] == dataset[5].key
    assert found["epoch"] == 1
    assert len(found["ways"]) == len(WAYS)
    assert found["ways"][0]["bytes"] == dataset.sizes[5]
    assert found["ways"][0]["store_seconds"] == 0
    assert found["chosen"] in {way["way"] for way in found["ways"]}


def test_the_crops_of_the_epoch_count(photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = hw.open(photo_folder)
    learn_logbook(dataset).keep()
    sizes = {
        run_json(capsys, "--sample", dataset.ids[5], "--epoch", epoch)["sample"]["ways"][2]["bytes"]
        for epoch in range(4)
    }
    assert len(sizes) > 1


def test_one_sample_as_a_table(photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = hw.open(photo_folder)
    learn_logbook(dataset).keep()
    assert cli.run(["explain", "--sample", str(dataset.ids[0])]) == 0
    shown = capsys.readouterr().out
    assert dataset[0].key in shown
    assert "chosen" in shown
    assert "saved per store second" in shown


def test_a_sample_that_is_not_there(photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learn_logbook(hw.open(photo_folder)).keep()
    assert cli.run(["explain", "--sample", "12345"]) == 2
    assert "has no sample with id 12345" in capsys.readouterr().err


def plan_for(logbook: Logbook, samples: int, *, epoch: int = 1) -> EpochPlan:
    """Every sample but the first, each way in turn."""
    plan = EpochPlan(logbook.key, seed=logbook.seed, epoch=epoch, samples=samples)
    positions = np.arange(1, samples)
    amounts = Amounts(samples, 2e6, 0.0, 1.0, 10.0), Amounts(samples, 5e5, 0.25, 0.5, 2.5)
    part = SitePlan(SITE, *amounts, SLOW_LINK, "the reason of that time")
    plan.add(part, positions, (positions % len(WAYS)).astype(np.uint8))
    return plan


def test_the_plan_of_the_last_epoch_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logbook = make_logbook()
    logbook.keep()
    assert run_json(capsys)["plan"] is None
    plan_for(logbook, 31).keep()
    found = run_json(capsys)["plan"]
    assert (found["epoch"], found["samples"], found["planned"]) == (1, 31, 30)
    assert found["ways"] == dict.fromkeys(way_names(logbook), 5)
    assert found["stores"][0]["before"]["bytes"] == 2e6
    assert cli.run(["explain"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "The plan of epoch 1",
        "30 of 31 samples were planned",
        "the reason of that time",
        "0.50 MB",
    ):
        assert text in shown


def test_a_sample_goes_as_it_was_planned_in_that_epoch(
    photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = hw.open(photo_folder)
    logbook = learn_logbook(dataset)
    logbook.keep()
    plan_for(logbook, len(dataset)).keep()
    names = way_names(logbook)
    for place in (2, 5):
        found = run_json(capsys, "--sample", dataset.ids[place])["sample"]
        assert (found["chosen"], found["planned"]) == (names[place % len(WAYS)], True)
        assert found["reason"] == "the reason of that time"
    assert not run_json(capsys, "--sample", dataset.ids[0])["sample"]["planned"]
    assert not run_json(capsys, "--sample", dataset.ids[2], "--epoch", 3)["sample"]["planned"]
    assert cli.run(["explain", "--sample", str(dataset.ids[2])]) == 0
    assert "as the run planned it: the reason of that time" in capsys.readouterr().out


def test_a_plan_for_something_else_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    logbook, other = make_logbook(), make_logbook()
    logbook.keep()
    other.key = msgspec.structs.replace(logbook.key, dataset="v2")
    plan_for(other, 10).save(record_path(logbook.key, ".plan"))
    assert cli.run(["explain"]) == 1
    assert "the plan was made for dataset version v2, this is v1" in capsys.readouterr().err


def test_planning_that_failed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    logbook = make_logbook()
    logbook.failure = "ZeroDivisionError: of no use"
    logbook.keep()
    assert run_json(capsys)["failure"] == logbook.failure
    assert cli.run(["explain"]) == 0
    assert "Planning failed (ZeroDivisionError: of no use), and files were sent" in capsys.readouterr().out


def test_a_sample_of_a_fleet_is_explained_by_its_own_store(
    photos: list[Photo], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [
        SiteRates(link=1e4, store_cores=2, trainer_cores=4),
        SiteRates(link=1e9, store_cores=2, trainer=5),
    ]
    with running_fleet([photos[:12], photos[12:]], tmp_path) as addresses:
        logbook = learn_fleet(addresses, rates)
        logbook.keep()
        dataset, chosen = hw.open(addresses), {}
        owners = dataset.store.site_of(dataset.positions())
        for number, stretch in enumerate(logbook.stretches):
            id = dataset.ids[np.flatnonzero(owners == number)[0]]
            found = run_json(capsys, "--sample", id)["sample"]
            assert found["store"] == stretch.site
            chosen[number] = found["chosen"]
    assert chosen[0] != "file"
    assert chosen[1] == "file"
