"""Messages come out as they went in; anything else that is sent is refused by name, and runs nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headwater.data.image import Limits
from headwater.errors import HeadwaterError, WrongUse
from headwater.store.wire import messages
from headwater.store.wire.jobmessages import (
    FailedSample,
    JobFacts,
    JobList,
    JobQuery,
    JobStart,
    JobStop,
    SelectionWish,
)
from headwater.store.wire.messages import (
    ACTIONS,
    CHANGES,
    MOST_TICKET_BYTES,
    PART_BYTES,
    SCOPE_OF_ACTION,
    BlocksRequest,
    Complaint,
    DatasetFacts,
    FeatureRequest,
    Forget,
    ForgottenThere,
    Guess,
    Hello,
    InboxSeal,
    IndexRequest,
    LabelRequest,
    Prediction,
    ReadRequest,
    Release,
    SealedInbox,
    SelectionRequest,
    Welcome,
)
from headwater.store.wire.modelmessages import ModelPart, ModelSeal, ModelSwitch, SealedVersions

READ = {"dataset": "photos", "version": "v", "client": "c", "ids": bytes(8)}
REQUESTS = [
    ReadRequest(**READ),
    ReadRequest(
        **READ,
        epoch=1 << 62,
        seed=-(1 << 63),
        cuts=b"\x02",
        codecs=b"\x00",
        names=["zstd"],
        steps=[{"name": "decode", "mode": "L"}],
        offset=255,
        limits=Limits(pixels=1000, seconds=0.5),
        heads=100,
        fields=True,
    ),
    IndexRequest("photos", "v", "c", start=50_000, rows=7),
    BlocksRequest("photos", "v", "c"),
    FeatureRequest(**READ, model="0" * 32),
    FeatureRequest(**READ, model="f" * 32, steps=[{"name": "decode"}], seed=-5, epoch=1 << 62),
    FeatureRequest(**READ, model="0" * 32, cut="/layer1/relu" * 10),
    SelectionRequest("photos", "v", "c", "0" * 16, start=65_536, rows=7),
    LabelRequest("photos", "v", "c"),
    LabelRequest(
        *("photos", "v", "c"),
        after=(1 << 63) - 1,
        rows=7,
        classes=["bee" * 60],
        scores=(0.9, 1.0),
        margins=(0.0, 0.5),
        sources=["human", "model"],
        model="birds",
        older_than="0" * 32,
        opinions=True,
        counts=True,
        known="0" * 32,
    ),
]
FACTS = DatasetFacts(3, 99, "v", "content", ["json"], blocks=True, cached_bytes=1 << 40)
WELCOME = Welcome(
    1, "0.3", {"decode": "d"}, {"torch": "2"}, ["none"], {"photos": FACTS}, 1 << 26, 16_384, limits=True
)
OTHERS = [
    Hello([1, 2], "0.3"),
    WELCOME,
    Release([1, (1 << 63) - 1]),
    Complaint("WrongUse", "no", retry=True),
    JobStart("relabel", "photos", "small", "key", opinions=True),
    JobStart("select", "photos", "small", "key", selection=SelectionWish("fresh")),
    SelectionWish(
        "medoids",
        {"share": 0.3, "partition": 64, "biased": True, "objective": "facility_location", "nothing": None},
        seed=-(1 << 63),
        epoch=(1 << 31) - 1,
        epochs=200,
        stalled=1.0,
        vectors="weights",
        run="mine",
        ends=True,
    ),
    JobQuery(["a"]),
    JobStop(["a", "b"]),
    JobList([JobFacts("a", "relabel", "photos", "v", "m", "done", "now")]),
    JobFacts("a", "relabel", "photos", "v", "m", "done", "now", failures=[FailedSample(1, "k", "why")]),
    Prediction("bee", 0.5, 1.5, "small", "v", [Guess("bee", 0.5)], id=(1 << 63) - 1, key="a/b"),
    Prediction("bee", 1.0, None, "small", "v"),
    InboxSeal("photos"),
    SealedInbox("photos-inbox", "v", 3, 99, 1),
    Forget("photos", bytes(16), delete_files=True, dry_run=True, models=["0" * 32]),
    ForgottenThere("photos", "v", "w", 3, {"index": 1, "labels": 2}, labelled=7),
    ModelSeal(["0" * 32]),
    SealedVersions(["0" * 32]),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_request_comes_out_as_it_went_in(request_: Any) -> None:
    assert messages.decode_request(messages.encode(request_)) == request_


@pytest.mark.parametrize("message", OTHERS, ids=lambda message: type(message).__name__)
def test_a_message_comes_out_as_it_went_in(message: Any) -> None:
    assert messages.decode(type(message), messages.encode(message)) == message


def test_tickets_are_these_bytes() -> None:
    """A change here is a change of the protocol: give it another number."""
    named = b"\xa7dataset\xa6photos\xa7version\xa1v\xa6client\xa1c"
    # A message with room for more than 15 fields has the longer head of a map.
    read = b"\xde\x00\x05\xa4type\xa4read" + named + b"\xa3ids\xc4\x08" + bytes(8)
    assert messages.encode(REQUESTS[0]) == read
    assert messages.encode(REQUESTS[3]) == b"\x84\xa4type\xa6blocks" + named
    features = b"\x86\xa4type\xa8features" + named + b"\xa3ids\xc4\x08" + bytes(8) + b"\xa5model\xd9\x20"
    assert messages.encode(REQUESTS[4]) == features + b"0" * 32, "without a cut, as before there were any"


def test_a_newer_peer_of_the_same_protocol_may_say_more() -> None:
    plain = msgspec.msgpack.decode(messages.encode(REQUESTS[1]))
    assert messages.decode_request(msgspec.msgpack.encode({**plain, "haste": {"a": [1]}})) == REQUESTS[1]


def test_a_greeting_is_noticed_that_was_altered_but_not_one_that_says_more() -> None:
    sealed = messages.sealed(WELCOME)
    assert not messages.is_altered(messages.encode(sealed), sealed)
    assert messages.sealed(sealed) == sealed
    more = {**msgspec.msgpack.decode(messages.encode(WELCOME)), "haste": 3}
    digest = xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(more))
    said = msgspec.msgpack.encode({**more, "digest": digest})
    assert not messages.is_altered(said, messages.decode(Welcome, said))
    other = said.replace(b"haste", b"taste")
    assert messages.is_altered(other, messages.decode(Welcome, other))


@pytest.mark.parametrize(
    "change",
    [
        {"limits": {"pixels": 0}},
        {"limits": {"seconds": float("nan")}},
        {"limits": {"seconds": "long"}},
        {"limits": 7},
        {"type": "write"},
        {"dataset": "x" * 129},
        {"dataset": 7},
        {"version": b"bytes"},
        {"client": "x" * 129},
        {"ids": "text"},
        {"epoch": -1},
        {"epoch": (1 << 62) + 1},
        {"seed": 1 << 63},
        {"heads": -1},
        {"heads": (1 << 48) + 1},
        {"offset": 256},
        {"names": ["none"] * 65},
        {"names": ["x" * 129]},
        {"steps": [{}] * 256},
        {"steps": ["decode"]},
        {"fields": "yes"},
        {"cuts": None},
    ],
    ids=str,
)
def test_what_is_out_of_bounds_is_refused(change: dict[str, Any]) -> None:
    plain = msgspec.msgpack.decode(messages.encode(REQUESTS[1]))
    with pytest.raises(WrongUse, match="no request that this store knows"):
        messages.decode_request(msgspec.msgpack.encode(plain | change))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request(ticket: bytes) -> None:
    with pytest.raises(WrongUse):
        messages.decode_request(ticket)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_an_altered_ticket_is_a_request_or_refused(place: int, other: bytes) -> None:
    ticket = bytearray(messages.encode(REQUESTS[1]))
    ticket[place % len(ticket) : place % len(ticket) + len(other)] = other
    try:
        found = messages.decode_request(bytes(ticket))
    except WrongUse:
        return
    assert isinstance(found, ReadRequest)
    assert 0 <= found.epoch <= 1 << 62


def test_lists_in_lists_without_end() -> None:
    deep = b"\x91" * 100_000 + b"\x00"
    begin = b"\x82\xa4type\xa4read\xa5steps"
    with pytest.raises(WrongUse):
        messages.decode_request(begin + deep)
    with pytest.raises(HeadwaterError):
        messages.decode(Hello, deep)


def test_a_giant_ticket_is_not_looked_at() -> None:
    longest = messages.encode(msgspec.structs.replace(REQUESTS[0], ids=bytes(MOST_TICKET_BYTES - 80)))
    assert len(longest) <= MOST_TICKET_BYTES
    assert messages.decode_request(longest).ids == bytes(MOST_TICKET_BYTES - 80)
    with pytest.raises(WrongUse, match="1,048,577 bytes"):
        messages.decode_request(bytes(MOST_TICKET_BYTES + 1))


def test_the_most_samples_of_a_request_fit_into_a_ticket() -> None:
    count = 16_384
    request = msgspec.structs.replace(
        REQUESTS[1], ids=bytes(8 * count), cuts=bytes(count), codecs=bytes(count)
    )
    assert len(messages.encode(request)) < MOST_TICKET_BYTES // 4


@pytest.mark.parametrize("kind", [Hello, Welcome, Complaint, Release])
def test_another_message_is_refused_by_its_name(kind: type[Any]) -> None:
    with pytest.raises(HeadwaterError, match=f"no {kind.__name__}"):
        messages.decode(kind, msgspec.msgpack.encode({"protocols": 1, "ids": "x", "kind": 3}))


def test_every_action_has_a_scope_and_a_meaning() -> None:
    assert set(SCOPE_OF_ACTION) == set(ACTIONS)
    assert all(ACTIONS.values())
    assert set(ACTIONS) > CHANGES


def test_a_part_of_a_model_fits_into_a_ticket() -> None:
    part = ModelPart("0" * 32, "1" * 32, 1 << 47, bytes(PART_BYTES), checksum=(1 << 64) - 1)
    assert len(messages.encode(part)) < MOST_TICKET_BYTES
    assert messages.decode(ModelPart, messages.encode(part)) == part


@pytest.mark.parametrize("digest", ["", "0" * 31, "0" * 33, "G" * 32, "0" * 32 + "\n", "../" * 10, None])
def test_what_is_no_digest_names_no_version(digest: object) -> None:
    with pytest.raises(HeadwaterError, match="no ModelSwitch"):
        messages.decode(ModelSwitch, msgspec.msgpack.encode({"name": "a", "version": digest}))
