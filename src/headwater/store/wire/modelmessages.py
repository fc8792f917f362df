"""Messages about models: what a store holds, how a version comes to it in parts, and which is in force."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headwater.store.wire.messages import Count, Digest, Message, Name


class ModelQuery(Message, frozen=True):
    """What does the store hold? `version` (digest, its beginning, or a name) asks for a manifest too."""

    version: Name = ""


class VersionFacts(Message, frozen=True):
    """One version at a store: its manifest in short. `bytes` are those of its tensors, `by` what made it."""

    digest: str
    name: str
    parent: str | None
    by: str
    bytes: int
    classes: int
    features: int
    tensors: int
    time: str
    graphs: list[str]


class Inventory(Message, frozen=True):
    """What a store holds: `current` is name > digest in force and those before it, the last one first."""

    current: dict[str, list[str]]
    versions: list[VersionFacts]
    manifest: bytes = b""


class ModelOffer(Message, frozen=True):
    """A version that will come: its manifest (JSON), and length and digest of the `Shipment` that makes it.

    `base` is the version that the shipment's delta is applied to, if it needs one.
    """

    manifest: bytes
    length: Count
    digest: Digest
    base: Digest | None = None


class ModelPart(Message, frozen=True):
    """Bytes of the shipment of `digest`, from `offset` on; `checksum` is XXH3 with 64 bits of them."""

    version: Digest
    digest: Digest
    offset: Count
    data: bytes
    checksum: Annotated[int, msgspec.Meta(ge=0)]


class Arrived(Message, frozen=True):
    """How many bytes of a shipment have come; `held`: the version is here, nothing more is needed."""

    have: int
    held: bool = False


class ModelTake(Message, frozen=True):
    """All of the shipment of `digest` has come: make the version of it, and with `switch` put it in force.

    `unmeasured`: int8 layers, too, of which the manifest does not say that enough labels stay.
    """

    version: Digest
    digest: Digest
    switch: bool = False
    unmeasured: bool = False


class ModelSwitch(Message, frozen=True):
    """Which version is to be in force under a name; `unmeasured` as in `ModelTake`."""

    name: Name
    version: Digest
    unmeasured: bool = False


class ModelRollback(Message, frozen=True):
    """Put the version in force that was before `current`; where that is not in force, nothing is switched."""

    name: Name
    current: Digest


class InForce(Message, frozen=True):
    """What is in force under a name now, empty for nothing, and what was before, the last one first.

    `stopped` are jobs that labelled with a version that is no longer to label, and were ended.
    """

    name: str
    current: str
    before: list[str]
    stopped: list[str] = msgspec.field(default_factory=list)


class Shipment(Message, frozen=True):
    """What is uploaded: graphs by digest that the store lacks, and the delta of the tensors."""

    graphs: dict[str, bytes]
    delta: bytes


class ModelSeal(Message, frozen=True):
    """Versions that are not to be used any more, by digest."""

    versions: Annotated[list[Digest], msgspec.Meta(max_length=4096)]


class SealedVersions(Message, frozen=True):
    """Those that were not sealed before."""

    versions: list[str]
