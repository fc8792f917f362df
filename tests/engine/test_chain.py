"""Split equals whole: any cut, with values and pipeline crossing as bytes, gives the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import simplejpeg

from headwater import transforms as T
from headwater.data.image import Limits
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.engine import chain as chain_module
from headwater.engine.chain import Chain
from headwater.errors import SampleCorrupt, SampleTooLarge, WrongUse

PIPELINES = {
    "imagenet": T.Compose([T.RandomResizedCrop(20), T.RandomHorizontalFlip()]),
    "cifar": T.Compose([T.RandomCrop(24, padding=4, pad_if_needed=True), T.RandomHorizontalFlip()]),
    "validation": T.Compose([T.Resize(30), T.CenterCrop(24)]),
    "grey": T.Compose([T.Decode(mode="L"), T.RandomVerticalFlip(), T.RandomResizedCrop((10, 14))]),
}


@dataclass
class Lot:
    ids: np.ndarray
    epoch: int
    images: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, tuple[str, Exception]] = field(default_factory=dict)

    def emit(self, place: int, image: Any) -> None:
        self.images[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        self.failures[place] = (stage, error)


def photos(count: int = 12) -> list[bytes]:
    rng = np.random.default_rng(5)
    made = []
    for number in range(count):
        shape = (int(rng.integers(30, 90)), int(rng.integers(30, 90)), 3)
        pixels = rng.integers(0, 256, shape, np.uint8)
        made.append(simplejpeg.encode_jpeg(pixels, 85, "RGB", ("444", "422", "420", "440")[number % 4]))
    return made


def through(pipeline: Pipeline, values: Sequence[Any], epoch: int, seed: int = 3) -> list[Any]:
    lot = Lot(np.arange(len(values), dtype=np.int64) * 101, epoch)
    Chain(pipeline, seed).run(values, lot)
    assert not lot.failures
    return [lot.images[place] for place in range(len(values))]


def cross_the_link(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    return np.frombuffer(value.tobytes(), value.dtype).reshape(value.shape)


def send(pipeline: Pipeline) -> Pipeline:
    spec = msgspec.json.decode(msgspec.json.encode(pipeline.spec()))
    return Pipeline.from_spec(spec, catalogue(), offset=pipeline.offset)


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_split_equals_whole_at_every_cut(name: str, epoch: int) -> None:
    pipeline = PIPELINES[name].samplewise
    whole = through(pipeline, photos(), epoch)
    for cut in range(len(pipeline) + 1):
        before, after = map(send, pipeline.cut(cut))
        middle = [cross_the_link(value) for value in through(before, photos(), epoch)]
        for got, wanted in zip(through(after, middle, epoch), whole, strict=True):
            assert np.array_equal(got, wanted)


def test_epoch_and_seed_matter() -> None:
    pipeline = PIPELINES["imagenet"]
    base = through(pipeline, photos(), 0)
    for other in (through(pipeline, photos(), 1), through(pipeline, photos(), 0, seed=4)):
        assert not all(np.array_equal(one, two) for one, two in zip(base, other, strict=True))


def test_past_a_callable_each_sample_draws_alone_what_all_would_draw_together() -> None:
    pipeline = T.Compose(
        [T.Resize((40, 40)), lambda image: image, T.RandomCrop(20), T.RandomHorizontalFlip()]
    )
    before, after = pipeline.cut(3)  # decode, resize, callable
    together = through(after, through(before, photos(), 0), 0)
    for alone, wanted in zip(through(pipeline, photos(), 0), together, strict=True):
        assert np.array_equal(alone, wanted)


def test_failures_name_their_stage_and_spare_the_rest() -> None:
    def picky(image: Any) -> Any:
        if image.shape[1] == files_heights[3]:
            raise ArithmeticError("no")
        return image

    files = photos()
    files_heights = [simplejpeg.decode_jpeg_header(file)[0] for file in files]
    files[1] = files[1][:200]
    files[6] = b"no image"
    lot = Lot(np.arange(12, dtype=np.int64), 0)
    Chain(T.Compose([picky])).run(files, lot)
    others = {place for place, height in enumerate(files_heights) if height == files_heights[3]} - {1, 6}
    assert {place: stage for place, (stage, _) in lot.failures.items()} == {
        1: "decode",
        6: "decode",
        **dict.fromkeys(others, "callable"),
    }
    assert isinstance(lot.failures[1][1], SampleCorrupt)
    assert len(lot.images) == 12 - len(lot.failures)


def test_caps_are_checked_before_decoding() -> None:
    lot = Lot(np.arange(2, dtype=np.int64), 0)
    Chain(T.Compose([]), limits=Limits(pixels=500)).run(photos(2), lot)
    assert all(isinstance(error, SampleTooLarge) for _, error in lot.failures.values())
    assert len(lot.failures) == 2


def test_an_empty_chain_hands_files_through() -> None:
    files = photos(3)
    assert through(Pipeline(()), files, 0) == files


@dataclass
class NotingLot(Lot):
    """Also wants to know what was drawn."""

    noted: dict[int, tuple[tuple[int, int], list[tuple[float, ...]]]] = field(default_factory=dict)

    def note(self, place: int, header: Any, size: tuple[int, int], rows: Sequence[Any]) -> None:
        assert place not in self.images
        self.noted[place] = (size, [tuple(row) for row in rows])


def new_lot(count: int = 12, kind: type[Lot] = Lot) -> Any:
    return kind(np.arange(count, dtype=np.int64) * 101, 7)


@pytest.mark.parametrize("name", PIPELINES)
def test_values_that_went_different_distances_end_alike(name: str) -> None:
    """As from a store under pressure: some raw, some cut here, some there, all in one lot."""
    pipeline = PIPELINES[name].samplewise
    whole = through(pipeline, photos(), 7)
    done = np.arange(12, dtype=np.uint8) % (len(pipeline) + 1)
    ways = [through(pipeline.cut(cut)[0], photos(), 7) for cut in range(len(pipeline) + 1)]
    values = [ways[cut][place] for place, cut in enumerate(done.tolist())]
    lot = new_lot()
    Chain(pipeline, 3).run(values, lot, done=done)
    assert not lot.failures
    assert sorted(lot.images) == list(range(12))
    for place, wanted in enumerate(whole):
        assert np.array_equal(lot.images[place], wanted)


def test_nothing_done_is_the_same_as_not_saying_so() -> None:
    pipeline = PIPELINES["imagenet"].samplewise
    one, other = new_lot(), new_lot()
    Chain(pipeline, 3).run(photos(), one)
    Chain(pipeline, 3).run(photos(), other, done=np.zeros(12, np.uint8))
    assert all(np.array_equal(one.images[place], other.images[place]) for place in range(12))


def test_failures_of_a_part_name_the_place_in_the_lot() -> None:
    pipeline = T.Compose([T.Resize(30), T.CenterCrop(24)]).samplewise
    values: list[Any] = list(photos())
    done = np.zeros(12, np.uint8)
    for place in (2, 9):
        values[place] = through(pipeline.cut(2)[0], photos(), 7)[place]
        done[place] = 2
    values[5] = b"no image"
    lot = new_lot()
    Chain(pipeline, 3).run(values, lot, done=done)
    assert {place: stage for place, (stage, _) in lot.failures.items()} == {5: "decode"}
    assert sorted(lot.images) == [place for place in range(12) if place != 5]


def test_more_done_than_there_are_steps() -> None:
    pipeline = PIPELINES["imagenet"].samplewise
    with pytest.raises(WrongUse, match="outside a pipeline"):
        Chain(pipeline, 3).run(photos(), new_lot(), done=np.full(12, len(pipeline) + 1, np.uint8))


@pytest.mark.parametrize("name", PIPELINES)
def test_whoever_wants_to_know_is_told_what_was_drawn(name: str) -> None:
    pipeline = PIPELINES[name].samplewise
    lot = new_lot(kind=NotingLot)
    Chain(pipeline, 3).run(photos(), lot)
    sizes = np.array([simplejpeg.decode_jpeg_header(file)[:2] for file in photos()])
    drawn = pipeline.draw(lot.ids, sizes, seed=3, epoch=7)
    for place in range(12):
        size, rows = lot.noted[place]
        assert size == tuple(sizes[place])
        assert rows == [tuple(each[place].tolist()) for each in drawn]


def test_a_part_of_a_lot_is_told_under_its_own_places() -> None:
    pipeline = PIPELINES["imagenet"].samplewise
    values: list[Any] = list(photos())
    done = np.zeros(12, np.uint8)
    values[4], done[4] = through(pipeline.cut(2)[0], photos(), 7)[4], 2
    lot, whole = new_lot(kind=NotingLot), new_lot(kind=NotingLot)
    Chain(pipeline, 3).run(values, lot, done=done)
    Chain(pipeline, 3).run(photos(), whole)
    assert lot.noted == {place: noted for place, noted in whole.noted.items() if place != 4}


@dataclass
class SeeingLot(Lot):
    """Also wants the whole pictures."""

    seen: dict[int, Any] = field(default_factory=dict)

    def see(self, place: int, image: Any) -> None:
        assert place not in self.images
        self.seen[place] = image.copy()


@pytest.mark.parametrize("name", PIPELINES)
def test_who_wants_the_whole_picture_has_it_of_the_same_decode(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = PIPELINES[name].samplewise
    plain, lot, decoded = new_lot(), new_lot(kind=SeeingLot), []
    Chain(pipeline, 3).run(photos(), plain)
    original = chain_module.decode

    def count(*arguments: Any, **options: Any) -> Any:
        decoded.append(options["box"])
        return original(*arguments, **options)

    monkeypatch.setattr(chain_module, "decode", count)
    Chain(pipeline, 3).run(photos(), lot)
    assert decoded == [None] * 12, "once each, and whole"
    whole = through(pipeline.cut(1)[0], photos(), 7)
    for place in range(12):
        assert np.array_equal(lot.images[place], plain.images[place])
        assert np.array_equal(lot.seen[place], whole[place])


def test_a_part_of_a_lot_sees_under_its_own_places() -> None:
    pipeline = PIPELINES["imagenet"].samplewise
    values: list[Any] = list(photos())
    done = np.zeros(12, np.uint8)
    values[4], done[4] = through(pipeline.cut(2)[0], photos(), 7)[4], 2
    lot = new_lot(kind=SeeingLot)
    Chain(pipeline, 3).run(values, lot, done=done)
    assert sorted(lot.seen) == [place for place in range(12) if place != 4]
