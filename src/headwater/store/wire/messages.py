"""What is said over the wire: small msgpack messages of names, numbers and texts. No code, no pickle.

A request is a Flight ticket and asks for one stream; it changes nothing and may be sent again. Actions
are `hello`, `status`, `health` and `release`.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
import xxhash

from headwater.data.image import Limits
from headwater.errors import HeadwaterError, WrongUse

VERSION = version("headwater")
PROTOCOLS = (1,)
"""Versions of the protocol that this build speaks, newest last."""
DATASET_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""How a dataset may be called: never a path."""
MOST_TICKET_BYTES = 1 << 20
"""A longer ticket is refused before it is looked at."""
ACTIONS = {
    "hello": "agree on a protocol; what the store can do and which datasets the caller may read",
    "health": "whether the store takes requests",
    "status": "counters, budget and datasets",
    "release": "let quarantined samples be decoded again",
}
SCOPE_OF_ACTION: dict[str, tuple[str, ...]] = {
    "hello": (),
    "health": (),
    "status": ("read", "admin"),
    "release": ("admin",),
}
"""What a token must allow, one of these; none named: any token will do."""

Name = Annotated[str, msgspec.Meta(max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """Unknown fields are ignored, so that a newer peer of the same protocol may say more."""


class Hello(Message, frozen=True):
    """What a client begins with."""

    protocols: list[int]
    version: Name


class DatasetFacts(Message, frozen=True):
    """One dataset of a store."""

    samples: int
    bytes: int
    version: str
    content: str
    fields: list[str] = []
    blocks: bool = False
    cached_bytes: int | None = None


class Welcome(Message, frozen=True):
    """What a store answers: the protocol that both speak, and everything a client must know."""

    protocol: int
    version: str
    catalogue: dict[str, str]
    libraries: dict[str, str]
    codecs: list[str]
    datasets: dict[str, DatasetFacts]
    request_bytes: int
    request_samples: int
    limits: bool = False
    """Whether the store minds the `limits` of a request."""
    cores: float = 0.0
    """What its steps may use in all; 0: unknown."""
    digest: str = ""
    """Of the message without this field; see `sealed`."""


class ReadRequest(Message, frozen=True, tag="read"):
    """Samples by id, each up to its cut and in its codec.

    `ids` are int64 and `cuts` and `codecs` bytes, one per sample; empty means that all are wanted as the
    files they are. A codec is a place in `names`. `digest` is that of `steps` as the client runs them: a
    store that runs them otherwise, because it was replaced since the greeting, answers with files. `limits`
    are the client's: a sample past one of them comes as a file. `heads` asks for the first bytes of the files
    only.
    """

    dataset: Name
    version: Name
    client: Name
    ids: bytes
    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    cuts: bytes = b""
    codecs: bytes = b""
    names: Annotated[list[Name], msgspec.Meta(max_length=64)] = []
    steps: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=255)] = []
    offset: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    digest: Name = ""
    limits: Limits | None = None
    heads: Count = 0
    fields: bool = False


class IndexRequest(Message, frozen=True, tag="index"):
    """Rows of a dataset's index; the first page also says what there is."""

    dataset: Name
    version: Name
    client: Name
    start: Count = 0
    rows: Count = 0


class BlocksRequest(Message, frozen=True, tag="blocks"):
    """First positions of the blocks that the store reads in."""

    dataset: Name
    version: Name
    client: Name


class Release(Message, frozen=True):
    """Which quarantined samples to try again; none named: all."""

    ids: list[int] = []


Request = ReadRequest | IndexRequest | BlocksRequest


class Complaint(Message, frozen=True):
    """Why a request was not answered: the name of an error that both sides know, and its text."""

    kind: Name
    text: Text
    retry: bool = False
    """Whether the same request may be answered later, or by a replica."""


_ENCODER = msgspec.msgpack.Encoder()
_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def sealed(welcome: Welcome) -> Welcome:
    """With its digest, so that a greeting that was altered on its way is noticed."""
    return msgspec.structs.replace(welcome, digest=_digest(encode(welcome)))


def is_altered(data: bytes, welcome: Welcome) -> bool:
    """Whether the greeting is not what its digest says; what a newer store says in it counts too."""
    try:
        return bool(welcome.digest) and _digest(data) != welcome.digest
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):  # in a field that is unknown here
        return True


def _digest(data: bytes) -> str:
    plain = msgspec.msgpack.decode(data)
    plain.pop("digest", None)
    return xxhash.xxh3_128_hexdigest(_ENCODER.encode(plain))


def decode_request(ticket: bytes) -> Request:
    """Raises `WrongUse` for anything that is no request."""
    if len(ticket) > MOST_TICKET_BYTES:
        raise WrongUse(f"a ticket of {len(ticket):,} bytes; at most {MOST_TICKET_BYTES:,} are taken")
    try:
        return _REQUEST.decode(ticket)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WrongUse(f"no request that this store knows: {error}") from error


def decode(kind: type[Any], data: bytes) -> Any:
    """A message of a known kind; raises `HeadwaterError` if it is none."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise HeadwaterError(f"a message that is no {kind.__name__}: {error}") from error
