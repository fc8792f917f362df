from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load, save

from graphs import are_same, make_tensors
from headwater.errors import ModelNotFound, ModelRefused
from headwater.models.version import DTYPES
from headwater.models.weights import MOST_HEADER_BYTES, dump, parse, read

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda n: n != "__metadata__")
TENSORS = st.dictionaries(
    NAMES,
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
    ),
    max_size=4,
)


def make_file(header: Any, values: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else msgspec.json.encode(header)
    return struct.pack("<Q", len(text)) + text + values


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@given(TENSORS)
def test_what_is_written_is_read(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    assert are_same(parse(memoryview(dump(tensors))), tensors)


@given(TENSORS)
def test_files_are_those_of_the_library(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    contiguous = {name: np.require(array, requirements="C") for name, array in tensors.items()}
    assert are_same(parse(memoryview(save(contiguous, {"format": "pt"}))), tensors)
    assert are_same(load(dump(tensors)), tensors)


def test_strides_do_not_matter() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"turned": array.T, "thinned": array[:, ::2], "swapped": array.astype(">f4")}
    assert are_same(parse(memoryview(dump(tensors))), tensors)


def test_a_file_is_mapped_and_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(dump({"large": np.zeros(4_000_000, np.float32), "small": np.ones(3, np.float32)}))
    tracemalloc.start()
    found = read(path)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 1_000_000
    assert not found["large"].flags.writeable
    path.unlink()
    assert found["small"].tolist() == [1, 1, 1]


def test_a_pickle_is_refused_by_name(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps({"weight": [1.0]}))
    for number, data in enumerate(
        [archive.getvalue(), *(pickle.dumps(make_tensors(), protocol) for protocol in (2, 3, 4, 5))]
    ):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(data)
        with pytest.raises(ModelRefused, match=f"{number}.pt: pickled content; save as safetensors"):
            read(path)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "header"),
        (b"\0" * 7, "header"),
        (struct.pack("<Q", 1 << 40) + b"{}", "1,099,511,627,776"),
        (struct.pack("<Q", MOST_HEADER_BYTES + 1) + b"{" + b" " * (MOST_HEADER_BYTES + 2), "16,777,217"),
        (struct.pack("<Q", 3) + b"{}", "no more than there are"),
        (make_file(b"[]"), "no JSON object"),
        (make_file(b"{"), "cannot be read"),
        (make_file(b'{"a": ' + b"[" * 100_000), "cannot be read"),
        (make_file({"a": {"dtype": "F32"}}), "cannot be read"),
        (make_file({"a": entry("F32", [1], 0, 4) | {"file": "/etc/passwd"}}, b"\0" * 4), "file"),
        (make_file({"a": entry("BF16", [1], 0, 2)}, b"\0" * 2), "BF16"),
        (make_file({"a": entry("F32", [-1], 0, 4)}, b"\0" * 4), "shape"),
        (make_file({"a": entry("F32", [2], 0, 4)}, b"\0" * 4), "'a'"),
        (make_file({"a": entry("F32", [1], 4, 8)}, b"\0" * 8), "'a'"),
        (make_file({"a": entry("F32", [1], 0, 4)}, b"\0" * 8), "8"),
        (make_file({"a": entry("F32", [1], 0, 4)}, b""), "0"),
        (make_file({"a": entry("F32", [1 << 62], 0, 1 << 64)}, b""), "18,446,744,073,709,551,616"),
        (make_file({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, b"\0" * 4), "'b'"),
        (make_file({"a": entry("F32", [1], -4, 0)}, b"\0" * 4), "'a'"),
        (make_file({"a": entry("F32", [0] + [1 << 40] * 40, 0, 0)}), "'a'"),
    ],
)
def test_what_is_no_file_of_weights_is_refused_by_name(data: bytes, named: str) -> None:
    with pytest.raises(ModelRefused, match=named):
        parse(memoryview(data))


def test_many_tensors_are_refused() -> None:
    header = {str(number): entry("U8", [0], 0, 0) for number in range(65_537)}
    with pytest.raises(ModelRefused, match="65,537 tensors"):
        parse(memoryview(make_file(header)))


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    data = dump(make_tensors())
    for length in range(len(data)):
        with pytest.raises(ModelRefused):
            parse(memoryview(data[:length]))


@given(st.data())
def test_mutated_files_are_refused_or_hold_what_their_header_says(data: st.DataObject) -> None:
    content = bytearray(dump(make_tensors()))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse(memoryview(bytes(content)))
    except ModelRefused:
        return
    assert sum(array.nbytes for array in found.values()) <= len(content)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.safetensors"):
        read(tmp_path / "none.safetensors")
    with pytest.raises(ModelNotFound, match="cannot read"):
        read(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(ModelRefused, match="empty"):
        read(tmp_path / "empty")
