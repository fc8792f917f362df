from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from graphs import are_same, facts_of, make_tensors
from headwater.errors import ModelRefused
from headwater.models.coding import CODINGS, largest_change
from headwater.models.delta import MAGIC, Entry, apply, approximate, decode, encode, read_entries
from headwater.models.version import DTYPES, ModelVersion, TensorFacts, digest_of, seal

DIGEST = "0" * 32
SHAPES = arrays.array_shapes(min_dims=0, min_side=0, max_side=5)
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, SHAPES))
TENSORS = st.dictionaries(st.sampled_from(["trunk/a", "trunk/b", "head/c", "head/d"]), ARRAYS)


def describe(tensors: dict[str, NDArray[Any]]) -> ModelVersion:
    """A manifest for tensors."""
    graphs = {"trunk": DIGEST}
    return seal(ModelVersion("", "birds", None, {}, graphs, facts_of(tensors), (), (), 1, ""))


def nudge(array: NDArray[Any], share: float, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    return (array * (1 + share * rng.normal(size=array.shape))).astype(array.dtype)


def weights(count: int = 20_000, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=0.05, size=(count // 100, 100)).astype(np.float32)


def assemble(entries: list[tuple[str, str, Any]], payload: bytes, *, header: bytes | None = None) -> bytes:
    """A delta of any content that ends with the right digest."""
    text = msgspec.msgpack.encode(entries) if header is None else header
    body = MAGIC + len(text).to_bytes(4, "little") + text + payload
    return body + bytes.fromhex(digest_of(body))


@given(old=TENSORS, new=TENSORS)
def test_what_is_encoded_is_decoded(old: dict[str, NDArray[Any]], new: dict[str, NDArray[Any]]) -> None:
    for before in (old, None):
        data = encode(before, new)
        assert are_same(decode(before, data, describe(new)), new)


@given(old=TENSORS, new=TENSORS)
def test_a_delta_is_never_longer_than_the_whole(
    old: dict[str, NDArray[Any]], new: dict[str, NDArray[Any]]
) -> None:
    assert len(encode(old, new)) <= len(encode(None, new))
    assert len(encode(old, new, lossy=True)) <= len(encode(old, new))


@given(old=TENSORS, new=TENSORS)
def test_a_lossy_delta_makes_what_its_sender_says(
    old: dict[str, NDArray[Any]], new: dict[str, NDArray[Any]]
) -> None:
    data, made, _ = approximate(old, new)
    assert are_same(decode(old, data, describe(made)), made)
    assert {name: array.shape for name, array in made.items()} == {
        name: array.shape for name, array in new.items()
    }


def test_equal_tensors_are_not_sent() -> None:
    old = make_tensors(1)
    new = {**old, "head/bias": make_tensors(2)["head/bias"]}
    assert [entry.name for entry in read_entries(encode(old, new))] == ["head/bias"]
    assert read_entries(encode(old, old)) == ()


def test_equal_means_to_the_bit() -> None:
    old, new = {"head/a": np.array([0.0, np.nan])}, {"head/a": np.array([-0.0, np.nan])}
    assert len(read_entries(encode(old, new))) == 1
    assert read_entries(encode(new, new)) == ()


def test_each_coding_is_taken_where_it_is_the_shortest() -> None:
    same = weights()
    old = {"head/noise": np.frombuffer(np.random.default_rng(0).bytes(4000), np.uint8), "head/near": same}
    noise = np.frombuffer(np.random.default_rng(1).bytes(4000), np.uint8)
    new = {"head/noise": noise, "head/near": nudge(same, 1e-3), "head/other": weights(seed=5)}
    codings = {entry.name: entry.coding for entry in read_entries(encode(old, new))}
    assert codings == {"head/noise": "raw", "head/near": "xor", "head/other": "planes"}
    lossy = {entry.name: entry.coding for entry in read_entries(encode(old, new, lossy=True))}
    assert lossy == codings | {"head/near": "int8"}
    assert set(lossy.values()) | set(codings.values()) == set(CODINGS)


def test_slightly_changed_weights_take_fewer_bytes() -> None:
    old = {"head/a": weights(400_000)}
    new = {"head/a": nudge(old["head/a"], 0.01)}
    plain = old["head/a"].nbytes
    assert len(encode(old, new)) < plain / 1.4
    assert len(encode(old, new, lossy=True)) < plain / 4


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_error_of_a_lossy_delta_is_at_most_half_a_step_of_its_channel(dtype: str) -> None:
    old = {"head/a": weights().astype(dtype), "head/b": weights()[0].astype(dtype)}
    new = {name: nudge(array, 0.05) for name, array in old.items()}
    _, made, error = approximate(old, new)
    assert are_same({"": made["head/b"]}, {"": new["head/b"]}), "vectors stay exact"
    assert not are_same({"": made["head/a"]}, {"": new["head/a"]})
    difference = np.abs(new["head/a"].astype(np.float64) - old["head/a"].astype(np.float64))
    steps = difference.max(axis=1, keepdims=True) / 127
    off = np.abs(made["head/a"].astype(np.float64) - new["head/a"].astype(np.float64))
    rounding = np.abs(new["head/a"].astype(np.float64)).max() * np.finfo(dtype).eps * 2
    assert (off <= steps / 2 + rounding).all()
    assert error == off.max() == largest_change(made["head/a"], new["head/a"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3.4e38])
def test_differences_that_are_not_finite_are_not_rounded(bad: float) -> None:
    old, new = {"head/a": weights()}, {"head/a": weights(seed=1)}
    new["head/a"][3, 3] = bad
    old["head/a"][3, 3] = -bad
    with np.errstate(all="ignore"):
        codings = {entry.coding for entry in read_entries(encode(old, new, lossy=True))}
        assert "int8" not in codings
        assert are_same(apply(old, encode(old, new, lossy=True), facts_of(new)), new)


def test_a_half_float_does_not_overflow_by_rounding() -> None:
    old = {"head/a": np.full((4, 4), 65_000, np.float16)}
    new = {"head/a": np.array([[65_504, 65_504, 100, 65_504]] * 4, np.float16)}
    _, made, error = approximate(old, new)
    assert np.isfinite(made["head/a"]).all()
    assert np.isfinite(error)


def test_golden_bytes() -> None:
    """Other bytes are another format. zstd may pack otherwise in another version; what it unpacks may not."""
    old = {"head/a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    new = {"head/a": old["head/a"], "head/b": np.array([1, 2, 3], np.int16)}
    expected = MAGIC + bytes([14, 0, 0, 0]) + b"\x91\x93\xa6head/b\xa3raw\x06" + b"\1\0\2\0\3\0"
    assert encode(old, new)[:-16] == expected
    assert encode(old, new)[-16:].hex() == "7f944c176df68f09fbce9a8f99600f47"


def test_golden_codings() -> None:
    """Payloads written by hand, as docs/reference/models.md says."""
    old = {"head/a": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)}
    pack = zstandard.ZstdCompressor().compress

    def made(coding: str, plain: bytes) -> list[list[float]]:
        payload = plain if coding == "raw" else pack(plain)
        data = assemble([("head/a", coding, len(payload))], payload)
        return apply(old, data, {"head/a": TensorFacts("float32", (2, 2), DIGEST)})["head/a"].tolist()

    assert made("raw", np.array([5, 6, 7, 8], "<f4").tobytes()) == [[5, 6], [7, 8]]
    halves = bytes([0] * 8) + bytes([0x80, 0, 0x40, 0x80]) + bytes([0x3F, 0x40, 0x40, 0x40])
    assert made("planes", halves) == [[1, 2], [3, 4]]
    sign = bytes([0] * 12) + bytes([0x80, 0, 0, 0x80])
    assert made("xor", sign) == [[-1, 2], [3, -4]]
    steps = np.array([0.5, 0.25], "<f4").tobytes() + np.array([2, -2, 4, 127], np.int8).tobytes()
    assert made("int8", steps) == [[2, 1], [4, 35.75]]


OLD = {"trunk/a": weights(2000), "head/b": np.arange(12, dtype=np.float32).reshape(3, 4)}
NEW = {"trunk/a": nudge(OLD["trunk/a"], 0.01), "head/b": OLD["head/b"] * 2, "head/c": np.arange(5)}
FACTS = facts_of(NEW)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "damaged"),
        (b"PK\x03\x04" + b"\0" * 60, "damaged"),
        (encode(OLD, NEW)[:-1], "damaged"),
        (b"X" + encode(OLD, NEW)[1:], "damaged"),
        (assemble([], b"", header=b"\xc1"), "cannot be read"),
        (assemble([], b"", header=b"\x91" * 100_000), "cannot be read"),
        (assemble([("head/c", "raw", 40)], b"\0" * 41), "longer or shorter"),
        (assemble([("head/c", "raw", -1)], b""), "longer or shorter"),
        (assemble([("head/c", "raw", 40), ("head/c", "raw", 0)], b"\0" * 40), "one name"),
        (assemble([("head/c", "raw", 40), ("head/z", "raw", 4)], b"\0" * 44), "head/z"),
        (assemble([("head/c", "zip", 4)], b"\0" * 4), "'zip'"),
        (assemble([("head/c", "raw", 4)], b"\0" * 4), "head/c"),
        (assemble([("head/c", "planes", 4)], b"\0" * 4), "no frame of zstd"),
        (assemble([("head/b", "raw", 48)], b"\0" * 48), "lacks tensor 'head/c'"),
    ],
)
def test_what_is_no_delta_is_refused_by_name(data: bytes, named: str) -> None:
    with pytest.raises(ModelRefused, match=named):
        apply(OLD, data, FACTS)


