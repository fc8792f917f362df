"""What selections have come to, as files: samples with their weights, and what a run has shown so far."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.index import Index, content_digest, read_batch, write_batch
from headwater.errors import StateMismatch, WrongUse
from headwater.measure.signalfile import as_batch, drop_tables, read_signals
from headwater.measure.signals import Signals
from headwater.models.version import canonical, digest_of
from headwater.store.wire.selectionpages import Chosen

log = logging.getLogger("headwater")

MOST_SELECTIONS = 32
"""That are kept; the oldest goes first."""
MOST_BYTES = 1 << 30
"""Of all that are kept: those with bytes of each sample are large. The one that was put last stays."""
MOST_RUNS = 8
"""Of which it is kept what they have shown; the one that was not heard of for longest goes first."""

_JOB = re.compile(r"[0-9a-f]{16}")
_HEADER = b"headwater.selection"
_FORMAT = 1
_SUFFIX = ".arrow"


@dataclass(frozen=True, eq=False)
class Kept:
    """A selection: ids that ascend in the order of the data, a weight each, and of which data.

    `rows` are bytes that tell each apart, where the job was asked for them.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    dataset: str
    version: str
    rows: NDArray[np.uint8] | None = None

    @property
    def chosen(self) -> Chosen:
        """As it goes out."""
        rows = np.empty((len(self.ids), 0), np.uint8) if self.rows is None else self.rows
        return Chosen(self.ids, self.weights, rows)

    @property
    def digest(self) -> str:
        return self.chosen.digest()


class Selections:
    """The selections of a store's jobs, by job, and the runs that asked for them; below one folder.

    One thread writes, any may read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, job: str, kept: Kept) -> None:
        """On disk when this returns; older ones may be gone."""
        _prepare(self._folder)
        batch = kept.chosen.batch()
        header: dict[str, Any] = {"format": _FORMAT, "dataset": kept.dataset, "version": kept.version}
        header["content"] = content_digest(batch, header)
        write_batch(self._path(job), batch.replace_schema_metadata({_HEADER: msgspec.json.encode(header)}))
        for path in _to_go(self._folder.glob(f"*{_SUFFIX}")):
            path.unlink(missing_ok=True)

    def get(self, job: str) -> Kept:
        """Raises `WrongUse` where there is none, or none any more, or only a damaged one."""
        try:
            if not _JOB.fullmatch(job):
                raise FileNotFoundError
            return _read(self._path(job))
        except FileNotFoundError:
            raise WrongUse(f"no selection of job {job[:64]!r} is kept here; start another job") from None
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError) as error:
            log.error("the selection of job %s cannot be used: %s", job, error)
            raise WrongUse(f"the selection of job {job!r} is damaged; start another job") from error

    def forget(self, dataset: str, known: Collection[str]) -> int:
        """Remove what was selected of a dataset, and what runs have shown of data that nobody has any more.

        `known` are the versions of all datasets that there are. How many files went.
        """
        found = [path for path in self._folder.glob(f"*{_SUFFIX}") if _dataset_of(path) in (dataset, None)]
        for path in (*found, *self._folder.glob(".*")):
            path.unlink(missing_ok=True)
        return len(found) + drop_tables(self._folder / "runs", lambda version: version not in known)

    def run(self, *names: str) -> Run:
        """What is known of a training run; all these names tell it from others."""
        return Run(self._folder / "runs", digest_of(canonical(list(names))))

    def _path(self, job: str) -> Path:
        return self._folder / f"{job}{_SUFFIX}"


class Run:
    """The tables of signals that the rounds of one run have left, by epoch: the last two.

    A round looks at those before it and writes its own, so that it may be done again.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._place = folder, folder / key

    def before(self, epoch: int, index: Index) -> Signals:
        """The table that the round before this epoch has left; one that cannot be used counts for nothing."""
        earlier = [path for path in self._tables() if _epoch(path) < epoch]
        for path in reversed(earlier):
            try:
                return read_signals(path, index)
            except StateMismatch as error:
                log.warning("what a run has shown is passed over: %s", error)
        return Signals(index)

    def put(self, epoch: int, signals: Signals, *, dataset: str) -> None:
        """Keep the table of a round; those of later ones go, because the run went back to before them."""
        _prepare(self._place)
        batch, _ = as_batch(signals, dataset=dataset)
        write_batch(self._place / f"{epoch:010d}{_SUFFIX}", batch)
        tables = self._tables()
        own = [_epoch(path) for path in tables].index(epoch)
        for path in (*tables[: max(0, own - 1)], *tables[own + 1 :]):
            path.unlink(missing_ok=True)
        for folder in _oldest((path for path in self._folder.iterdir() if path.is_dir()), but=MOST_RUNS):
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self) -> None:
        """No other round comes."""
        shutil.rmtree(self._place, ignore_errors=True)

    def _tables(self) -> list[Path]:
        return sorted(path for path in self._place.glob(f"*{_SUFFIX}") if path.stem.isdigit())


def _dataset_of(path: Path) -> str | None:
    """None for what cannot be read."""
    try:
        return _read(path).dataset
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError):
        return None


def _prepare(folder: Path) -> None:
    """Make the folder, and remove what a process was about to write there when it was killed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.glob(".*"):
        path.unlink(missing_ok=True)


def _epoch(path: Path) -> int:
    return int(path.stem)


def _oldest(paths: Iterable[Path], *, but: int) -> list[Path]:
    """All that are there, the newest so many left out."""
    found = sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return found[: max(0, len(found) - but)]


def _to_go(paths: Iterable[Path]) -> list[Path]:
    """Selections that are too many, or with those after them too large."""
    newest = _oldest(paths, but=0)[::-1]
    sizes = np.cumsum([path.stat().st_size for path in newest])
    return [
        path
        for number, path in enumerate(newest)
        if number and (number >= MOST_SELECTIONS or sizes[number] > MOST_BYTES)
    ]


def _read(path: Path) -> Kept:
    batch = read_batch(path)
    header = msgspec.json.decode((batch.schema.metadata or {})[_HEADER])
    batch.validate(full=True)
    if header.pop("content") != content_digest(batch, header) or header["format"] != _FORMAT:
        raise ValueError("its digest does not match its content")
    found = Chosen.of(batch)
    return Kept(found.ids, found.weights, header["dataset"], header["version"], found.rows)
