from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import cli
from headwater.measure.logbook import Logbook, logbook_path
from logbooks import SITE, WAYS, empty_logbook, learn_logbook, make_logbook


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
