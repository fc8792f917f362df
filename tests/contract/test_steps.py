"""What every step that can be sent promises, whichever it is."""

from __future__ import annotations

import dataclasses
import io

import msgspec
import numpy as np
import pytest
from PIL import Image

from headwater.data.pipeline import Pipeline, describe
from headwater.data.randomness import Draws
from headwater.data.steps import catalogue
from headwater.data.steps.base import BatchStep
from headwater.data.steps.decode import Decode
from headwater.data.steps.mix import MixStep
from pictures import photo

EXAMPLES = {
    "decode": [{}, {"mode": "L"}],
    "random_area": [{}, {"scale": (0.5, 1.0), "ratio": (0.2, 4.0)}],
    "random_box": [{"size": (9, 8)}],
    "central_box": [{"size": (9, 8)}],
    "pad": [{"padding": 3}, {"padding": (1, 2, 3, 4), "fill": (1, 2, 3), "padding_mode": "reflect"}],
    "pad_to_fit": [{"size": (64, 20)}, {"size": (64, 20), "padding": (1, 1, 1, 1), "whole": True}],
    "resize": [{"size": (9, 8)}, {"size": 9}, {"size": 9, "max_size": 10, "interpolation": "nearest"}],
    "random_horizontal_flip": [{}, {"p": 1.0}],
    "random_vertical_flip": [{}],
    "thumbnail": [{}, {"edge": 7}],
    "color_jitter": [{"brightness": 0.4, "contrast": (0.5, 1.0), "saturation": 0.4, "hue": 0.1}, {}],
    "grayscale": [{}, {"num_output_channels": 3}],
    "random_grayscale": [{"p": 0.5}],
    "gaussian_blur": [{"kernel_size": 5}, {"kernel_size": (3, 7), "sigma": 0.5}],
    "trivial_augment_wide": [{}, {"interpolation": "bilinear", "fill": 9}],
    "to_dtype": [{"dtype": "float32", "scale": True}, {}],
    "normalize": [{"mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3)}],
    "random_erasing": [{}, {"p": 1, "value": "random"}, {"value": (1, 2, 3)}],
    "mixup": [{"num_classes": 3}, {"alpha": 0.2}],
    "cutmix": [{"num_classes": 3}],
}
STEPS = [kind(**arguments) for name, kind in sorted(catalogue().items()) for arguments in EXAMPLES[name]]
IDS = np.arange(40, dtype=np.int64) * 1_000_003
SIZES = np.stack((20 + np.arange(40) % 7, 18 + np.arange(40) % 11), axis=1)

every_step = pytest.mark.parametrize("step", STEPS, ids=describe)
# A mix needs two samples: tests/data/steps/test_mix.py.
of_one_sample = pytest.mark.parametrize(
    "step", [step for step in STEPS if not isinstance(step, MixStep)], ids=describe
)
of_pixels = pytest.mark.parametrize(
    "step", [step for step in STEPS if not isinstance(step, MixStep | Decode)], ids=describe
)


def draw(step, ids=IDS, sizes=SIZES):
    return step.draw(Draws.of(ids, seed=5, epoch=1, step=2), sizes)


def sample(step, height, width):
    image = photo(height, width)
    if step.name != "decode":
        return image
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


@every_step
def test_it_is_a_frozen_value(step):
    field = dataclasses.fields(step)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(step, field, getattr(step, field))
    assert step == dataclasses.replace(step)
    assert hash(step) == hash(dataclasses.replace(step))


@every_step
def test_its_name_is_its_key(step):
    assert catalogue()[step.name] is type(step)


@every_step
def test_it_survives_json(step):
    pipeline = Pipeline((step,), 3)
    spec = msgspec.json.decode(msgspec.json.encode(pipeline.spec()))
    again = Pipeline.from_spec(spec, catalogue(), offset=3)
    assert again == pipeline
    assert again.hash == pipeline.hash
    assert str(again) == str(pipeline)


@every_step
def test_it_draws_a_row_of_finite_numbers_per_sample(step):
    rows = draw(step)
    assert rows.dtype == np.float64
    assert rows.shape[0] == len(IDS)
    assert rows.ndim == 2
    assert np.isfinite(rows).all()
    assert draw(step, IDS[:0], SIZES[:0]).shape == (0, rows.shape[1])


@every_step
def test_a_subset_draws_what_the_whole_draws(step):
    chosen = np.array([31, 4, 4, 0, 39])
    assert (draw(step, IDS[chosen], SIZES[chosen]) == draw(step)[chosen]).all()


@of_one_sample
def test_its_size_is_known_before_it_runs_and_its_input_stays(step):
    rows = draw(step)
    sizes = step.out_sizes(SIZES, rows)
    assert sizes.shape == SIZES.shape
    for position in range(0, 40, 3):
        image = sample(step, *SIZES[position])
        before = image.copy()
        made = step.apply(image, rows[position].tolist())
        assert made.shape[:2] == tuple(sizes[position])
        assert (image == before).all()
        if step.exact:
            assert made.dtype == np.uint8


@of_pixels
def test_views_and_read_only_images_give_the_same(step):
    image = photo(*SIZES[0])
    mirrored = image[::-1, ::-1].copy()[::-1, ::-1]
    frozen = image.copy()
    frozen.flags.writeable = False
    row = draw(step)[0].tolist()
    expected = step.apply(image, row)
    assert (step.apply(mirrored, row) == expected).all()
    assert (step.apply(frozen, row) == expected).all()


@of_one_sample
def test_a_row_may_be_a_list_or_an_array(step):
    row, image = draw(step)[0], sample(step, *SIZES[0])
    assert (step.apply(image, row) == step.apply(image, row.tolist())).all()


@every_step
def test_only_sample_steps_are_exact(step):
    assert not (step.exact and isinstance(step, BatchStep))
    assert not (step.crops and draw(step).shape[1] != 4)


class Nothing:
    """Draws of which nothing can be asked but how many there are."""

    def __len__(self):
        return len(IDS)


@of_one_sample
def test_it_is_steady_if_it_draws_nothing(step):
    if step.steady:
        rows = step.draw(Nothing(), SIZES)
        assert (rows == draw(step)).all()
    else:
        with pytest.raises(AttributeError):
            step.draw(Nothing(), SIZES)


def test_a_mix_is_never_steady():
    assert not any(step.steady for step in STEPS if isinstance(step, MixStep))
