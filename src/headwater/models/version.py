"""A version of a model: what it is made of, by digest, and how it came about."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.errors import ModelRefused, WrongUse

FORMAT = 1
PROXY = "proxy"
"""What stands as `by` in `made` of a version that serves selection alone; `run` says which run's."""
MODEL_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""How a model may be called: as a dataset may, never a path."""
DIGEST = re.compile(r"[0-9a-f]{32}")
ABBREVIATED = re.compile(r"[0-9a-f]{8,32}")
"""What stands for a digest wherever a version is named, and so is no name of a model."""
DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)
MOST_TENSORS = 1 << 16
MOST_BYTES = 4 << 30
"""Of all tensors of a version: what a manifest may have its reader allocate."""
MOST_MANIFEST_BYTES = 16 << 20


def digest_of(*pieces: bytes | memoryview) -> str:
    """BLAKE2b with 128 bits of the pieces, one after the other, in hexadecimal."""
    state = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()


def canonical(value: object) -> bytes:
    """The one JSON text of plain data: keys sorted, no spaces, UTF-8. Raises `WrongUse` for other data."""
    try:
        return msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WrongUse(f"not plain data that JSON can hold: {error}") from error


class TensorFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tensor is, without its values; equal facts mean equal bytes."""

    dtype: str
    shape: tuple[int, ...]
    digest: str

    @classmethod
    def of(cls, array: NDArray[Any]) -> TensorFacts:
        """The facts of an array; of its values in C order, little-endian, whatever its layout is."""
        if array.dtype.name not in DTYPES:
            raise ModelRefused(
                f"tensors of {array.dtype} are not kept; convert to one of {', '.join(DTYPES)}"
            )
        head = f"{array.dtype.name} {'x'.join(map(str, array.shape))}\n".encode()
        return cls(array.dtype.name, array.shape, digest_of(head, as_bytes(array)))

    @property
    def nbytes(self) -> int:
        """Bytes of the values; a Python number, so that a hostile shape does not wrap."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def check(self, name: str) -> None:
        """Raise `ModelRefused` for facts that no tensor has."""
        if self.dtype not in DTYPES:
            raise ModelRefused(f"tensor {name!r} is of {self.dtype!r}; allowed: {', '.join(DTYPES)}")
        if len(self.shape) > 16 or any(not 0 <= edge <= MOST_BYTES for edge in self.shape):
            raise ModelRefused(f"tensor {name!r} has the shape {self.shape}, which no tensor has")
        if not DIGEST.fullmatch(self.digest):
            raise ModelRefused(f"tensor {name!r} has {self.digest!r} for a digest")


def as_bytes(array: NDArray[Any]) -> memoryview:
    """The values in C order, little-endian; a view where the array lies so already."""
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return little.reshape(-1).view(np.uint8).data


class ModelVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest: everything about a version but graphs and tensors themselves.

    `digest` is that of the canonical JSON of all other fields but `time`. `made` is plain data: `by` says
    what made it, other keys depend on that. `features` is how many numbers the trunk gives for an image.
    """

    digest: str
    name: str
    parent: str | None
    made: dict[str, Any]
    graphs: dict[str, str]
    tensors: dict[str, TensorFacts]
    classes: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]
    features: int
    time: str
    format: int = FORMAT

    @property
    def trunk_digest(self) -> str:
        """Of trunk graph, its tensors and the steps before it: what keys cached features."""
        tensors = {name: facts.digest for name, facts in self.tensors.items() if name.startswith("trunk/")}
        return digest_of(canonical([self.graphs["trunk"], tensors, self.steps]))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(facts.nbytes for facts in self.tensors.values())

    def true_digest(self) -> str:
        """What `digest` must be."""
        fields = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in ("digest", "time")
        }
        return digest_of(canonical(fields))

    def check(self) -> None:
        """Raise `ModelRefused` unless the manifest is whole, within the limits, and has its own digest."""
        if self.format != FORMAT:
            raise ModelRefused(
                f"manifest of format {self.format}, this version reads {FORMAT}; upgrade Headwater"
            )
        if not is_model_name(self.name):
            raise ModelRefused(f"{self.name!r} is no name of a model")
        if set(self.graphs) not in ({"trunk"}, {"trunk", "head"}):
            raise ModelRefused(f"graphs {sorted(self.graphs)}; a version has a trunk and may have a head")
        for digest in (*self.graphs.values(), *([self.parent] if self.parent is not None else [])):
            if not DIGEST.fullmatch(digest):
                raise ModelRefused(f"{digest!r} is no digest")
        _check_sizes(self.tensors)
        try:
            digest = self.true_digest()
        except WrongUse as error:
            raise ModelRefused(f"the manifest holds what is {error}") from error
        if self.digest != digest:
            raise ModelRefused(f"the manifest says digest {self.digest[:32]!r} and has {digest}: altered")

    def to_json(self) -> bytes:
        """The manifest as it is kept, for people too."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, data: bytes) -> ModelVersion:
        """Read and check what `to_json` wrote; raises `ModelRefused`."""
        if len(data) > MOST_MANIFEST_BYTES:
            raise ModelRefused(f"a manifest of {len(data):,} bytes; at most {MOST_MANIFEST_BYTES:,} are read")
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ModelRefused(f"not a manifest: {error}") from error
        found.check()
        return found


def seal(version: ModelVersion) -> ModelVersion:
    """The version with the digest that it has; `made` and `steps` as they come back from JSON."""
    plain = msgspec.json.decode(canonical([version.made, version.steps]))
    same = msgspec.structs.replace(version, made=plain[0], steps=tuple(plain[1]))
    return msgspec.structs.replace(same, digest=same.true_digest())


def is_model_name(name: str) -> bool:
    """Whether a model may be called so: never a path, and nothing that reads as a digest."""
    return bool(MODEL_NAME.fullmatch(name)) and not ABBREVIATED.fullmatch(name)


def _check_sizes(tensors: Mapping[str, TensorFacts]) -> None:
    if len(tensors) > MOST_TENSORS:
        raise ModelRefused(f"{len(tensors):,} tensors; at most {MOST_TENSORS:,} are taken")
    for name, facts in tensors.items():
        if not name.startswith(("trunk/", "head/")):
            raise ModelRefused(f"tensor {name!r} belongs neither to trunk nor to head")
        facts.check(name)
    total = sum(facts.nbytes for facts in tensors.values())
    if total > MOST_BYTES:
        raise ModelRefused(f"tensors of {total:,} bytes; at most {MOST_BYTES:,} are taken")
