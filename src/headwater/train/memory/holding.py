"""What stands in a graph for a saved tensor, and what owns its memory or its place elsewhere."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain

import torch

from headwater.errors import SavedTensorChanged
from headwater.train.memory.lineage import Node
from headwater.train.memory.places import Extent
from headwater.train.memory.storages import WeakStorage, view_of
from headwater.train.memory.tier import Move

CHANGED = (
    "a tensor that backward needs was changed in place after forward saved it; "
    "use the operation that makes a new one"
)


@dataclass(frozen=True, slots=True)
class Obituary:
    """What is left to settle after a holding."""

    key: int
    size: int
    noted: bool
    counted: bool
    extent: Extent | None
    transfer: Move | None
    weak: WeakStorage


class Holding:
    """The content of one storage that autograd saved, wherever it is now.

    Handles own it: when the last one goes, with the graph or after its step of the backward pass, its memory
    goes at once, and the account is settled at the next access. `tensor` is there or not; `extent` is a copy
    elsewhere, whole unless `writing`, after which the tensor goes if it is `leaving`; `sources` are what it
    can be made of. Parts that were saved with a version of their own are in `also`, with it; other names of
    the whole, which may have one, in `aliases`. It is `bare` if it has no history, and `needed` if another
    one is to be made of it. `number` counts the holdings of an iteration, `turn` the iterations; it is
    `noted` once the account knows of it.
    """

    __slots__ = (
        *(
            "__weakref__",
            "_obituaries",
            "aliases",
            "also",
            "bare",
            "counted",
            "device",
            "digest",
            "extent",
            "key",
            "leaving",
            "needed",
            "node",
            "noted",
        ),
        *("number", "reading", "saved_version", "size", "sources", "spoiled", "tensor", "touched"),
        *("turn", "version", "weak", "writing"),
    )

    def __init__(
        self, tensor: torch.Tensor, key: int, place: tuple[int, int], obituaries: deque[Obituary]
    ) -> None:
        self.extent: Extent | None = None
        self.writing: Move | None = None
        self.reading: Move | None = None
        self.counted = self.noted = False
        self._obituaries: deque[Obituary] | None = None  # without, nothing is left to settle
        storage = tensor.untyped_storage()
        self.weak = WeakStorage(storage)
        self.key = key
        self.turn, self.number = place
        self.size = storage.nbytes()
        self.device = tensor.device
        # Not the tensor itself: it may own the graph that owns this.
        self.tensor: torch.Tensor | None = tensor.detach()
        self.version = self.saved_version = tensor._version
        self.also: list[tuple[torch.Tensor, int]] = []
        self.aliases: list[tuple[torch.Tensor, int]] = []
        self.leaving = False
        self.needed = False
        self.spoiled = False
        self.bare = False
        self.node: Node | None = None
        self.sources: tuple[Holding, ...] | None = None
        self.digest: torch.Tensor | None = None
        self.touched = 0.0
        self._obituaries = obituaries  # last: from here on it is accounted for

    @property
    def clean(self) -> bool:
        """Whether there is a whole copy elsewhere."""
        return self.extent is not None and self.writing is None

    @property
    def address(self) -> int | None:
        """Of the storage in memory, by which `WeakStorage` knows it too; None if there is none."""
        return None if self.tensor is None else self.tensor.untyped_storage()._cdata

    @property
    def captured(self) -> bool:
        """Whether its content was taken, so that what is written to the storage now would not be in it."""
        return self.tensor is None or self.extent is not None

    @property
    def emptied(self) -> bool:
        """Whether it was set aside, and could not be brought back."""
        return self.tensor is not None and not self.tensor.untyped_storage().nbytes()

    @property
    def changed(self) -> bool:
        """Whether the tensor in memory is not what was saved any more."""
        if self.tensor is None:
            return False
        if self.emptied:
            return True
        return self.tensor._version != self.version or any(
            one._version != version for one, version in chain(self.also, self.aliases)
        )

    @property
    def worthless(self) -> bool:
        """Whether it is not what was saved any more, and there is no copy: only who reads it is told so."""
        return self.changed and not self.captured and not self.emptied

    @property
    def written(self) -> bool:
        """Whether no write is under way."""
        return self.writing is None or self.writing.done

    def content(self) -> torch.Tensor:
        """What is in memory; raises `SavedTensorChanged` where that is not what was saved."""
        assert self.tensor is not None
        if self.spoiled or self.changed:
            raise SavedTensorChanged(CHANGED)
        return self.tensor

    def drop(self) -> None:
        """Hold no memory."""
        self.tensor = None
        self.also.clear()
        self.aliases.clear()

    def __del__(self) -> None:
        if self._obituaries is not None:
            transfer = self.writing or self.reading
            account = self.noted, self.counted
            obituary = Obituary(self.key, self.size, *account, self.extent, transfer, self.weak)
            self._obituaries.append(obituary)


@dataclass(frozen=True, slots=True)
class Handle:
    """A tensor that autograd saved: a part of a holding."""

    holding: Holding
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part of the storage that `tensor` lies in; a change of it is one of `tensor`."""
        return view_of(tensor, self.dtype, self.size, self.stride, self.offset)


@dataclass(frozen=True, slots=True)
class Plain:
    """A saved tensor that is left alone; hooks switch off autograd's own check of the version."""

    tensor: torch.Tensor
    version: int
