"""The journal of a new run: written beside its place, and put there when it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.data.atomic import sync_folder
from headwater.train.replay.request import Request
from headwater.train.replay.writer import JournalWriter, told


@contextmanager
def writing(request: Request, path: Path, *, followed: bool) -> Iterator[JournalWriter]:
    """A writer whose journal takes its place once it was sealed; what was there before goes then.

    A `followed` run says from which one that was trained in full it comes.
    """
    part = path.with_name(f".{path.name}.part")
    with told(part):
        part.unlink(missing_ok=True)
    writer = JournalWriter(part, request.header())
    try:
        if followed:
            writer.derive(request.journal.origin)
        if request.targets is not None:
            writer.target(request.targets)
        writer.miss(request.journal.file.missing)
        yield writer
        with told(path):
            os.replace(part, path)
            sync_folder(path.resolve().parent)
    except BaseException:
        writer.discard()
        raise
