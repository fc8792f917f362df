"""One bad file: named, counted, and the rest goes on as `on_error` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from headwater import transforms as T
from headwater.errors import SampleCorrupt, SampleError, SampleTooLarge

TRANSFORM = T.Compose([T.RandomResizedCrop(16)])


def make(data: hw.Dataset, **options: Any) -> hw.DataLoader:
    return hw.DataLoader(data, TRANSFORM, **({"batch_size": 6, "num_workers": 2} | options))


@pytest.fixture
def folder(photo_folder: Path, tmp_path: Path) -> Path:
    """The photos, with three files spoilt: cut short, no image at all, and a header that lies."""
    import shutil

    copy = Path(shutil.copytree(photo_folder, tmp_path / "spoilt"))
    photos = sorted(path for path in copy.rglob("*.jpg"))
    photos[1].write_bytes(photos[1].read_bytes()[:400])
    photos[8].write_bytes(b"GIF89a not a photo")
    content = bytearray(photos[20].read_bytes())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = (20_000).to_bytes(2, "big") * 2
    photos[20].write_bytes(content)
    return copy


@pytest.fixture
def bad(folder: Path) -> list[str]:
    photos = sorted(path for path in folder.rglob("*.jpg"))
    return [photos[place].relative_to(folder).as_posix() for place in (1, 8, 20)]


@pytest.mark.parametrize("workers", [0, 2])
def test_raise_names_the_sample_and_the_stage(folder: Path, bad: list[str], workers: int) -> None:
    data = hw.open(folder)
    loader = make(data, num_workers=workers, batch_size=1)
    delivered = []
    with pytest.raises(SampleCorrupt) as caught:
        delivered += [batch.ids for batch in loader]
    assert caught.value.key == bad[0]
    assert caught.value.stage == "decode"
    assert bad[0] in str(caught.value)
    assert "on_error='skip'" in caught.value.__notes__[0]
    assert caught.value.id == next(id for place, id in enumerate(data.ids) if data.index.key(place) == bad[0])


def test_batches_before_the_error_are_delivered(folder: Path) -> None:
    loader = make(hw.open(folder), batch_size=1)
    seen: list[int] = []
    with pytest.raises(SampleError):
        seen.extend(len(batch) for batch in loader)
    assert seen == [1]
    assert loader.state_dict()["start"] == 1


def test_skip_leaves_them_out_and_counts(folder: Path, bad: list[str]) -> None:
    data = hw.open(folder)
    loader = make(data, on_error="skip")
    ids = [int(id) for batch in loader for id in batch.ids]
    by_key = {data.index.key(place): int(data.ids[place]) for place in range(len(data))}
    assert sorted(ids) == sorted(set(by_key.values()) - {by_key[key] for key in bad})
    stats = loader.stats()
    assert stats.skipped == 3
    assert set(stats.errors) == set(bad)
    assert stats.samples == len(data) - 3


def test_substitute_keeps_batches_whole_and_tells_who_was_served(folder: Path, bad: list[str]) -> None:
    data = hw.open(folder)
    loaders = [make(data, on_error="substitute", num_workers=workers) for workers in (0, 2)]
    epochs = [list(loader) for loader in loaders]
    position = {int(id): place for place, id in enumerate(data.ids)}
    for one, two in zip(*epochs, strict=True):
        assert len(one) == len(two)
        assert torch.equal(one.inputs, two.inputs)
        assert torch.equal(one.ids, two.ids)
        assert one.targets.tolist() == [int(data.labels[position[int(id)]]) for id in one.ids]
    served = {data.index.key(position[int(id)]) for batch in epochs[0] for id in batch.ids}
    assert not served & set(bad)
    assert loaders[0].stats().substituted == 3
    assert sum(len(batch) for batch in epochs[0]) == len(data)


def test_a_batch_of_nothing_but_failures_raises(folder: Path, bad: list[str]) -> None:
    data = hw.open(folder)
    position = next(place for place in range(len(data)) if data.index.key(place) == bad[0])
    with pytest.raises(SampleCorrupt):
        list(make(data.select([int(data.ids[position])]), on_error="skip"))


def test_a_header_that_lies_is_refused_before_memory_is(folder: Path, bad: list[str]) -> None:
    data = hw.open(folder)
    position = next(place for place in range(len(data)) if data.index.key(place) == bad[2])
    with pytest.raises(SampleTooLarge, match="20000"):
        list(make(data.select([int(data.ids[position])])))


def test_caps_can_be_set(photo_folder: Path) -> None:
    with pytest.raises(SampleTooLarge):
        list(make(hw.open(photo_folder), limits=hw.Limits(pixels=100)))


def test_a_file_past_the_cap_on_bytes_is_not_read(photo_folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(photo_folder, tmp_path / "copy"))
    huge = copy / "ant" / "zz.jpg"
    with huge.open("wb") as file:
        file.truncate(1 << 36)  # 64 GiB of nothing: reading it would end the process
    data = hw.open(copy)
    loader = make(data, on_error="skip")
    assert sum(len(batch) for batch in loader) == len(data) - 1
    assert "68,719,476,736 bytes" in loader.stats().errors["ant/zz.jpg"]
    assert data.pixel_sizes()[data.sizes > 1 << 30].tolist() == [[0, 0]]


@pytest.mark.parametrize("layout", ["photo_folder", "photo_tars", "photo_parquet"])
def test_the_cap_on_bytes_goes_by_the_file_not_by_a_mean(layout: str, request: pytest.FixtureRequest) -> None:
    """Parquet's footer tells only how large the files of a row group are on average."""
    data = hw.open(request.getfixturevalue(layout))
    sizes = np.array([len(data[place].data) for place in range(len(data))])
    cap = int(np.median(sizes))
    loader = make(data, on_error="skip", batch_size=len(data), limits=hw.Limits(bytes=cap))
    served = {int(id) for batch in loader for id in batch.ids}
    assert served == set(data.ids[sizes <= cap].tolist())


def test_a_step_that_would_blow_an_image_up_is_refused(tmp_path: Path) -> None:
    import simplejpeg

    (tmp_path / "thread.jpg").write_bytes(simplejpeg.encode_jpeg(np.zeros((65_000, 1, 3), np.uint8)))
    (tmp_path / "usual.jpg").write_bytes(simplejpeg.encode_jpeg(np.zeros((64, 64, 3), np.uint8)))
    for steps in (
        [T.Resize(256), T.CenterCrop(224)],
        [lambda image: image, T.Resize(256), T.CenterCrop(224)],
    ):
        loader = hw.DataLoader(hw.open(tmp_path), steps, batch_size=2, on_error="skip")
        assert sum(len(batch) for batch in loader) == 1
        assert "pixels" in loader.stats().errors["thread.jpg"]


def test_a_vanished_file_costs_one_sample(photo_folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(photo_folder, tmp_path / "copy"))
    data = hw.open(copy)
    sorted(copy.rglob("*.jpg"))[5].unlink()
    loader = make(data, on_error="skip")
    assert sum(len(batch) for batch in loader) == len(data) - 1
    with pytest.raises(Exception, match=r"changed|gone|missing|again"):
        list(make(data))


def test_an_error_in_a_callable_keeps_its_type_and_gains_a_note(photo_folder: Path) -> None:
    def broken(image: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    loader = hw.DataLoader(hw.open(photo_folder), [T.Resize((8, 8)), broken], batch_size=4)
    with pytest.raises(ZeroDivisionError) as caught:
        next(iter(loader))
    assert "failed at callable" in caught.value.__notes__[0]
    assert any(frame.name == "broken" for frame in caught.traceback)
