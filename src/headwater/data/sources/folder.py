"""Image folders: one file per sample, classes by first-level folder, on disk or in a bucket."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.data.atomic import sync_folder
from headwater.data.files import Buffer, Span
from headwater.data.index import Index
from headwater.data.indexing import open_index
from headwater.data.scans import Scan, Unit, make_rows
from headwater.data.sources.addresses import Address
from headwater.data.sources.base import IMAGE_SUFFIXES, Positions, SourceOptions
from headwater.errors import DatasetError, DatasetNotFound, WrongUse

_SUFFIXES = frozenset(IMAGE_SUFFIXES)
_PATTERN = r"(?i)\.(" + "|".join(IMAGE_SUFFIXES) + ")$"
_INSTEAD = "check its permissions, or forget without deleting files"
_RACY_NS = 50_000_000
"""A folder touched this recently may change again within one tick of the file system's clock."""


class FolderSource:
    """Samples that are files of their own; the key is the path below the root."""

    def __init__(self, address: Address, options: SourceOptions) -> None:
        _refuse_columns(address.uri, options)
        self.uri = address.uri
        self.remote = address.files.remote
        self.cached_bytes: int | None = None
        self._files = address.files
        self._root = address.root
        identity = msgspec.json.encode(["folder", address.uri, options.shape()]).decode()
        layout = BucketLayout(address, identity) if self.remote else FolderLayout(address.root, identity)
        self.index: Index = open_index(
            layout, refresh=options.refresh, progress=options.progress, forgotten=options.forgotten
        )
        if not len(self.index):
            kinds = ", ".join(f".{suffix}" for suffix in IMAGE_SUFFIXES)
            raise DatasetNotFound(f"no image below {address.uri}; looked for {kinds}")

    def read(self, positions: Positions) -> list[Buffer]:
        sizes = self.index.sizes[positions].tolist()
        paths = self._paths(positions)
        return self._files.read_many([Span(p, 0, size, size) for p, size in zip(paths, sizes, strict=True)])

    def read_heads(self, positions: Positions, length: int) -> list[Buffer]:
        sizes = self.index.sizes[positions].tolist()
        paths = self._paths(positions)
        spans = [Span(p, 0, min(length, size), size) for p, size in zip(paths, sizes, strict=True)]
        return self._files.read_many(spans)

    def read_fields(self, positions: Positions) -> dict[str, list[object]]:
        return {}

    def blocks(self) -> Positions | None:
        return None

    def check_deletable(self, keys: Sequence[str]) -> None:
        if self.remote:
            raise WrongUse(
                f"objects of {self.uri} are not deleted from here; forget without deleting files, and delete "
                "them with the bucket's own tools"
            )
        for folder in sorted({os.path.dirname(os.path.join(self._root, key)) for key in keys}):
            if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
                raise DatasetError(f"cannot delete files in {folder}: it may not be written to; {_INSTEAD}")

    def delete(self, keys: Sequence[str]) -> int:
        self.check_deletable(keys)
        found = 0
        for key in keys:
            path = os.path.join(self._root, key)
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise DatasetError(f"cannot delete {path}: {error.strerror}; {_INSTEAD}") from error
            sync_folder(Path(path).parent)
            found += 1
        return found

    def close(self) -> None:
        self._files.close()

    def _paths(self, positions: Positions) -> list[str]:
        prefix = f"{self._root.rstrip('/')}/" if self._root else ""
        return [prefix + key for key in self.index.keys.take(pa.array(positions)).to_pylist()]


