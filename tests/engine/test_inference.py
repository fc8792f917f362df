"""Images become features at the end of a run, in order, whatever fails on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import headwater as hw
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain, Lot
from headwater.engine.crew import Crew
from headwater.engine.fetching import Fetched, Reader, Wanted
from headwater.engine.inference import BATCH, Extraction, FeatureBatch, Gathering, crossing_at
from headwater.errors import ModelError, SampleCorrupt
from headwater.models.runtime import Engine
from headwater.plan.offload import Offload
from relabelling import small_model, write_photos

CROP = T.Compose([T.CenterCrop(8)])
MEETING_SECONDS = 10.0


class Colours:
    """The mean of each channel: layers that need no model."""

    width = 3

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self.batches: list[int] = []

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.batches.append(len(images))
        return self._scale * images.mean(axis=(1, 2), dtype=np.float32)


def extraction(
    data: hw.Dataset, layers: Colours | Engine, *, steps: Pipeline = CROP, workers: int = 2
) -> Extraction:
    chain = Chain(steps)
    crew = Crew(workers, data.store.readers)
    return Extraction(lambda: data.store.reader(chain, (Offload(0),)), chain, layers, crew)


def run(made: Extraction | Gathering, data: hw.Dataset) -> list[FeatureBatch]:
    try:
        return list(made.run(data.positions(), data.ids))
    finally:
        made.crew.close()


def pixels(data: hw.Dataset, place: int) -> NDArray[np.uint8]:
    image = data[place].decode()
    top, left = (image.shape[0] - 8) // 2, (image.shape[1] - 8) // 2
    return image[top : top + 8, left : left + 8]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> hw.Dataset:
    return hw.open(write_photos(tmp_path_factory.mktemp("photos"), BATCH + 40, broken=3))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_is_made_or_named(data: hw.Dataset, workers: int) -> None:
    layers = Colours()
    batches = run(extraction(data, layers, workers=workers), data)
    assert [len(batch.ids) + len(batch.failures) for batch in batches] == [BATCH, 43]
    ids = np.concatenate([batch.ids for batch in batches])
    lost = [failed for batch in batches for failed in batch.failures]
    assert sorted([*ids.tolist(), *(failed.id for failed in lost)]) == sorted(data.ids.tolist())
    keys = {data.index.key(failed.position) for failed in lost}
    assert keys == {f"broken-{number}.jpg" for number in range(3)}
    assert all(isinstance(failed.error, SampleCorrupt) for failed in lost)
    assert sum(layers.batches) == len(ids)


class Meeting:
    """Where the layers of the first batch, and the reading and decoding of a lot of the next one, meet.

    The lot is not read before the layers have begun, and they do not end before it is decoded.
    """

    def __init__(self, position: int, id: int) -> None:
        self.position, self.id = position, id
        self.begun, self.decoded = threading.Event(), threading.Event()
        self.missed: list[str] = []

    def wait(self, event: threading.Event, who: str) -> None:
        if not event.wait(MEETING_SECONDS):
            self.missed.append(who)


class MeetingLayers(Colours):
    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self._meeting = meeting

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        self._meeting.begun.set()
        self._meeting.wait(self._meeting.decoded, "layers")
        return super().features(images)


class MeetingReader:
    def __init__(self, reader: Reader, meeting: Meeting) -> None:
        self._reader, self._meeting = reader, meeting
        self.sizes, self.key, self.abandon = reader.sizes, reader.key, reader.abandon

    def fetch(self, wanted: Wanted) -> Fetched:
        if self._meeting.position in wanted.positions:
            self._meeting.wait(self._meeting.begun, "reader")
        return self._reader.fetch(wanted)


@dataclass(frozen=True)
class MeetingChain(Chain):
    meeting: Meeting | None = None

    def run(self, values: Sequence[Any], lot: Lot, *, done: NDArray[np.uint8] | None = None) -> None:
        super().run(values, lot, done=done)
        if self.meeting is not None and self.meeting.id in lot.ids:
            self.meeting.decoded.set()


def test_reading_decoding_and_layers_overlap(data: hw.Dataset) -> None:
    positions, ids = data.positions(), data.ids
    meeting = Meeting(int(positions[-1]), int(ids[-1]))
    chain = MeetingChain(CROP, meeting=meeting)
    reader = MeetingReader(data.store.reader(chain, (Offload(0),)), meeting)
    made = Extraction(lambda: reader, chain, MeetingLayers(meeting), Crew(2, 2))
    assert len(run(made, data)) == 2
    assert meeting.missed == []


def test_features_are_those_of_the_sample_beside_them(data: hw.Dataset) -> None:
    for batch in run(extraction(data, Colours()), data):
        assert batch.features.dtype == np.float16
        np.testing.assert_array_equal(data.index.ids[batch.positions], batch.ids)
        for place in (0, len(batch.ids) - 1):
            expected = pixels(data, int(batch.positions[place])).mean(axis=(0, 1), dtype=np.float32)
            np.testing.assert_array_equal(batch.features[place], expected.astype(np.float16))


def test_a_model_by_the_loop_is_the_model_alone(data: hw.Dataset) -> None:
    engine = Engine(small_model())
    steps = Pipeline.from_spec(small_model().steps, hw_catalogue()).samplewise
    (first, _) = run(extraction(data, engine, steps=steps), data)
    images = np.stack([pixels(data, int(position)) for position in first.positions])
    np.testing.assert_allclose(first.features, engine.features(images), rtol=2e-3, atol=2e-3)


def hw_catalogue() -> dict[str, type]:
    from headwater.data.steps import catalogue

    return catalogue()


def test_features_beyond_half_precision_are_failures(data: hw.Dataset) -> None:
    batches = run(extraction(data, Colours(scale=1e6)), data)
    assert not sum(len(batch.ids) for batch in batches)
    assert {len(batch.features) for batch in batches} == {0}
    assert "not finite" in str(batches[0].failures[0].error)


def test_images_of_several_sizes_are_the_models_fault(photo_folder: Path) -> None:
    data = hw.open(photo_folder)
    with pytest.raises(ModelError, match="end them with a crop"):
        run(extraction(data, Colours(), steps=T.Compose([])), data)


def test_a_whole_batch_can_fail(tmp_path: Path) -> None:
    data = hw.open(write_photos(tmp_path, 0, broken=5))
    (batch,) = run(extraction(data, Colours()), data)
    assert batch.features.shape == (0, 3)
    assert len(batch.failures) == 5


def test_no_samples_no_batches(data: hw.Dataset) -> None:
    made = extraction(data, Colours())
    nothing = np.empty(0, np.int64)
    assert list(made.run(nothing, nothing)) == []
    made.crew.close()


class Vectors:
    """A reader of features: the id, twice, but for samples that it does not like."""

    def __init__(self, fault: Callable[[int], bool] = lambda id: False, width: int = 2) -> None:
        self._fault, self._width = fault, width

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(positions), 1 << 40, np.int64)

    def key(self, position: int) -> str:
        return str(position)

    def abandon(self) -> None:
        return None

    def fetch(self, wanted: Wanted) -> Fetched:
        failed = {
            place: SampleCorrupt("no") for place, id in enumerate(wanted.ids.tolist()) if self._fault(id)
        }
        values = [
            None if place in failed else np.full(self._width, id % 1000, np.float16)
            for place, id in enumerate(wanted.ids.tolist())
        ]
        return Fetched(values, failed=failed)


def test_gathered_vectors_are_batches_too() -> None:
    ids = np.arange(1000, 1150)
    gathering = Gathering(lambda: Vectors(lambda id: id % 10 == 3), 2, Crew(2, 4))
    batches = list(gathering.run(ids, ids))
    gathering.crew.close()
    assert [len(batch.ids) + len(batch.failures) for batch in batches] == [64, 64, 22]
    for batch in batches:
        np.testing.assert_array_equal(batch.features, np.repeat(batch.ids[:, None] % 1000, 2, axis=1))
    assert sum(len(batch.failures) for batch in batches) == 15


def test_vectors_of_another_width_are_refused() -> None:
    ids = np.arange(10)
    gathering = Gathering(lambda: Vectors(width=5), 2, Crew(0, 0))
    with pytest.raises(ModelError, match="the model has 2 of them"):
        list(gathering.run(ids, ids))


class Squares:
    """Layers behind a cut: the sum of a vector's numbers, its square, and one of them."""

    width = 3

    def features(self, vectors: NDArray[np.float16]) -> NDArray[np.float32]:
        total = vectors.astype(np.float32).sum(axis=1)
        return np.stack((total, total**2, vectors[:, 0].astype(np.float32)), axis=1)


