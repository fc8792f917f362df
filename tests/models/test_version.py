from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import make_model, make_tensors
from headwater.errors import ModelRefused, WrongUse
from headwater.models import version as versions
from headwater.models.version import ModelVersion, TensorFacts, canonical, is_model_name, seal
from headwater.store.wire.messages import DATASET_NAME

DIGEST = "0123456789abcdef0123456789abcdef"
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC).isoformat()


def make_version(**fields: Any) -> ModelVersion:
    """A manifest with its right digest, whatever else is wrong with it."""
    tensors = {name: TensorFacts.of(array) for name, array in make_tensors().items()}
    usual: dict[str, Any] = {
        "name": "birds",
        "parent": None,
        "made": {"by": "push", "rate": 0.1},
        "graphs": {"trunk": DIGEST},
        "tensors": tensors,
        "classes": ("a", "b", "ä"),
        "steps": ({"name": "resize", "size": 8},),
        "features": 4,
        "time": NOW,
    }
    return seal(ModelVersion(digest="", **(usual | fields)))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


def test_the_digest_of_a_tensor_is_that_of_type_shape_and_values() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    said = hashlib.blake2b(b"float32 2x3\n" + array.tobytes(), digest_size=16).hexdigest()
    assert TensorFacts.of(array) == TensorFacts("float32", (2, 3), said)
    scalar = hashlib.blake2b(b"int64 \n" + b"\x07" + b"\0" * 7, digest_size=16).hexdigest()
    assert TensorFacts.of(np.array(7)).digest == scalar


def test_layout_and_byte_order_do_not_change_a_digest() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    same = [np.asfortranarray(array), array.astype(">f4"), np.repeat(array, 2, axis=0)[::2]]
    assert {TensorFacts.of(other).digest for other in same} == {TensorFacts.of(array).digest}
    assert TensorFacts.of(array.reshape(6, 4)).digest != TensorFacts.of(array).digest
    assert TensorFacts.of(array.view(np.int32)).digest != TensorFacts.of(array).digest


def test_a_type_that_is_not_kept_is_named() -> None:
    with pytest.raises(ModelRefused, match="complex128"):
        TensorFacts.of(np.zeros(2, complex))


def test_the_digest_of_a_version_is_that_of_sorted_json() -> None:
    """Written anew with Python's own json, for data whose floats both write alike."""
    version = make_version()
    fields = {name: msgspec.to_builtins(getattr(version, name)) for name in version.__struct_fields__}
    del fields["digest"], fields["time"]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert version.digest == hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def test_golden_digest() -> None:
    """Another number is another format."""
    facts = {
        name: TensorFacts.of(np.arange(6, dtype=np.float32).reshape(2, 3)) for name in ("trunk/a", "head/b")
    }
    version = make_version(tensors=facts)
    assert facts["trunk/a"].digest == "de5b8c90df24a7c7fd7cf9107b7d2301"
    assert version.digest == "add77aafe5674f5d95c9aa1d8ab1228e"
    assert version.trunk_digest == "54b3d077045921297e2e5c2121d7a152"


@given(made=st.dictionaries(TEXTS, PLAIN))
def test_a_manifest_comes_back_from_disk_and_wire(made: dict[str, Any]) -> None:
    version = make_version(made=made)
    version.check()
    assert ModelVersion.from_json(version.to_json()) == version
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(version), type=ModelVersion)
    sent.check()
    assert sent == version


