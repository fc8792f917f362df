"""Every error that Headwater raises on purpose.

HeadwaterError
├── WrongUse               an argument that cannot be right (also a ValueError)
├── DatasetError           a dataset that cannot be opened or used as asked
│   ├── DatasetNotFound    nothing there, or nothing that is an image
│   ├── DatasetStale       the data changed under its index
│   └── IdCollision        two keys with one 63-bit id
├── SampleError            one sample that cannot be served: .id, .key, .stage
│   ├── SampleCorrupt      damaged, truncated or not an image
│   └── SampleTooLarge     past a cap on bytes, pixels, scans or seconds
├── StateMismatch          a saved state, logbook or plan that belongs to other data or another pipeline
├── JournalRefused         a journal of another model or of other data, or one that is cut short or damaged
├── ForkedUse              a loader or a remote store used in a forked child
├── LoaderTimeout          no batch within `timeout` seconds
├── MemoryTooSmall         a memory budget that one operation alone exceeds: .needed
├── SavedTensorChanged     what backward needs is not what forward saved (also a RuntimeError)
├── SpillFailed            no room, or no folder, for what leaves memory
├── MissingExtra           an optional package that the call needs is not installed
├── Incompatible           two sides that speak no common version
├── InboxFull              a store that keeps as many bytes of images as it may
├── LabelError             a label database that cannot be opened or used as asked
│   ├── LabelFileInvalid   a file of labels with something wrong in it; nothing was taken from it
│   └── LabelRefused       a change that would break what the database promises
├── ModelError             a model or a registry that cannot be used as asked
│   ├── ModelNotFound      no such version, or a part of it is gone
│   └── ModelRefused       content that is not what it says, or that may not run here
├── Refused                a store that does not let this caller do this, or that will not start so open
└── Unreachable            a store or an object store that does not answer
    └── StoreLost          it answered once, and not within the limit: .store, .dataset, .position
"""

from __future__ import annotations

from typing import ClassVar


class HeadwaterError(Exception):
    """Base of all; `exit_code` is what the command line returns for it."""

    exit_code: ClassVar[int] = 1


class WrongUse(HeadwaterError, ValueError):
    """An argument that cannot be right, whatever the data."""

    exit_code = 2


class DatasetError(HeadwaterError):
    """A dataset that cannot be opened or used as asked."""


class DatasetNotFound(DatasetError):
    """Nothing lies at the address, or nothing that is an image."""


class DatasetStale(DatasetError):
    """The data changed after it was indexed."""


class IdCollision(DatasetError):
    """Two keys of one dataset hash to the same 63-bit id."""


class SampleError(HeadwaterError):
    """One sample that cannot be served.

    `id`, `key` and `stage` are filled in by the engine, which knows them; the code that finds the
    fault only says what it is.
    """

    def __init__(self, reason: str, *, id: int | None = None, key: str = "", stage: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.id = id
        self.key = key
        self.stage = stage

    def __str__(self) -> str:
        if self.id is None:
            return self.reason
        return f"sample {self.key!r} (id {self.id}) failed at {self.stage}: {self.reason}"


class SampleCorrupt(SampleError):
    """Damaged, truncated, or not an image that Headwater reads."""


class SampleTooLarge(SampleError):
    """Past a cap on bytes, pixels, scans or seconds; found before memory is allocated."""


class StateMismatch(HeadwaterError):
    """A saved state, logbook or plan that was made for other data, another pipeline or another order."""


class JournalRefused(HeadwaterError):
    """A journal of another model or of other data, one that is cut short or damaged, or one of a loop that
    did something else than it says; the text says so."""

    exit_code = 4


class ForkedUse(HeadwaterError):
    """A loader or a remote store used in a forked child, where its threads do not exist."""


class LoaderTimeout(HeadwaterError):
    """No batch within the loader's `timeout`."""


class MemoryTooSmall(HeadwaterError):
    """A memory budget that a single step of the backward pass exceeds; `needed` bytes would do for it."""

    def __init__(self, reason: str, *, needed: int = 0) -> None:
        super().__init__(reason)
        self.needed = needed


class SavedTensorChanged(HeadwaterError, RuntimeError):
    """A tensor that backward needs was changed in place, or cannot be made again as it was."""


class SpillFailed(HeadwaterError):
    """The folder for what leaves memory is missing, cannot be written to, or its disk is full."""


class MissingExtra(HeadwaterError, ImportError):
    """An optional package that the call needs is not installed."""

    exit_code = 2


class Unreachable(HeadwaterError):
    """A store or an object store that does not answer."""

    exit_code = 3


class StoreLost(Unreachable):
    """A store that did not answer within the limit, although it was asked again and again.

    `store` and `dataset` say which, `position` where the first sample of the request stands in the index.
    """

    def __init__(self, reason: str, *, store: str = "", dataset: str = "", position: int = -1) -> None:
        super().__init__(reason)
        self.store = store
        self.dataset = dataset
        self.position = position


class Incompatible(HeadwaterError):
    """Two sides that speak no common version of the protocol, or a database of a newer program."""


class InboxFull(HeadwaterError):
    """A store that has no room for more images: what it keeps has as many bytes as it may."""


class LabelError(HeadwaterError):
    """A label database that cannot be opened or used as asked."""


class LabelFileInvalid(LabelError):
    """A file of labels with something wrong in it; the text says where, and nothing was taken from it."""


class LabelRefused(LabelError):
    """A change that would break what the database promises, or a user whom it does not let in."""

    exit_code = 4


class ModelError(HeadwaterError):
    """A model or a registry of models that cannot be used as asked."""


class ModelNotFound(ModelError):
    """A registry that has no such version, or lacks a part of it."""


class ModelRefused(ModelError):
    """A model, graph, tensor or delta that is not what it says, or may not run here; the text names it."""

    exit_code = 4


class Refused(HeadwaterError):
    """A store that does not let this caller do this, or a server that will not start so open."""

    exit_code = 4


def error_named(name: str, text: str) -> HeadwaterError | None:
    """An error of this module, as a store names it in a reply; None for what is none.

    An `Unreachable` is never what a store says of itself.
    """
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, HeadwaterError) and not issubclass(kind, Unreachable):
        return kind(text)
    return None
