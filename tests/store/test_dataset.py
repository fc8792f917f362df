"""Datasets: samples, subsets, filters, splits, and the sizes of their pixels."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

import headwater as hw
from headwater.errors import WrongUse


@pytest.fixture
def data(photo_folder: Path) -> hw.Dataset:
    return hw.open(photo_folder)


def test_a_sample_is_the_file(data: hw.Dataset, photo_folder: Path) -> None:
    sample = data[3]
    content = (photo_folder / sample.key).read_bytes()
    assert bytes(sample.data) == content
    assert sample.id == int(data.ids[3])
    assert sample.label == int(data.labels[3])
    assert data.classes[sample.label] == Path(sample.key).parts[0]
    assert data[-1].key == data[len(data) - 1].key
    if sample.key.endswith(".jpg"):
        assert np.array_equal(sample.decode(), simplejpeg.decode_jpeg(content))
    with pytest.raises(IndexError, match="outside a dataset"):
        data[len(data)]


def test_select_keeps_the_order_asked_for(data: hw.Dataset) -> None:
    wanted = data.ids[[5, 2, 9]]
    part = data.select(wanted)
    assert part.ids.tolist() == wanted.tolist()
    assert part[0].key == data[5].key
    assert data.select(iter(wanted.tolist())).ids.tolist() == wanted.tolist()


def test_select_names_an_unknown_id(data: hw.Dataset) -> None:
    with pytest.raises(WrongUse, match="12345"):
        data.select([12345])
    part = data.select(data.ids[:5])
    with pytest.raises(WrongUse, match="not in this subset"):
        part.select(data.ids[6:7])


def test_filter_by_label_and_by_column(data: hw.Dataset) -> None:
    name = data.classes[1]
    assert set(data.filter(labels=[name]).labels.tolist()) == {1}
    assert data.filter(labels=iter([name, 0])).version == data.filter(labels=[0, 1]).version
    large = data.filter(where=lambda columns: columns["bytes"] > np.median(columns["bytes"]))
    assert 0 < len(large) < len(data)
    assert large.sizes.min() > np.median(data.sizes)
    both = data.filter(labels=[0], where=lambda columns: columns["label"] == 1)
    assert len(both) == 0


def test_filter_says_what_is_wrong(data: hw.Dataset) -> None:
    with pytest.raises(WrongUse, match="no class is called 'zebra'"):
        data.filter(labels=["zebra"])
    with pytest.raises(WrongUse, match="booleans"):
        data.filter(where=lambda columns: columns["label"])  # type: ignore[arg-type,return-value]


def test_split_is_disjoint_whole_and_stable_when_data_is_added(photo_folder: Path, tmp_path: Path) -> None:
    data = hw.open(photo_folder)
    parts = data.split(0.6, 0.4, seed=5)
    assert sorted(np.concatenate([part.ids for part in parts]).tolist()) == sorted(data.ids.tolist())
    grown = Path(shutil.copytree(photo_folder, tmp_path / "grown"))
    sample = next(path for path in grown.rglob("*.jpg"))
    for number in range(5):
        shutil.copy(sample, sample.with_name(f"added-{number}.jpg"))
    again = hw.open(grown).split(0.6, 0.4, seed=5)
    for before, after in zip(parts, again, strict=True):
        assert set(before.ids.tolist()) <= set(after.ids.tolist())
    assert data.split(0.5, seed=1)[0].version != data.split(0.5, seed=2)[0].version


def test_a_part_can_be_split_again_with_the_same_seed(data: hw.Dataset) -> None:
    _, rest = data.split(0.4, 0.6)
    parts = rest.split(0.5, 0.5)
    assert min(map(len, parts)) > 2
    assert sorted(np.concatenate([part.ids for part in parts]).tolist()) == sorted(rest.ids.tolist())


def test_an_id_is_selected_once(data: hw.Dataset) -> None:
    with pytest.raises(WrongUse, match="twice"):
        data.select(data.ids[[1, 2, 1]])


def test_pixel_sizes_behind_a_long_comment(tmp_path: Path) -> None:
    """A thumbnail or a profile before the frame header pushes it past the first look."""
    photo = simplejpeg.encode_jpeg(np.zeros((37, 61, 3), np.uint8))
    comment = b"\xff\xfe" + (60_000).to_bytes(2, "big") + b"x" * 59_998
    for number in (0, 1, 4):
        (tmp_path / f"{number}.jpg").write_bytes(photo[:2] + comment * number + photo[2:])
    assert hw.open(tmp_path).pixel_sizes().tolist() == [[37, 61]] * 3


@pytest.mark.parametrize("fractions", [(), (0.5, 0.6), (0.5, -0.1)])
def test_split_refuses_what_does_not_add_up(data: hw.Dataset, fractions: tuple[float, ...]) -> None:
    with pytest.raises(WrongUse, match="fractions"):
        data.split(*fractions)


def test_versions_tell_content_not_place(data: hw.Dataset, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(data.uri, tmp_path / "copy"))
    assert hw.open(copy).version == data.version
    (copy / data[0].key).unlink()
    assert hw.open(copy).version != data.version
    assert data.filter(labels=[0]).version != data.version


def test_pixel_sizes_are_those_of_the_decoded_images(data: hw.Dataset) -> None:
    sizes = data.pixel_sizes()
    assert sizes.tolist() == [list(data[place].decode().shape[:2]) for place in range(len(data))]
    part = data.select(data.ids[[7, 1]])
    assert part.pixel_sizes().tolist() == sizes[[7, 1]].tolist()


def test_repr_says_what_it_is(data: hw.Dataset) -> None:
    assert f"samples={len(data)}" in repr(data)
    assert "classes=3" in repr(data)
