"""What is said over the wire: small msgpack messages of names, numbers and texts. No code, no pickle.

A request is a Flight ticket and asks for one stream; it changes nothing. Actions are listed in `ACTIONS`.
Either may be sent again: the second time it finds done what the first has done.
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
    "models": "versions of models that the store holds, and which are in force",
    "model_offer": "say which version will be sent; how much of it has come already",
    "model_part": "a part of what was offered",
    "model_take": "verify what was sent, keep it as a version, and put it in force if asked",
    "model_switch": "put a version in force",
    "model_rollback": "put the version in force that was before",
    "jobs": "what the store does by itself, and how far it has come",
    "job_start": "begin a job, or find the one that does the same",
    "job_stop": "end jobs where they are",
    "inbox_seal": "make the images that were kept a version of a dataset",
    "forget": "leave samples out of a dataset, and delete what is kept of them",
    "model_seal": "let versions of models be used no more",
}
SCOPE_OF_ACTION: dict[str, tuple[str, ...]] = {
    "hello": (),
    "health": (),
    "status": ("read", "admin"),
    "release": ("admin",),
    "models": ("models", "read"),
    "model_offer": ("models",),
    "model_part": ("models",),
    "model_take": ("models",),
    "model_switch": ("models",),
    "model_rollback": ("models",),
    "jobs": ("jobs",),
    "job_start": ("jobs",),
    "job_stop": ("jobs",),
    "inbox_seal": ("admin",),
    "forget": ("forget",),
    "model_seal": ("models",),
}
"""What a token must allow, one of these; none named: any token will do."""
CHANGES = frozenset(
    {
        *("model_offer", "model_part", "model_take", "model_switch", "model_rollback"),
        *("job_start", "job_stop", "inbox_seal", "forget", "model_seal"),
    }
)
"""Actions that change what a store keeps: refused while it drains, and a drain waits for those under way."""
PART_BYTES = 1 << 19
"""What a client sends of a model at once; with what stands around it, well below a ticket."""

Name = Annotated[str, msgspec.Meta(max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


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
    http: int = 0
    """The port on which it speaks HTTP, with TLS if this one has it; 0: none."""
    cuts: bool = False
    """Whether the store minds the `cut` of a request for features."""
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


class FeatureRequest(Message, frozen=True, tag="features"):
    """What frozen layers make of samples: a vector of float16, little-endian, for each.

    `model` is a trunk's digest. `steps` are those per sample that images go through before it, if not the
    model's own; `seed` and `epoch` key their draws. `cut` names a tensor of the trunk's graph that is wanted
    in the place of the features; empty: none. Vectors may come `packed`, see `vectors`.
    """

    dataset: Name
    version: Name
    client: Name
    ids: bytes
    model: Digest
    steps: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=255)] = []
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0
    cut: Name = ""
    packed: bool = False


class SelectionRequest(Message, frozen=True, tag="selection"):
    """Rows of what a job has selected, from `start` on."""

    dataset: Name
    version: Name
    client: Name
    job: Name
    start: Count = 0
    rows: Count = 0


class LabelRequest(Message, frozen=True, tag="labels"):
    """Rows of the labels that the store keeps of a dataset, in order of id, those with ids above `after`.

    `classes`, `scores`, `margins`, `sources`, `model` and `older_than` are those of a `LabelQuery`; what is
    empty holds for all rows. `rows` is how many may come. `opinions` asks for what models say against them
    too, `counts` for how many rows each class has, and for none of them. `known` is the digest of the names
    and versions that the client has: they come again only if there are others by now.
    """

    dataset: Name
    version: Name
    client: Name
    after: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)] = -1
    rows: Count = 0
    classes: Annotated[list[Text], msgspec.Meta(max_length=64)] = []
    scores: tuple[float, float] | None = None
    margins: tuple[float, float] | None = None
    sources: Annotated[list[Name], msgspec.Meta(max_length=3)] = []
    model: Name = ""
    older_than: Name = ""
    opinions: bool = False
    counts: bool = False
    known: Name = ""


class Release(Message, frozen=True):
    """Which quarantined samples to try again; none named: all."""

    ids: list[int] = []


class Guess(Message, frozen=True):
    """A class, and the share of the softmax that it has."""

    label: str
    score: float


class Prediction(Message, frozen=True):
    """What a model says of an image, as JSON over HTTP; `margin` is None if there is only one class.

    `id` and `key` are those of an image that was kept, in the dataset that it will be part of when that is
    sealed. `top` are the best classes, as many as were asked for.
    """

    label: str
    score: float
    margin: float | None
    model: str
    version: str
    top: list[Guess] = []
    id: int | None = None
    key: str = ""


class InboxSeal(Message, frozen=True):
    """Make what was kept of a dataset a version of its inbox."""

    dataset: Name


class SealedInbox(Message, frozen=True):
    """What an inbox is now: the dataset that it is served as, with its version, none if it has no images.

    `shards` were added to it.
    """

    dataset: str
    version: str = ""
    samples: int = 0
    bytes: int = 0
    shards: int = 0


class Forget(Message, frozen=True):
    """Samples of a dataset that are to be forgotten: `ids` are int64, little-endian.

    With `dry_run` nothing changes. `delete_files` deletes the files of the samples, too, where the store may.
    `models` are digests of versions of which the answer says how many labels they have given.
    """

    dataset: Name
    ids: bytes
    delete_files: bool = False
    dry_run: bool = False
    models: list[Digest] = []


class ForgottenThere(Message, frozen=True):
    """What was found of the samples and is gone, by where it was, and what is left of the dataset.

    `before` and `version` are the dataset's, `samples` how many it has now. `labelled` counts rows of the
    label database that the `models` wrote.
    """

    dataset: str
    before: str
    version: str
    samples: int
    found: dict[str, int]
    labelled: int = 0


Request = ReadRequest | IndexRequest | BlocksRequest | FeatureRequest | SelectionRequest | LabelRequest


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
