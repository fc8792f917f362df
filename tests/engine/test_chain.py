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
from headwater.engine.chain import Chain
from headwater.errors import SampleCorrupt, SampleTooLarge

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
