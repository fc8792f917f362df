from __future__ import annotations

import sys

import numpy as np
import pytest

from headwater.data.image import read_header, turbojpeg
from headwater.data.image.header import Data
from pictures import SUBSAMPLINGS, jpeg, photo, progressive, save

modern = pytest.mark.skipif(turbojpeg.load() is None, reason="no library with the TurboJPEG 3 calls")


@pytest.mark.skipif(sys.platform != "linux", reason="names a library of Linux")
@pytest.mark.parametrize("old", [False, True])
def test_a_library_that_is_absent_or_lacks_the_calls_is_passed_over(old: bool) -> None:
    assert turbojpeg.load_first([], old=old) is None
    assert turbojpeg.load_first(["libabsent-turbojpeg.so.9", "libc.so.6"], old=old) is None


def cut(
    transformer: turbojpeg.Transformer | turbojpeg.OldTransformer | None, data: Data, options: int = 0
) -> bytes | None:
    assert transformer is not None
    return transformer.cut(data, corner=(16, 32), size=(32, 32), options=options, scans=10)


@modern
@pytest.mark.parametrize("options", [0, turbojpeg.PROGRESSIVE])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_old_calls_and_new_ones_cut_the_same_bytes(subsampling: str, options: int) -> None:
    library = turbojpeg.load_old()
    assert library is not None
    old, data = turbojpeg.OldTransformer(library), jpeg(photo(66, 97), subsampling)
    made = cut(old, data, options)
    assert made is not None
    assert made == cut(turbojpeg.transformer(), data, options)
    assert read_header(made).size() == (32, 32)


@modern
def test_both_refuse_what_is_damaged_or_off_the_grid() -> None:
    library = turbojpeg.load_old()
    assert library is not None
    data = jpeg(photo(66, 97))
    for transformer in (turbojpeg.OldTransformer(library), turbojpeg.transformer()):
        assert cut(transformer, data) is not None
        assert cut(transformer, data[:-100]) is None
        assert cut(transformer, data[100:]) is None
        assert transformer is not None
        assert transformer.cut(data, corner=(8, 8), size=(32, 32), options=0, scans=1) is None
        assert transformer.cut(data, corner=(64, 96), size=(16, 16), options=0, scans=1) is None


@modern
def test_a_cap_on_scans_holds() -> None:
    transformer, data = turbojpeg.transformer(), progressive(photo(64, 64))
    assert transformer is not None
    for scans in (1, 9):
        assert transformer.cut(data, corner=(0, 0), size=(16, 16), options=0, scans=scans) is None
    assert transformer.cut(data, corner=(0, 0), size=(16, 16), options=0, scans=10) is not None


@modern
def test_a_decoder_forgets_the_tables_of_the_file_before() -> None:
    first = save(photo(32, 32, channels=1), "JPEG", quality=30)
    tables = first.index(b"\xff\xdb")
    second = first[:tables] + first[tables + 69 :]
    decoder, pixels = turbojpeg.decoder(), np.empty((32, 32, 1), np.uint8)
    assert decoder is not None
    for data, wanted in ((first, True), (second, False)):
        done = decoder.decode(data, pixels, corner=(0, 0), size=(32, 32), form=turbojpeg.GREY)
        assert done is wanted
