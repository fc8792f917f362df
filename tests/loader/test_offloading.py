"""What may be given as `offload`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import transforms as T
from headwater.errors import DatasetError, WrongUse
from headwater.loader.offloading import resolve, ways_of
from logbooks import make_logbook

STEPS = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip()]).samplewise


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, hw.Offload(0)),
        ("none", hw.Offload(0)),
        ("all", hw.Offload(4)),
        ("fixed", hw.Offload(3)),
        (hw.Offload(2, "zstd"), hw.Offload(2, "zstd")),
        ("auto", hw.Auto()),
        ("hull", hw.Auto("hull")),
        ("efficiency", hw.Auto("efficiency")),
        ("throughput", hw.Auto("throughput")),
    ],
)
def test_names_and_objects(given: Any, meant: Any) -> None:
    assert resolve(given, STEPS) == meant


def test_a_logbook_by_its_path(tmp_path: Path) -> None:
    logbook = make_logbook()
    path = tmp_path / "run.json"
    logbook.save(path)
    for given in (path, str(path)):
        found = resolve(given, STEPS)
        assert isinstance(found, hw.Auto)
        assert found.logbook is not None
        assert found.logbook.key == logbook.key


def test_a_damaged_logbook(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("{")
    with pytest.raises(DatasetError, match=r"run\.json is no logbook.*delete it"):
        resolve(path, STEPS)


def test_what_is_nothing_of_these_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"'hul'; give 'auto', 'none'"):
        resolve("hul", STEPS)
    with pytest.raises(WrongUse, match="cannot read"):
        resolve(tmp_path / "absent.json", STEPS)
    with pytest.raises(WrongUse, match="'all' is not planned"):
        hw.Auto("all")
    with pytest.raises(WrongUse, match="store_seconds is 0"):
        hw.Auto(store_seconds=0)


def test_published_policies_choose_from_cuts_alone() -> None:
    assert [way.codec for way in ways_of(STEPS, hw.Auto("efficiency"))] == ["none"] * 5


def test_ours_takes_decoder_and_crop_for_one_step() -> None:
    assert {way.cut for way in ways_of(STEPS, hw.Auto())} == {0, 2, 3, 4}


def test_codecs_can_be_narrowed() -> None:
    assert {way.codec for way in ways_of(STEPS, hw.Auto(codecs=["zstd"]))} == {"none", "zstd"}