def test_time_is_not_in_the_digest() -> None:
    assert make_version(time="2020-01-01").digest == make_version().digest


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "fish"},
        {"parent": DIGEST},
        {"made": {"by": "pull"}},
        {"graphs": {"trunk": DIGEST[::-1]}},
        {"classes": ("a", "b", "c")},
        {"steps": ()},
        {"features": 5},
        {"tensors": {"trunk/x": TensorFacts("float32", (1,), DIGEST)}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_an_altered_field_is_noticed(fields: dict[str, Any]) -> None:
    version = make_version()
    assert make_version(**fields).digest != version.digest
    with pytest.raises(ModelRefused, match="altered"):
        msgspec.structs.replace(version, **fields).check()


def test_the_digest_of_the_trunk_is_not_the_heads_matter() -> None:
    version, tensors = make_version(), make_version().tensors
    facts = TensorFacts("float32", (1,), DIGEST)
    assert make_version(tensors=tensors | {"head/bias": facts}).trunk_digest == version.trunk_digest
    assert make_version(name="fish", classes=()).trunk_digest == version.trunk_digest
    for other in (
        {"tensors": tensors | {"trunk/conv.bias": facts}},
        {"steps": ({"name": "resize", "size": 9},)},
        {"graphs": {"trunk": DIGEST[::-1]}},
    ):
        assert make_version(**other).trunk_digest != version.trunk_digest


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "../birds"}, "name of a model"),
        ({"name": "deadbeef"}, "name of a model"),
        ({"format": 2}, "format 2"),
        ({"graphs": {}}, "trunk"),
        ({"graphs": {"trunk": DIGEST, "tail": DIGEST}}, "tail"),
        ({"graphs": {"trunk": "../../etc/passwd"}}, "passwd"),
        ({"parent": "../x"}, "no digest"),
        ({"tensors": {"body/x": TensorFacts("float32", (1,), DIGEST)}}, "body/x"),
        ({"tensors": {"trunk/x": TensorFacts("bfloat16", (1,), DIGEST)}}, "bfloat16"),
        ({"tensors": {"trunk/x": TensorFacts("float32", (-1, 4), DIGEST)}}, "shape"),
        ({"tensors": {"trunk/x": TensorFacts("float32", (1,) * 17, DIGEST)}}, "shape"),
        ({"tensors": {"trunk/x": TensorFacts("float32", (1 << 31,), DIGEST)}}, "at most"),
        ({"tensors": {"trunk/x": TensorFacts("float32", (1 << 32,) * 4, DIGEST)}}, "at most"),
        ({"tensors": {"trunk/x": TensorFacts("float32", (1,), "x")}}, "digest"),
    ],
)
def test_what_no_version_has_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelRefused, match=named):
        make_version(**fields).check()


def test_many_tensors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MOST_TENSORS", 3)
    with pytest.raises(ModelRefused, match="4 tensors"):
        make_version().check()


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b"\xff\xfe", b"[" * 100_000, b" " * (17 << 20)],
    ids=["nothing", "empty", "array", "no text", "deep", "long"],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ModelRefused):
        ModelVersion.from_json(data)


def test_a_field_that_is_not_known_is_refused() -> None:
    content = json.loads(make_version().to_json()) | {"weights": "/etc/passwd"}
    with pytest.raises(ModelRefused, match="weights"):
        ModelVersion.from_json(json.dumps(content).encode())


@given(st.data())
def test_mutated_manifests_are_refused(data: st.DataObject) -> None:
    """A change that JSON does not see, such as of a space, and one of the time, are none."""
    text = bytearray(make_version().to_json())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] = data.draw(st.integers(0, 255))
    try:
        found = ModelVersion.from_json(bytes(text))
    except ModelRefused:
        return
    assert msgspec.structs.replace(found, time=NOW) == make_version()


@pytest.mark.parametrize("name", ["birds", "a", "a.b-c_1", "x" * 64, "deadbee", "DEADBEEF"])
def test_names(name: str) -> None:
    assert is_model_name(name)


@pytest.mark.parametrize(
    "name", ["", ".a", "a/b", "..", "a..b", "x" * 65, "deadbeef", "0" * 32, "a b", "ä", "a\n", "a@previous"]
)
def test_names_that_are_none(name: str) -> None:
    assert not is_model_name(name)


def test_models_are_called_as_datasets_are() -> None:
    assert versions.MODEL_NAME.pattern == DATASET_NAME.pattern


def test_what_json_cannot_hold_is_wrong_use() -> None:
    with pytest.raises(WrongUse, match="plain data"):
        canonical({"array": np.zeros(2)})


def test_facts_of_a_model_are_those_of_its_tensors() -> None:
    model = make_model()
    assert model.facts == {name: TensorFacts.of(array) for name, array in model.tensors.items()}
    assert model.nbytes == sum(facts.nbytes for facts in model.facts.values())
