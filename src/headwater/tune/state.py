"""Where a training stands, in one file that is replaced whole after each epoch."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from headwater.data.atomic import replacing
from headwater.errors import ModelRefused
from headwater.models import weights

log = logging.getLogger("headwater")

FORMAT = 1
_DIGEST = 16


class Standing(msgspec.Struct, frozen=True):
    """What was done: whole runs, and so many epochs of the next one; what came of each.

    `accuracy` has an entry for each run that is over, None where no samples are held out; `losses` has a list
    for each run that was begun. `steps` are those in the journal, if there is one.
    """

    run: int = 0
    epoch: int = 0
    losses: tuple[tuple[float, ...], ...] = ()
    accuracy: tuple[float | None, ...] = ()
    steps: int = 0

    def trained(self, loss: float, *, steps: int = 0) -> Standing:
        """After one more epoch of the run, and so many steps in all."""
        before = self.losses[: self.run]
        during = self.losses[self.run] if len(self.losses) > self.run else ()
        return Standing(self.run, self.epoch + 1, (*before, (*during, loss)), self.accuracy, steps)

    def ended(self, accuracy: float | None) -> Standing:
        """After the last epoch of the run."""
        return Standing(self.run + 1, 0, self.losses, (*self.accuracy, accuracy), self.steps)


class _Content(msgspec.Struct, frozen=True):
    """What follows its digest in the file."""

    format: int
    standing: Standing
    plain: dict[str, Any]
    tensors: bytes


def save(
    path: Path, standing: Standing, *, tensors: Mapping[str, NDArray[Any]], plain: Mapping[str, Any]
) -> None:
    """Replace the file; whoever is killed meanwhile leaves the old one."""
    content = msgspec.msgpack.encode(_Content(FORMAT, standing, dict(plain), weights.dump(tensors)))
    with replacing(path) as file:
        file.write(_digest(content) + content)


def load(path: Path) -> tuple[Standing, dict[str, NDArray[Any]], dict[str, Any]] | None:
    """What was saved last; None if nothing was, or if it is damaged: training then begins anew."""
    if not path.exists():
        return None
    try:
        data = path.read_bytes()
        if data[:_DIGEST] != _digest(data[_DIGEST:]):
            raise ValueError("its digest is another one")
        found = msgspec.msgpack.decode(data[_DIGEST:], type=_Content)
        if found.format != FORMAT:
            raise ValueError(f"format {found.format}, this version reads {FORMAT}")
        return found.standing, weights.parse(memoryview(found.tensors)), found.plain
    except (OSError, ValueError, msgspec.MsgspecError, ModelRefused) as error:
        log.warning("the state in %s cannot be used (%s); training begins anew", path, error)
        return None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()