def frame(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(plain)


@pytest.mark.parametrize(
    ("coding", "payload", "named"),
    [
        ("xor", frame(b"\0" * 39), "39"),
        ("xor", frame(b"\0" * 40)[:-3], "zstd"),
        ("xor", frame(b"\0" * 40) + b"more", "zstd"),
        ("xor", frame(b"\0" * 40) + frame(b"\0"), "zstd"),
        ("xor", frame(b"\0" * 40), "another shape or type"),
        ("int8", frame(b"\0" * 40), "never rounded"),
        ("planes", zstandard.ZstdCompressor(write_content_size=False).compress(b"\0" * 40), "head/c"),
        ("planes", b"\x50\x2a\x4d\x18\x28\0\0\0" + b"\0" * 40, "head/c"),
    ],
)
def test_a_payload_that_is_not_what_it_says_is_refused(coding: str, payload: bytes, named: str) -> None:
    """head/c, five int64, is not in the old version."""
    with pytest.raises(ModelRefused, match=named):
        apply(OLD, assemble([("head/c", coding, len(payload))], payload), {"head/c": FACTS["head/c"]})


def bomb(size: int) -> bytes:
    """A frame that says that it unpacks to so many bytes, and does not."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\1\0\0"


@pytest.mark.parametrize("coding", ["planes", "xor"])
@pytest.mark.parametrize("size", [1 << 31, (1 << 32) - 4])
def test_a_frame_that_claims_much_is_refused_before_memory_is_taken(coding: str, size: int) -> None:
    """Manifest and frame agree, so only what a frame of its length can hold tells."""
    payload = bomb(size)
    data = assemble([("head/c", coding, len(payload))], payload)
    tracemalloc.start()
    with pytest.raises(ModelRefused, match="head/c"):
        apply(None, data, {"head/c": TensorFacts("float32", (size // 4,), DIGEST)})
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 1_000_000


def test_a_tensor_with_another_digest_is_refused_by_name() -> None:
    version = describe(NEW)
    wrong = {**NEW, "head/b": NEW["head/b"] + 1}
    with pytest.raises(ModelRefused, match=r"'head/b'.*digest"):
        decode(OLD, encode(OLD, wrong), version)
    with pytest.raises(ModelRefused, match=r"'trunk/a'.*digest"):
        decode({**OLD, "trunk/a": OLD["trunk/a"] + 1}, encode(OLD, NEW), version)


def test_an_old_tensor_of_another_shape_is_no_base() -> None:
    with pytest.raises(ModelRefused, match="another shape or type"):
        apply({**OLD, "trunk/a": OLD["trunk/a"].T.copy()}, encode(OLD, NEW), FACTS)


@pytest.mark.parametrize("sealed", [False, True], ids=["as it is", "with its digest put right"])
@pytest.mark.parametrize("lossy", [False, True])
@given(data=st.data())
def test_mutated_deltas_are_refused(sealed: bool, lossy: bool, data: st.DataObject) -> None:
    whole, made, _ = approximate(OLD, NEW) if lossy else (encode(OLD, NEW), NEW, 0)
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if sealed:
        content[-16:] = bytes.fromhex(digest_of(bytes(content[:-16])))
    assume(bytes(content) != whole)
    try:
        found = decode(OLD, bytes(content), describe(made))
    except ModelRefused:
        return
    # A name that is gone from the header may be one whose old tensor is the right one; nothing else passes.
    assert are_same(found, made)


@given(data=st.data())
def test_mutated_headers_are_refused(data: st.DataObject) -> None:
    """Aimed: names, codings and lengths that fit together badly."""
    names = st.sampled_from(["trunk/a", "head/b", "head/c", "head/z", ""])
    entries = data.draw(st.lists(st.tuples(names, st.sampled_from([*CODINGS, "x"]), st.integers(-1, 60))))
    payload = data.draw(st.binary(max_size=120))
    if data.draw(st.booleans()):
        payload = payload[: max(0, sum(entry[2] for entry in entries))].ljust(
            sum(max(0, entry[2]) for entry in entries)
        )
    with pytest.raises(ModelRefused):
        decode(OLD, assemble(entries, payload), describe(NEW))


def test_entries_tell_what_each_tensor_costs() -> None:
    data = encode(OLD, NEW)
    entries = read_entries(data)
    assert [entry.name for entry in entries] == sorted(NEW)
    assert all(isinstance(entry, Entry) and entry.coding in CODINGS for entry in entries)
    assert sum(entry.nbytes for entry in entries) < len(data)
