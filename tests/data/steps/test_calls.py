"""A user's own function as a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwater.data.steps.calls import Call
from headwater.errors import WrongUse
from pictures import photo


def invert(image):
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    image.bitwise_not_()
    return image


class Doubler:
    def __call__(self, image):
        return np.repeat(image.permute(1, 2, 0).numpy(), 2, axis=0)


def test_the_function_gets_a_copy_that_it_may_change():
    image = photo(8, 9)[:, ::-1]
    before = image.copy()
    assert (Call.of(invert).apply(image, ()) == 255 - before).all()
    assert (image == before).all()


def test_an_object_that_can_be_called_may_return_an_array():
    assert Call.of(Doubler()).apply(photo(8, 9), ()).shape == (16, 9, 3)


def test_it_is_described_by_where_it_was_defined():
    assert Call.of(invert).function.endswith("test_calls.invert")
    assert Call.of(Doubler()).function.endswith("test_calls.Doubler")
    assert Call.of(invert) == Call.of(invert)
    assert hash(Call.of(invert)) == hash(Call.of(invert))


@pytest.mark.parametrize("result", [None, 3, torch.zeros(4, 4), np.zeros((2, 3, 4, 5))], ids=str)
def test_a_result_that_is_no_image_is_refused(result):
    with pytest.raises(WrongUse, match="must return a tensor"):
        Call.of(lambda image: result).apply(photo(8, 9), ())


def test_a_name_alone_does_not_run():
    with pytest.raises(WrongUse, match=r"os\.remove is only a name here"):
        Call("os.remove").apply(photo(8, 9), ())


def test_what_cannot_be_called_is_refused():
    with pytest.raises(WrongUse, match="neither a transform nor callable"):
        Call.of(17)