def test_what_crossed_at_a_cut_goes_through_the_layers_behind_it() -> None:
    ids = np.arange(150)
    gathering = Gathering(lambda: Vectors(lambda id: id % 10 == 3), 2, Crew(2, 4), rest=Squares())
    batches = list(gathering.run(ids, ids))
    gathering.crew.close()
    assert [len(batch.ids) + len(batch.failures) for batch in batches] == [64, 64, 22]
    for batch in batches:
        assert batch.features.dtype == np.float16
        np.testing.assert_array_equal(batch.features[:, 0], 2 * batch.ids)
    failed = [one for batch in batches for one in batch.failures]
    corrupt = [one.id for one in failed if isinstance(one.error, SampleCorrupt)]
    assert corrupt == list(range(3, 150, 10))
    assert [one.id for one in failed if one.id not in corrupt] == [
        id for id in range(128, 150) if id % 10 != 3
    ]
    large = next(one for one in failed if one.id == 140)
    assert "its features are not finite numbers in half precision" in str(large.error)


def test_a_whole_batch_without_vectors_has_no_features() -> None:
    ids = np.arange(5)
    (batch,) = Gathering(lambda: Vectors(lambda id: True), 2, Crew(0, 0), rest=Squares()).run(ids, ids)
    assert batch.features.shape == (0, 3)


def test_values_at_a_cut_beyond_half_precision_are_told_as_such(data: hw.Dataset) -> None:
    made = replace(extraction(data, Colours(scale=1e6)), of=crossing_at("relu"))
    error = str(run(made, data)[0].failures[0].error)
    assert error.startswith("its values at the cut 'relu' are not finite numbers in half precision")
    assert error.endswith("(up to 65,504); cut elsewhere")