class FolderLayout:
    """A folder of this machine: its units are its directories, told apart by their mtimes."""

    numeric_labels = False
    exact_sizes = True
    workers = 1  # names and sizes come from the kernel's cache; more threads only fight for the GIL
    batch = 64

    def __init__(self, root: str, identity: str) -> None:
        self.identity = identity
        self._root = root
        self._real_root = os.path.realpath(root)

    def units(self, known: Mapping[str, str]) -> list[Unit]:
        """Every directory; one whose mtime is known has the sub-directories that are known of it."""
        children: dict[str, list[str]] = {}
        for name in known:
            if name:
                children.setdefault(os.path.dirname(name), []).append(name)
        found = []
        waiting: list[tuple[str, tuple[str, ...]]] = [("", (self._real_root,))]
        while waiting:
            name, ancestors = waiting.pop()
            unit = Unit(name, self._fingerprint(name))
            found.append(unit)
            if unit.fingerprint and known.get(name) == unit.fingerprint:
                waiting += [(child, ancestors) for child in children.get(name, ())]
            else:
                waiting += self._subfolders(name, ancestors)
        return found

    def scan(self, units: Sequence[Unit]) -> Scan:
        keys: list[str] = []
        sizes: list[int] = []
        counts: list[int] = []
        skipped: dict[str, int] = {}
        for unit in units:
            images = self._images(unit.name, skipped)
            keys += [key for key, _ in images]
            sizes += [size for _, size in images]
            counts.append(len(images))
        classes = pa.array([unit.name.partition("/")[0] or None for unit in units], pa.large_string())
        number = np.repeat(np.arange(len(units), dtype=np.int32), counts)
        nowhere = np.zeros(len(keys), np.int64)
        rows = make_rows(keys, sizes, unit=number, labels=classes.take(pa.array(number)), offsets=nowhere)
        return Scan(tuple(units), rows, skipped=skipped)

    def _fingerprint(self, name: str) -> str:
        try:
            changed = os.stat(self._path(name)).st_mtime_ns
        except OSError as error:
            raise DatasetError(f"cannot look at {error.filename}: {error.strerror}; open it again") from error
        return "" if time.time_ns() - changed < _RACY_NS else str(changed)

    def _subfolders(self, name: str, ancestors: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
        found = []
        with _scandir(self._path(name)) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_dir() or not _is_text(entry.name):
                    continue
                child = f"{name}/{entry.name}" if name else entry.name
                if not entry.is_symlink():
                    found.append((child, (*ancestors, os.path.join(ancestors[-1], entry.name))))
                    continue
                real = os.path.realpath(entry.path)
                if self._is_inside(real) and real not in ancestors:
                    found.append((child, (*ancestors, real)))
        return found

    def _images(self, name: str, skipped: dict[str, int]) -> list[tuple[str, int]]:
        """Key and size of the images directly in one directory, sorted."""
        prefix = f"{name}/" if name else ""
        found = []
        with _scandir(self._path(name)) as entries:
            for entry in entries:
                reason = self._reason_to_skip(entry)
                if reason is None:
                    found.append((prefix + entry.name, entry.stat().st_size))
                elif reason:
                    skipped[reason] = skipped.get(reason, 0) + 1
        found.sort()
        return found

    def _reason_to_skip(self, entry: os.DirEntry[str]) -> str | None:
        """None for an image, "" for what is no image, else what to tell the user."""
        _, dot, suffix = entry.name.rpartition(".")
        is_image = bool(dot) and suffix.lower() in _SUFFIXES
        if entry.is_symlink():
            if (is_image or entry.is_dir()) and not self._is_inside(os.path.realpath(entry.path)):
                return "links that leave the folder"
            if is_image and not os.path.exists(entry.path):
                return "links that lead nowhere"
        if not is_image or not entry.is_file():
            return ""
        if entry.name.startswith("."):
            return "hidden files"
        return None if _is_text(entry.name) else "files whose names are not UTF-8"

    def _is_inside(self, real: str) -> bool:
        return real == self._real_root or real.startswith(self._real_root.rstrip("/") + "/")

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name) if name else self._root


class BucketLayout:
    """A folder in a bucket: one unit, whose rows and fingerprint come from the listing alone."""

    numeric_labels = False
    exact_sizes = True
    workers = 1
    batch = 1

    def __init__(self, address: Address, identity: str) -> None:
        self.identity = identity
        self._address = address

    def units(self, known: Mapping[str, str]) -> list[Unit]:
        return [Unit("", self._address.digest())]

    def scan(self, units: Sequence[Unit]) -> Scan:
        listing = self._address.listing
        listing = listing.filter(pc.match_substring_regex(listing.column("path"), _PATTERN))
        start = len(self._address.root) + 1 if self._address.root else 0
        keys = pc.utf8_slice_codeunits(listing.column("path"), start).combine_chunks()
        folders = pc.replace_substring_regex(keys, r"/?[^/]*$", "")
        # The order of a folder on disk: by directory, then by name. A copy has the same version then.
        by = [("folder", "ascending"), ("key", "ascending")]
        order = pc.sort_indices(pa.table({"folder": folders, "key": keys}), by)
        keys, sizes = keys.take(order), listing.column("size").take(order).to_numpy()
        first = pc.replace_substring_regex(keys, r"/.*$", "")
        labels = pc.if_else(pc.match_substring(keys, "/"), first, pa.scalar(None, pa.large_string()))
        zeros = np.zeros(len(keys), np.int64)
        rows = make_rows(keys, sizes, unit=zeros.astype(np.int32), labels=labels, offsets=zeros)
        return Scan(tuple(units), rows)


def _refuse_columns(uri: str, options: SourceOptions) -> None:
    given = {"image": options.image, "label": options.label, "fields": options.fields or None}
    wrong = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if wrong:
        raise WrongUse(f"{', '.join(wrong)} for the image folder {uri}; these are for tars and Parquet")


def _scandir(path: str) -> os.ScandirIterator[str]:  # type: ignore[name-defined]
    try:
        return os.scandir(path)
    except OSError as error:
        raise DatasetError(f"cannot list {path}: {error.strerror}; check its permissions") from error


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
