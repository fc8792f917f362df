"""The transforms together: any cut of any pipeline gives the same bytes, on any kind of CPU."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referee import picture

from headwater import transforms as T  # noqa: N812
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue

EXACT = [
    T.RandomResizedCrop(16),
    T.RandomResizedCrop((12, 20), interpolation="bicubic"),
    T.RandomCrop(18, padding=4, pad_if_needed=True),
    T.RandomCrop(18, pad_if_needed=True, padding_mode="reflect"),
    T.CenterCrop((14, 30)),
    T.Resize(21),
    T.Resize((30, 13), antialias=False),
    T.Resize((30, 13), "nearest"),
    T.Pad((1, 2, 3, 4), fill=(9, 8, 7)),
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(),
]
FLOAT = [
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomGrayscale(0.5),
    T.TrivialAugmentWide(),
    T.GaussianBlur(3),
]
BATCH = [
    T.ToDtype("float32", scale=True),
    T.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)),
    T.RandomErasing(0.8),
]


def undecoded(transforms):
    """Without decoding: these tests begin with pixels."""
    return Pipeline(T.Compose(transforms).steps[1:], 1)


def draw(pipeline, ids, sizes):
    return pipeline.draw(np.asarray(ids), np.asarray(sizes), seed=11, epoch=2)


def run(pipeline, image, rows):
    for step, row in zip(pipeline.steps, rows, strict=True):
        image = step.apply(image, row)
    return image


def cross(image):
    """As over the wire: bytes, and back to an array that nobody may write to."""
    packed = np.ascontiguousarray(image)
    return np.frombuffer(packed.tobytes(), packed.dtype).reshape(packed.shape)


@given(
    st.lists(st.sampled_from(EXACT + FLOAT), max_size=4),
    st.lists(st.sampled_from(BATCH), max_size=2),
    st.tuples(st.integers(15, 50), st.integers(15, 50)),
    st.integers(0, 2**63 - 1),
)
@settings(max_examples=60, deadline=None)
def test_split_equals_whole_at_every_cut(samplewise, batchwise, size, id):
    pipeline, image = undecoded(samplewise + batchwise), picture(*size)
    rows = [row[0].tolist() for row in draw(pipeline, [id], [size])]
    whole = run(pipeline, image, rows)
    for at in range(len(pipeline) + 1):
        before, after = pipeline.cut(at)
        crossed = cross(run(before, image, rows[:at]))
        again = draw(after, [id], [crossed.shape[:2]])
        made = run(after, crossed, [row[0].tolist() for row in again])
        assert made.dtype == whole.dtype
        assert np.ascontiguousarray(made).tobytes() == np.ascontiguousarray(whole).tobytes()


@given(st.lists(st.sampled_from(EXACT + FLOAT + BATCH), max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_pipeline_survives_json(transforms):
    pipeline = T.Compose(transforms)
    again = Pipeline.from_spec(msgspec.json.decode(msgspec.json.encode(pipeline.spec())), catalogue())
    assert again == pipeline
    assert again.hash == pipeline.hash


@given(
    st.lists(st.sampled_from(EXACT + FLOAT + BATCH), max_size=5),
    st.permutations(range(12)),
    st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_any_list_of_ids_draws_the_same(transforms, order, count):
    pipeline = T.Compose(transforms)
    ids, sizes = np.arange(12) * 7_777_777, np.stack((np.arange(12) + 30, 50 - np.arange(12)), axis=1)
    chosen = np.array(order[:count])
    for whole, some in zip(
        draw(pipeline, ids, sizes), draw(pipeline, ids[chosen], sizes[chosen]), strict=True
    ):
        assert (whole[chosen] == some).all()


def test_seed_epoch_and_place_in_the_chain_change_the_draws():
    pipeline, ids, sizes = T.Compose([T.RandomResizedCrop(8)]), np.arange(50), np.full((50, 2), 100)
    base = pipeline.draw(ids, sizes, seed=1, epoch=1)[1]
    assert (pipeline.draw(ids, sizes, seed=1, epoch=1)[1] == base).all()
    later = T.Compose([T.RandomHorizontalFlip(), T.RandomResizedCrop(8)]).draw(ids, sizes, seed=1, epoch=1)[2]
    for other in (
        pipeline.draw(ids, sizes, seed=2, epoch=1)[1],
        pipeline.draw(ids, sizes, seed=1, epoch=2)[1],
        later,
    ):
        assert (other != base).any(axis=1).mean() > 0.9


def test_a_pipeline_reads_as_it_was_written():
    pipeline = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize([0.5], [0.25])])
    assert str(pipeline) == (
        "decode > random_area > resize(size=(224, 224)) > random_horizontal_flip | normalize(mean=(0.5,), std=(0.25,))"
    )


def test_the_names_are_those_of_torchvision():
    from referee import v2

    assert [name for name in T.__all__ if name != "Decode" and not hasattr(v2, name)] == []


def exact_digest() -> str:
    """A digest of what every exact transform makes of some pictures."""
    digest = hashlib.sha256()
    for channels in (1, 3):
        for number, transform in enumerate(EXACT):
            if channels == 1 and transform == EXACT[8]:
                continue  # a fill of three colours
            pipeline, image = undecoded([transform]), picture(61, 83, channels=channels, seed=number)
            rows = [row[0].tolist() for row in draw(pipeline, [number], [image.shape[:2]])]
            assert all(step.exact for step in pipeline.steps)
            digest.update(np.ascontiguousarray(run(pipeline, image, rows)).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_exact_steps_give_the_same_bytes_on_any_kind_of_cpu(capability):
    environment = os.environ | {
        "ATEN_CPU_CAPABILITY": capability,
        "PYTHONPATH": os.pathsep.join(path for path in [os.path.dirname(__file__), *sys.path] if path),
    }
    command = [sys.executable, "-c", "import test_transforms; print(test_transforms.exact_digest())"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == exact_digest()


def test_transforms_load_without_torch():
    code = "import sys, headwater.transforms; assert 'torch' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == 0
