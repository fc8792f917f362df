from __future__ import annotations

import numpy as np
import pytest

from headwater.data.pipeline import Pipeline
from headwater.data.steps.decode import Decode
from headwater.errors import SampleCorrupt, WrongUse
from pictures import exif, jpeg, open_pillow, photo, save


def test_a_file_becomes_pixels() -> None:
    data = jpeg(photo(30, 40))
    found = Decode().apply(np.frombuffer(data, np.uint8), ())
    assert np.array_equal(found, open_pillow(data))
    assert Decode("L").apply(np.frombuffer(data, np.uint8), ()).shape == (30, 40, 1)


def test_orientation_is_a_choice() -> None:
    data = np.frombuffer(save(photo(30, 40), "JPEG", exif=exif(6)), np.uint8)
    assert Decode().apply(data, ()).shape == (40, 30, 3)
    assert Decode(oriented=False).apply(data, ()).shape == (30, 40, 3)


def test_what_is_no_image_is_corrupt() -> None:
    with pytest.raises(SampleCorrupt, match="empty"):
        Decode().apply(np.empty(0, np.uint8), ())


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(WrongUse, match=r"CMYK.*RGB, L"):
        Decode("CMYK")
    with pytest.raises(WrongUse, match="oriented"):
        Decode(oriented=1)  # type: ignore[arg-type]


def test_it_is_exact_and_travels_as_data() -> None:
    chain = Pipeline((Decode("L", oriented=False),))
    assert chain.longest_prefix == 1
    again = Pipeline.from_spec(chain.spec(), {"decode": Decode})
    assert again == chain
    assert again.hash == chain.hash != Pipeline((Decode(),)).hash
