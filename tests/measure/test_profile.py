"""The profile: what is exact, what is learned from few samples, and what it makes of the unknown."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwater import transforms as T
from headwater.data.codecs.excerpts import EXCERPTS, excerpt_names
from headwater.data.image import read_header
from headwater.data.image.excerpt import excerpt
from headwater.data.pipeline import Pipeline
from headwater.data.synthetic import make_photos
from headwater.engine.chain import Chain
from headwater.errors import WrongUse
from headwater.measure import profile as module
from headwater.measure.profile import Predicted, Profile, Seen
from headwater.plan.offload import Offload, Options

SEED = 17
TRAINING = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip()])
CUTS = [(cut, "none") for cut in range(5)]
WAYS = [*CUTS, (3, "zstd"), *[(2, name) for name in EXCERPTS]]
JPEG = WAYS.index((2, "jpeg"))
LEAST = 8


@dataclass
class Lot:
    """Where a chain puts what it makes."""

    ids: NDArray[np.int64]
    epoch: int
    made: dict[int, Any] = field(default_factory=dict)

    def emit(self, place: int, image: Any) -> None:
        self.made[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        raise error


@cache
def photos() -> list[bytes]:
    return list(make_photos(np.arange(40), classes=4, seed=5))


def ids_of(count: int) -> NDArray[np.int64]:
    return np.arange(count) * 7919 + 11


def sizes_of(files: list[bytes]) -> NDArray[np.int32]:
    return np.array([read_header(file).size() for file in files], np.int32)


def lengths_of(files: list[bytes]) -> NDArray[np.int64]:
    return np.array([len(file) for file in files], np.int64)


def seen_of(way: int, **columns: Any) -> Seen:
    """As many samples as there are positions, all of one way unless the columns say otherwise."""
    positions = np.asarray(columns.pop("positions", np.arange(LEAST)))
    count = len(positions)
    given = {
        "positions": positions,
        "ids": positions * 7919 + 11,
        "epoch": 0,
        "ways": np.full(count, way, np.uint8),
        "done": np.ones(count, np.bool_),
        "bytes": np.full(count, 40_000),
        "store_seconds": np.full(count, 0.002 if way else 0.0, np.float32),
        "trainer_seconds": np.full(count, 0.001, np.float32),
        "sizes": np.tile(np.array([400, 500], np.int32), (count, 1)),
        "able": np.ones(count, np.bool_),
        "file_bytes": np.full(count, 100_000),
    }
    return Seen(**given | columns)


def profile_of(
    pipeline: Pipeline = TRAINING, ways: list[tuple[int, str]] = WAYS, samples: int = 1000
) -> Profile:
    return Profile(pipeline, ways, samples=samples, seed=SEED)


def familiar(pipeline: Pipeline, ways: list[tuple[int, str]], files: list[bytes]) -> Profile:
    """One that has seen these files, each way once."""
    found = profile_of(pipeline, ways)
    for way in range(len(ways)):
        found.add(
            seen_of(way, positions=np.arange(len(files)), sizes=sizes_of(files), file_bytes=lengths_of(files))
        )
    return found


def predict(
    profile: Profile, count: int = 20, *, start: int = 0, length: int = 100_000, epoch: int = 1
) -> Predicted:
    positions = np.arange(start, start + count)
    return profile.predict(positions, positions * 7919 + 11, np.full(count, length), epoch=epoch)


# what is exact


PIPELINES = {
    "training": TRAINING,
    "validation": T.Compose([T.Resize(256), T.CenterCrop(224)]),
    "grey": T.Compose([T.Decode(mode="L"), T.RandomResizedCrop(96), T.RandomVerticalFlip()]),
    "padded": T.Compose([T.RandomCrop(200, padding=8), T.Resize((64, 80))]),
    "whole": T.Compose([T.Resize(128)]),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_bytes_of_pixels_are_those_of_real_images(name: str) -> None:
    pipeline, files, epoch = PIPELINES[name], photos()[:12], 3
    ways = [(cut, "none") for cut in range(len(pipeline) + 1)]
    profile = familiar(pipeline, ways, files)
    found = profile.predict(np.arange(12), ids_of(12), lengths_of(files), epoch=epoch)
    for cut, _ in ways[1:]:
        lot = Lot(ids_of(12), epoch)
        Chain(pipeline.cut(cut)[0], SEED).run(files, lot)
        assert found.bytes[:, cut].tolist() == [lot.made[place].nbytes for place in range(12)]


def test_the_file_is_as_long_as_it_is_and_costs_the_store_nothing() -> None:
    files = photos()[:12]
    found = familiar(TRAINING, WAYS, files).predict(np.arange(12), ids_of(12), lengths_of(files), epoch=1)
    assert found.bytes[:, 0].tolist() == lengths_of(files).tolist()
    assert not found.store_seconds[:, 0].any()
    assert found.store_seconds[:, 1:].all()
    assert found.trainer_seconds.all()


def test_every_epoch_has_its_own_crops() -> None:
    profile = familiar(TRAINING, WAYS, photos()[:12])
    crops = [predict(profile, 12, epoch=epoch).bytes[:, 2] for epoch in (1, 2, 1)]
    assert np.array_equal(crops[0], crops[2])
    assert not np.array_equal(crops[0], crops[1])


# what is learned


def cut_files(files: list[bytes], codec: str, epoch: int) -> NDArray[np.int64]:
    """Bytes of the excerpts of these photos."""
    lot, lengths = Lot(ids_of(len(files)), epoch), []
    for place, header, _, box in Chain(TRAINING, SEED).locate(files, lot):
        assert box is not None
        made = excerpt(files[place], header, box, form=EXCERPTS[codec])
        lengths.append(len(files[place]) if made is None else len(made))
    return np.array(lengths, np.int64)


@pytest.mark.skipif("jpeg_progressive" not in excerpt_names(), reason="no library that cuts JPEG files")
def test_a_few_photos_tell_how_long_parts_of_others_are() -> None:
    files, profile = photos(), profile_of()
    for codec, rows in (("jpeg", np.arange(0, 20)), ("jpeg_progressive", np.arange(20, 30))):
        profile.add(
            seen_of(
                WAYS.index((2, codec)),
                positions=rows,
                bytes=cut_files(files, codec, 0)[rows],
                sizes=sizes_of(files)[rows],
                file_bytes=lengths_of(files)[rows],
            )
        )
    found = profile.predict(np.arange(30), ids_of(30), lengths_of(files)[:30], epoch=4)
    for codec in ("jpeg", "jpeg_progressive"):
        true, way = cut_files(files, codec, 4)[:30], WAYS.index((2, codec))
        assert found.bytes[:, way].sum() == pytest.approx(true.sum(), rel=0.1)
        assert np.median(np.abs(found.bytes[:, way] / true - 1)) < 0.2


def test_a_part_is_not_longer_than_the_file_nor_packed_pixels_than_pixels() -> None:
    profile = profile_of()
    for way in range(len(WAYS)):
        profile.add(seen_of(way, bytes=np.full(LEAST, 10_000_000)))
    found = predict(profile)
    assert found.bytes[:, JPEG:].max() == 100_000
    assert found.bytes[:, WAYS.index((3, "zstd"))].max() == 224 * 224 * 3


def test_codecs_of_a_kind_learn_from_each_other() -> None:
    alone, together = profile_of(), profile_of()
    few, many = np.arange(LEAST), np.arange(LEAST, 300)
    progressive = WAYS.index((2, "jpeg_progressive"))
    for profile in (alone, together):
        profile.add(seen_of(progressive, positions=few, bytes=np.full(LEAST, 60_000)))
    together.add(seen_of(JPEG, positions=many, bytes=np.full(len(many), 20_000)))
    assert (predict(together).bytes[:, progressive] < predict(alone).bytes[:, progressive]).all()
    # a great many of its own say more than any kin
    own = np.arange(300, 1000)
    together.add(seen_of(progressive, positions=own, bytes=np.full(len(own), 60_000)))
    alone.add(seen_of(progressive, positions=own, bytes=np.full(len(own), 60_000)))
    ratio = predict(together).bytes[:, progressive] / predict(alone).bytes[:, progressive]
    assert np.median(ratio) == pytest.approx(1, abs=0.06)


def test_seconds_follow_what_is_to_be_done() -> None:
    rng = np.random.default_rng(0)
    lengths, profile = rng.integers(20_000, 300_000, 400), profile_of()
    profile.add(
        seen_of(
            JPEG,
            positions=np.arange(400),
            file_bytes=lengths,
            store_seconds=(1e-4 + lengths * 2e-8).astype(np.float32),
        )
    )
    found = profile.predict(np.arange(400), ids_of(400), lengths, epoch=1)
    assert found.store_seconds[:, JPEG] == pytest.approx(1e-4 + lengths * 2e-8, rel=0.1)


@pytest.mark.parametrize("wild", [[0, 1, 2], [40], [90, 91]])
def test_huge_seconds_hardly_matter(wild: list[int]) -> None:
    calm, spoilt = profile_of(), profile_of()
    seconds = np.full(100, 0.002, np.float32)
    outliers = seconds.copy()
    outliers[wild] = 3.0
    for profile, column in ((calm, seconds), (spoilt, outliers)):
        for begin in range(0, 100, 5):
            rows = slice(begin, begin + 5)
            lot = seen_of(
                JPEG,
                positions=np.arange(100)[rows],
                store_seconds=column[rows],
                trainer_seconds=column[rows],
            )
            profile.add(lot)
    for name in ("store_seconds", "trainer_seconds"):
        one, other = (getattr(predict(profile), name)[:, JPEG] for profile in (calm, spoilt))
        assert np.median(other / one) == pytest.approx(1, abs=0.25)


# what is not known


def test_a_way_that_was_hardly_seen_is_no_way() -> None:
    profile = profile_of()
    profile.add(seen_of(3, positions=np.arange(LEAST - 1)))
    assert profile.counts().tolist() == [0, 0, 0, LEAST - 1, 0, *[0] * 5]
    found = predict(profile)
    assert np.isinf(found.bytes[:, 1:]).all()
    assert np.isfinite(found.bytes[:, 0]).all()
    assert not found.store_seconds.any()
    profile.add(seen_of(3, positions=np.array([50])))
    assert np.isfinite(predict(profile).bytes).all(axis=0).tolist() == [
        True,
        False,
        False,
        True,
        *[False] * 6,
    ]


def test_what_was_pushed_back_came_as_a_file() -> None:
    profile = profile_of()
    pushed = np.zeros(LEAST, np.bool_)
    profile.add(
        seen_of(JPEG, done=pushed, bytes=np.full(LEAST, 100_000), trainer_seconds=np.full(LEAST, 0.5))
    )
    assert profile.counts()[[0, JPEG]].tolist() == [LEAST, 0]
    found = predict(profile)
    assert np.isinf(found.bytes[:, JPEG]).all()
    assert found.trainer_seconds[:, 0] == pytest.approx(0.5, rel=0.2)


def test_ways_that_a_pipeline_does_not_have_are_never_offered() -> None:
    pipeline = T.Compose([T.Resize(128), lambda image: image, T.RandomHorizontalFlip()])
    ways = [
        (0, "none"),
        (1, "none"),
        (2, "none"),
        (3, "none"),
        (4, "none"),
        (3, "zstd"),
        (2, "jpeg"),
        (0, "zstd"),
    ]
    profile = profile_of(pipeline, ways)
    for way in range(len(ways)):
        profile.add(seen_of(way))
    assert np.isfinite(predict(profile).bytes).all(axis=0).tolist() == [True, True, True, *[False] * 5]


def test_a_pipeline_that_begins_with_an_opaque_step_or_has_none_has_only_files() -> None:
    for pipeline in (Pipeline(()), T.Compose([T.RandomHorizontalFlip()]).cut(1)[1]):
        profile = profile_of(pipeline, [(0, "none"), (1, "none")])
        profile.add(seen_of(0))
        profile.add(seen_of(1))
        assert np.isfinite(predict(profile).bytes).all(axis=0).tolist() == [True, False]


def test_sizes_of_others_are_guessed_from_those_that_were_seen() -> None:
    rng = np.random.default_rng(1)
    width = rng.integers(300, 900, 200)
    sizes = np.stack([width * 3 // 4, width], axis=1).astype(np.int32)
    lengths = sizes.astype(np.int64).prod(axis=1) // 2
    profile = profile_of()
    for way in (0, 1, 4):
        profile.add(seen_of(way, positions=np.arange(200), sizes=sizes, file_bytes=lengths))
    true = np.array([[450, 600], [600, 800]])
    found = profile.predict(np.array([500, 501]), ids_of(2), true.prod(axis=1) // 2, epoch=1)
    assert found.bytes[:, 1] == pytest.approx(true.prod(axis=1) * 3, rel=0.1)
    assert found.bytes[:, 4].tolist() == [224 * 224 * 3] * 2


def test_nothing_at_all_is_known_of_a_new_dataset() -> None:
    found = predict(profile_of(), length=0)
    assert np.isfinite(found.bytes[:, 0]).all()
    assert found.bytes[:, 0].min() > 0
    assert not found.trainer_seconds.any()


@pytest.mark.parametrize("edge", [0, 65_536, 2**31 - 1])
def test_sizes_that_cannot_be_kept_stay_unknown(edge: int) -> None:
    profile = profile_of()
    profile.add(seen_of(1, sizes=np.tile(np.array([edge, 100], np.int32), (LEAST, 1))))
    profile.add(seen_of(1, positions=np.arange(100, 150)))
    assert predict(profile).bytes[:LEAST, 1] == pytest.approx(400 * 500 * 3, rel=0.05)


def test_lengths_that_nobody_tells_are_learned_from_what_comes() -> None:
    rng = np.random.default_rng(2)
    lengths, profile = rng.integers(40_000, 200_000, 200), profile_of()
    unknown = np.zeros(200, np.int64)
    profile.add(
        seen_of(0, positions=np.arange(200, 300), bytes=np.full(100, 120_000), file_bytes=unknown[:100])
    )
    raw = predict(profile, 20, length=0).bytes[:, 0]
    assert raw == pytest.approx(120_000, rel=0.01)
    assert predict(profile, 20, start=200, length=0).bytes[:, 0].tolist() == [120_000] * 20
    for epoch in range(4):
        boxes = TRAINING.draw(ids_of(200), np.tile([400, 500], (200, 1)), seed=SEED, epoch=epoch)[1]
        share = (boxes[:, 2] + 16) * (boxes[:, 3] + 16) / 200_000
        parts = np.minimum(lengths * share, lengths).astype(np.int64)
        profile.add(seen_of(JPEG, positions=np.arange(200), epoch=epoch, bytes=parts, file_bytes=unknown))
    found = profile.predict(np.arange(200), ids_of(200), unknown, epoch=9).bytes[:, 0]
    assert np.corrcoef(found, lengths)[0, 1] > 0.9
    assert profile.file_bytes(np.arange(200), unknown) == pytest.approx(found)
    assert profile.file_bytes(np.arange(200), lengths).tolist() == lengths.tolist()


def test_seconds_that_are_no_number_are_passed_over() -> None:
    profile, bad = profile_of(), np.full(LEAST, 0.002, np.float32)
    bad[:3] = np.nan, np.inf, -np.inf
    profile.add(seen_of(JPEG, store_seconds=bad))
    profile.add(seen_of(0, trainer_seconds=bad))
    assert profile.counts()[[0, JPEG]].tolist() == [LEAST - 3] * 2


def test_a_crop_that_does_not_fit_is_no_reason_to_fail() -> None:
    pipeline = T.Compose([T.RandomCrop(300)])
    profile = profile_of(pipeline, [(0, "none"), (2, "none"), (2, "jpeg"), (2, "zstd")])
    for way in range(4):
        profile.add(seen_of(way, sizes=np.tile(np.array([10, 2000], np.int32), (LEAST, 1))))
    found = predict(profile, LEAST)
    assert np.isfinite(found.bytes).all()
    assert found.bytes[:, 1].tolist() == [300 * 300 * 3] * LEAST


def test_no_samples_are_no_news() -> None:
    profile = profile_of()
    profile.add(seen_of(1, positions=np.arange(0), sizes=np.zeros((0, 2), np.int32)))
    assert not profile.counts().any()
    assert predict(profile, 0).bytes.shape == (0, len(WAYS))


# stored, in blocks, and at random


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = familiar(TRAINING, WAYS, photos()[:12])
    whole = predict(profile, 50)
    monkeypatch.setattr(module, "_BLOCK", 7)
    parts = predict(profile, 50)
    for name in ("bytes", "store_seconds", "trainer_seconds"):
        one, other = getattr(whole, name), getattr(parts, name)
        assert one == pytest.approx(other, rel=1e-6)
        assert one.dtype == np.float32


def random_seen(rng: np.random.Generator, count: int, ways: int) -> Seen:
    """Anything that may come, also from a store that is odd."""
    size = rng.choice([0, 1, 40, 500, 70_000], (count, 2)).astype(np.int32)
    return seen_of(
        0,
        positions=rng.integers(0, 200, count),
        epoch=int(rng.integers(0, 3)),
        ways=rng.integers(0, ways, count).astype(np.uint8),
        done=rng.random(count) < 0.8,
        bytes=rng.choice([0, 1, 3000, 10**6, 10**9], count),
        store_seconds=rng.choice([0, 1e-6, 1e-3, 100, np.nan], count).astype(np.float32),
        trainer_seconds=rng.choice([0, 1e-6, 1e-3, 1e30], count).astype(np.float32),
        sizes=size,
        file_bytes=rng.choice([0, 1, 50_000, 10**9], count),
    )


@given(seed=st.integers(0, 2**32 - 1), name=st.sampled_from(list(PIPELINES)))
@settings(max_examples=40, deadline=None)
def test_whatever_comes_the_predictions_are_options(seed: int, name: str) -> None:
    rng, pipeline = np.random.default_rng(seed), PIPELINES[name]
    profile = profile_of(pipeline)
    for _ in range(4):
        profile.add(random_seen(rng, int(rng.integers(1, 60)), len(WAYS)))
    found = profile.predict(np.arange(200), ids_of(200), rng.choice([0, 1, 10**5, 10**9], 200), epoch=2)
    ways = tuple(Offload(cut, codec) for cut, codec in WAYS)
    Options(ways, found.bytes, found.store_seconds, found.trainer_seconds)
    again = Profile.from_dict(json.loads(json.dumps(profile.to_dict())), pipeline, samples=1000, seed=SEED)
    assert again.to_dict() == profile.to_dict()


def test_stored_and_read_it_predicts_the_same() -> None:
    profile = familiar(TRAINING, WAYS, photos()[:12])
    content = json.loads(json.dumps(profile.to_dict()))
    again = Profile.from_dict(content, TRAINING, samples=1000, seed=SEED)
    assert again.counts().tolist() == profile.counts().tolist()
    one, other = (predict(some, start=500) for some in (profile, again))
    for name in ("bytes", "store_seconds", "trainer_seconds"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_what_is_no_stored_profile_is_refused() -> None:
    content = profile_of().to_dict()
    for damaged in (
        {},
        {"ways": 3},
        {"ways": content["ways"]},
        content | {"sources": {}},
        {"ways": [{"cut": 0}]},
    ):
        with pytest.raises(WrongUse, match="no stored profile"):
            Profile.from_dict(damaged, TRAINING, samples=10, seed=0)
    content["ways"][1]["trainer"]["mean"] = [1.0]
    with pytest.raises(WrongUse, match="damaged"):
        Profile.from_dict(content, TRAINING, samples=10, seed=0)


@pytest.mark.parametrize("ways", [[], [(1, "none")], [(0, "zstd"), (0, "none")]])
def test_the_first_way_is_the_file(ways: list[tuple[int, str]]) -> None:
    with pytest.raises(WrongUse, match="the first must be the file"):
        profile_of(TRAINING, ways)
