from __future__ import annotations

import json
import logging
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headwater import transforms
from headwater.data.pipeline import library_versions
from headwater.errors import DatasetError, StateMismatch, WrongUse
from headwater.measure.key import Key
from headwater.measure.logbook import Amounts, Histogram, Logbook, SiteRates, logbook_path, newest
from logbooks import (
    PIPELINE,
    SITE,
    WAYS,
    empty_logbook,
    make_logbook,
    make_options,
    make_seen,
    make_stretch,
    make_trial,
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_saved_logbook_is_the_same_when_read(tmp_path: Path) -> None:
    logbook = make_logbook()
    logbook.profile = {"fits": [0.1, 1 / 3, 1e-300]}
    logbook.save(tmp_path / "run.json", now=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    again = Logbook.load(tmp_path / "run.json")
    assert again.saved_at == "2026-01-02T03:04:05+00:00"
    assert again.stretches == logbook.stretches
    assert json.loads(msgspec.json.encode(again)) == json.loads(msgspec.json.encode(logbook))
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_rates_that_nobody_measured_stay_infinite(tmp_path: Path) -> None:
    logbook = empty_logbook()
    rates = SiteRates(link=math.inf, store_cores=0.5)
    logbook.add(msgspec.structs.replace(make_stretch(), rates=rates, assumed=rates))
    logbook.save(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["stretches"][0]["rates"]["trainer"] is None
    (stretch,) = Logbook.load(tmp_path / "run.json").stretches
    assert stretch.rates == stretch.assumed == rates
    assert stretch.rates.trainer == math.inf


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    logbook = make_logbook()
    logbook.save(tmp_path / "run.json")
    before = (tmp_path / "run.json").read_bytes()
    logbook.profile = {"not data": object()}
    with pytest.raises(TypeError):
        logbook.save(tmp_path / "run.json")
    assert (tmp_path / "run.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def damage(plain: dict[str, Any], change: str) -> bytes:
    if change == "other format":
        plain["key"]["format"] = 2
    elif change == "missing field":
        del plain["key"]["policy"]
    elif change == "totals":
        plain["totals"].pop()
    elif change == "ways of a stretch":
        plain["stretches"][0]["ways"].append(1)
    elif change == "histogram":
        plain["efficiency"]["counts"].pop()
    text = json.dumps(plain).encode()
    return {"cut off": text[: len(text) // 2], "no text": b"\xff\xfe{", "deep": b"[" * 100_000}.get(
        change, text
    )


@pytest.mark.parametrize(
    "change",
    [
        "cut off",
        "no text",
        "deep",
        "other format",
        "missing field",
        "totals",
        "ways of a stretch",
        "histogram",
    ],
)
def test_a_damaged_file_is_refused_with_a_remedy(tmp_path: Path, change: str) -> None:
    path = tmp_path / "run.json"
    make_logbook().save(path)
    path.write_bytes(damage(json.loads(path.read_text()), change))
    with pytest.raises(DatasetError, match=r"run\.json is no logbook that can be used: .*; delete it"):
        Logbook.load(path)


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="check the path"):
        Logbook.load(tmp_path / "nothing.json")


def test_its_own_key_is_accepted() -> None:
    logbook = make_logbook()
    logbook.check(Key("v1", PIPELINE.hash, "hull", list(WAYS)))


OTHER_STEPS = transforms.Compose([transforms.CenterCrop(8)])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (Key("v2", PIPELINE.hash, "hull", WAYS), "dataset version v1, this is v2"),
        (Key("v1", OTHER_STEPS.hash, "hull", WAYS), "other steps, decode > "),
        (Key("v1", PIPELINE.hash, "hull", WAYS, {"torch": "9"}), "here is .*torch 9"),
        (Key("v1", PIPELINE.hash, "hull", WAYS[:2]), "possible are cut 0, cut 1; "),
    ],
    ids=["dataset", "steps", "library", "ways"],
)
def test_another_key_is_refused_by_what_differs(key: Key, text: str) -> None:
    with pytest.raises(StateMismatch, match=f"{text}.*run `headwater profile` again"):
        make_logbook().check(key)


def test_libraries_are_compared_one_by_one() -> None:
    logbook = empty_logbook()
    mine = Key("v1", "a", "hull", WAYS, {"torch": "1", "pillow": "2"})
    logbook.key = mine
    with pytest.raises(StateMismatch, match="made with torch 1, simplejpeg absent, here is torch 3"):
        logbook.check(
            msgspec.structs.replace(mine, libraries={"pillow": "2", "torch": "3", "simplejpeg": "4"})
        )


def test_samples_are_counted_by_the_way_on_which_they_came() -> None:
    logbook, costs = empty_logbook(), make_options(4)
    logbook.count(make_seen([0, 3, 3, 5], done=[True, True, False, True], options=costs))
    assert [total.asked for total in logbook.totals] == [1, 0, 0, 2, 0, 1]
    assert [total.done for total in logbook.totals] == [2, 0, 0, 1, 0, 1]
    files = costs.bytes[:, 0].astype(np.int64)
    assert logbook.totals[0].bytes == logbook.totals[0].file_bytes == files[0] + files[2]
    assert (logbook.totals[3].bytes, logbook.totals[3].file_bytes) == (3072, files[1])
    assert logbook.totals[5].store_seconds == pytest.approx(0.4e-3)
    assert logbook.totals[0].trainer_seconds == pytest.approx(4e-3)


def test_predictions_are_held_against_what_came_of_the_same_samples() -> None:
    logbook = empty_logbook()
    expected = np.array([5000, np.inf, 7000, 4000], np.float32)
    logbook.count(make_seen([3, 3, 3, 0], done=[True, True, False, True]), expected)
    assert (logbook.totals[3].predicted_bytes, logbook.totals[3].foreseen_bytes) == (5000, 3072)
    assert logbook.totals[0].predicted_bytes == 4000


def test_a_file_of_unknown_size_claims_no_saving() -> None:
    logbook = empty_logbook()
    seen = make_seen([3, 3])
    seen.file_bytes[:] = 0
    logbook.count(seen)
    assert logbook.totals[3].bytes == logbook.totals[3].file_bytes == 2 * 3072
    assert sum(logbook.efficiency.counts) == 0


def test_a_file_of_unknown_size_is_as_long_as_is_estimated() -> None:
    logbook, seen = empty_logbook(), make_seen([0, 3, 3, 3], done=[True, True, True, False])
    seen.file_bytes[:] = 0
    seen.file_bytes[1] = 5000
    logbook.count(seen, files=np.array([1.0, 2.0, 9000.0, 3.0]))
    assert (logbook.totals[3].file_bytes, logbook.totals[3].estimated) == (5000 + 9000, 1)
    assert logbook.totals[0].file_bytes == logbook.totals[0].bytes  # these came as files
    assert logbook.totals[0].estimated == 0
    assert sum(logbook.efficiency.counts) == 2


def test_one_policy_does_not_overwrite_the_words_of_another(cache: Path) -> None:
    for policy in ("efficiency", "throughput"):
        empty_logbook(policy=policy).keep()
    assert len(list((cache / "logbooks").iterdir())) == 2
    for policy in ("efficiency", "throughput"):
        found = newest(policy=policy)
        assert found is not None
        assert found.policy == policy


def test_what_one_policy_has_learnt_another_may_use() -> None:
    empty_logbook(policy="efficiency").check(empty_logbook(policy="throughput").key)


def test_the_versions_of_codecs_are_in_the_key_and_not_in_the_pipelines_hash() -> None:
    """They change what a way costs, but no pixel."""
    libraries = empty_logbook().key.libraries
    assert libraries.keys() >= {"pyarrow", "imagecodecs", "simplejpeg"}
    assert not {"pyarrow", "imagecodecs"} & library_versions().keys()


def test_efficiency_counts_what_was_offloaded() -> None:
    logbook, costs = empty_logbook(), make_options(5)
    logbook.count(make_seen([0, 3, 3, 1, 5], done=[True, True, False, True, True], options=costs))
    assert sum(logbook.efficiency.counts) == 3
    assert logbook.efficiency.counts[0] == 1  # decoded, it is larger than the file
    place = np.searchsorted(logbook.efficiency.edges, (costs.bytes[1, 0] - 3072) / 1.2e-3, side="right")
    assert logbook.efficiency.counts[place] >= 1


def test_a_histogram_keeps_what_lies_outside() -> None:
    histogram = Histogram(edges=[1.0, 10.0, 100.0], counts=[0, 0, 0, 0])
    histogram.add(np.array([-5.0, 0.5, 1.0, 9.9, 50.0, 1e9]))
    assert histogram.counts == [2, 2, 1, 1]


def test_old_stretches_become_fewer_and_lose_nothing() -> None:
    logbook, count = empty_logbook(), 3000
    for number in range(count):
        site = ("a", "b")[number % 2]
        logbook.add(make_trial([1, 0, 0, 2, 0, 0], phase="link", site=site))
    assert len(logbook.stretches) <= 400
    for site in ("a", "b"):
        mine = [stretch for stretch in logbook.stretches if stretch.site == site]
        assert sum(stretch.measured.samples for stretch in mine) == 3 * count // 2
        assert sum(stretch.ways[3] for stretch in mine) == count
    assert logbook.stretches[-1] == make_trial([1, 0, 0, 2, 0, 0], phase="link", site="b")


def test_stretches_with_and_without_a_plan_are_not_joined() -> None:
    logbook = empty_logbook()
    planned, trial = make_stretch(pushed_back=1), make_trial([2, 0, 0, 0, 0, 0], phase="plan")
    for number in range(1000):
        logbook.add(planned if number % 3 else trial)
    assert planned.predicted is not None
    predicted = [stretch for stretch in logbook.stretches if stretch.predicted is not None]
    assert sum(stretch.measured.samples for stretch in predicted) == 666 * planned.measured.samples
    assert sum(stretch.pushed_back for stretch in predicted) == 666
    total = sum(stretch.predicted.seconds for stretch in predicted if stretch.predicted is not None)
    assert total == pytest.approx(666 * planned.predicted.seconds)
    assert predicted[0].waited["read"] == pytest.approx(predicted[0].held / 4.5)


def test_amounts_add_up() -> None:
    assert Amounts(1, 2, 3, 4, 5) + Amounts(10, 20, 30, 40, 50) == Amounts(11, 22, 33, 44, 55)


def test_a_stretch_in_which_no_time_passed_was_neither_busy_nor_idle() -> None:
    assert make_stretch().busy == pytest.approx(4.5 / 6)
    assert make_trial([1, 0, 0, 0, 0, 0]).busy is None


def test_the_newest_is_found_by_what_it_was_made_for(cache: Path) -> None:
    assert newest() is None
    old, new = empty_logbook(), empty_logbook(dataset="v2", uri="grpc://b:7077/x\ngrpc://c:7077/x")
    for number, logbook in enumerate((old, new)):
        logbook.keep()
        os.utime(logbook_path(logbook.key), (number, number))
    assert found_version(newest()) == "v2"
    assert found_version(newest(dataset="v1")) == "v1"
    assert found_version(newest(uri=SITE)) == "v1"
    assert found_version(newest(uri="grpc://c:7077/x")) == "v2"
    assert newest(uri="grpc://c:7077/x", dataset="v1") is None
    assert newest(uri="grpc://store") is None
    assert found_version(newest(pipeline=PIPELINE.hash)) == "v2"
    assert newest(pipeline=OTHER_STEPS.hash) is None
    assert newest(policy="efficiency") is None


def found_version(logbook: Logbook | None) -> str:
    assert logbook is not None
    return logbook.key.dataset


def test_a_damaged_one_in_the_cache_is_passed_over(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    empty_logbook().keep()
    (cache / "logbooks" / "damaged.json").write_text("{")
    with caplog.at_level(logging.WARNING, logger="headwater"):
        assert found_version(newest()) == "v1"
    assert "damaged.json is no logbook" in caplog.text


def test_every_key_has_a_file_of_its_own(cache: Path) -> None:
    keys = [
        Key("v1", "p", "hull", WAYS),
        Key("v2", "p", "hull", WAYS),
        Key("v1", "q", "hull", WAYS),
        Key("v1", "p", "efficiency", WAYS),
        Key("v1", "p", "hull", WAYS[:3]),
        Key("v1", "p", "hull", WAYS, {"imagecodecs": "1"}),
    ]
    paths = {logbook_path(key) for key in keys}
    assert len(paths) == len(keys)
    assert {path.parent for path in paths} == {cache / "logbooks"}


def test_a_cache_that_cannot_be_written_to_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, logger="headwater"):
        empty_logbook().keep()
    assert "set HEADWATER_CACHE" in caplog.text
