"""The transforms together: any cut of any pipeline gives the same bytes, on any kind of CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exact_steps import EXACT, digest, draw, run, undecoded
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from pictures import photo
from referee import v2

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
    pipeline, image = undecoded(samplewise + batchwise), photo(*size)
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
        "decode > random_area > resize(size=(224, 224)) > random_horizontal_flip"
        " | normalize(mean=(0.5,), std=(0.25,))"
    )


def test_the_names_are_those_of_torchvision():
    assert [name for name in T.__all__ if name != "Decode" and not hasattr(v2, name)] == []


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_exact_steps_give_the_same_bytes_on_any_kind_of_cpu(capability):
    assert all(step.exact for transform in EXACT for step in undecoded([transform]).steps)
    code = "from exact_steps import digest; print(digest())"
    environment = path_to_here() | {"ATEN_CPU_CAPABILITY": capability}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest()


def path_to_here():
    paths = [os.path.dirname(__file__), *(path for path in sys.path if path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def test_transforms_load_without_torch():
    code = "import sys, headwater.transforms; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], env=path_to_here(), timeout=60).returncode == 0
