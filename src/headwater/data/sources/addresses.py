"""From what the user wrote to what lies there: brace patterns, globs, folders, lists, buckets."""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from glob import escape

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.data.files import LISTING, Files, LocalFiles
from headwater.data.sources.base import IMAGE_SUFFIXES, SourceOptions
from headwater.errors import DatasetError, DatasetNotFound, WrongUse

SHARDS = {"tar": "tar", "parquet": "parquet"}
"""Suffix of a shard > its layout."""
COMPRESSED = re.compile(r"(?i)\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz)$")
MOST_NAMES = 1_000_000
"""A brace pattern that stands for more is a slip of the keyboard."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_SHARD = re.compile(r"(?i)\.(tar|parquet)$")
_IMAGE = re.compile(r"(?i)\.(" + "|".join(IMAGE_SUFFIXES) + ")$")
_DIRECT = re.compile(r"(?i)[^/]*\.(tar|parquet)$")
_ENDINGS = tuple(f".{suffix}" for suffix in SHARDS)
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, eq=False)
class Address:
    """A dataset that was found: its layout, and the shards or (in a bucket) objects that it consists of.

    `root` is the folder, or the folder that all shards have in common; `listing` is empty for a
    folder of this machine, which is walked while it is indexed.
    """

    uri: str
    layout: str
    files: Files
    root: str
    listing: pa.Table

    @property
    def place(self) -> str:
        """The root as an address: the same however what lies there was named."""
        if not self.files.remote:
            return os.path.realpath(self.root)
        return f"s3://{self.uri.split('/')[2]}/{self.root}".rstrip("/")

    def names(self) -> list[str]:
        """Paths below the root, in the listing's order."""
        start = len(self.root.rstrip("/")) + 1 if self.root else 0
        return [path[start:] for path in self.listing.column("path").to_pylist()]

    def digest(self) -> str:
        """Changes when any listed object does."""
        text = hashlib.blake2b(digest_size=16)
        for name in self.listing.column_names:
            text.update("\n".join(self.listing.column(name).cast(pa.large_string()).to_pylist()).encode())
        return text.hexdigest()


def expand_braces(pattern: str) -> list[str]:
    """`a-{00..02}.tar` and `{a,b}.tar` as the names that they stand for; leading zeros are kept."""
    pieces = _BRACES.split(pattern)
    choices = [[text] if place % 2 == 0 else _choices(text) for place, text in enumerate(pieces)]
    total = int(np.prod([len(some) for some in choices], dtype=object))
    if total > MOST_NAMES:
        raise WrongUse(f"{pattern!r} stands for {total} names, at most {MOST_NAMES} are allowed")
    return ["".join(parts) for parts in itertools.product(*choices)]


def locate(uri: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: SourceOptions) -> Address:
    """What lies at `uri`; raises `DatasetNotFound` if nothing does."""
    written = [uri] if isinstance(uri, str | os.PathLike) else list(uri)
    names = [name for one in written for name in _names(os.fspath(one))]
    if not names:
        raise WrongUse("an empty list of addresses; name at least one")
    files, paths = _files(names, options.storage)
    canonical = "\n".join(_canonical(os.fspath(one)) for one in written)
    parts = _find(files, paths, options.split)
    layouts = sorted({layout for layout, _, _ in parts})
    if len(layouts) > 1:
        raise WrongUse(f"{canonical} holds {' and '.join(layouts)} at once; name one kind with a pattern")
    if layouts == ["folder"]:
        return _folder(files, parts, uri=canonical)
    listing = _distinct(pa.concat_tables([listing for _, _, listing in parts]))
    root = os.path.commonpath([os.path.dirname(path) for path in listing.column("path").to_pylist()])
    return Address(canonical, layouts[0], files, root, listing)


_Part = tuple[str, str, pa.Table]  # layout, root, listing


def _folder(files: Files, parts: Sequence[_Part], *, uri: str) -> Address:
    if len(parts) > 1:
        raise WrongUse(f"{len(parts)} image folders at once; open each of them by itself")
    _, root, listing = parts[0]
    # Images are opened once each: keeping their descriptors would only push useful ones out.
    return Address(uri, "folder", files if files.remote else LocalFiles(descriptors=0), root, listing)


def _names(written: str) -> list[str]:
    """The addresses that one written by the user stands for; a path that exists stands for itself."""
    if os.path.exists(whole := _canonical(written)):
        return [whole]
    return [_canonical(name) for name in expand_braces(written)]


def _is_pattern(files: Files, path: str) -> bool:
    """What exists is what it is called, whatever its letters; a bucket would have to be asked."""
    return bool(_GLOB.search(path)) and (files.remote or not os.path.exists(path))


def _find(files: Files, paths: Sequence[str], split: str | None) -> list[_Part]:
    patterns = {path for path in paths if _is_pattern(files, path)}
    parts = _named_shards(files, [path for path in paths if _SHARD.search(path) and path not in patterns])
    for path in paths:
        if COMPRESSED.search(path):
            raise DatasetError(f"{path} is compressed, so its members cannot be read in place; decompress it")
        if path in patterns:
            parts += _matching(files, path)
        elif not _SHARD.search(path):
            parts.append(_inside(files, path, split))
    return parts


def _named_shards(files: Files, paths: Sequence[str]) -> list[_Part]:
    """Shards that were named one by one; in a bucket one listing is cheaper than many requests."""
    if files.remote and len(paths) > 8:
        listing = _selected(files, paths)
    else:
        rows = [(path, *files.fingerprint(path)) for path in paths]
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        listing = pa.table(dict(zip(LISTING.names, columns, strict=True)), schema=LISTING)
    return _by_layout(listing)


def _selected(files: Files, paths: Sequence[str]) -> pa.Table:
    folders = sorted({posixpath.dirname(path) for path in paths})
    listing = pa.concat_tables([files.list_files(folder) for folder in folders])
    found = listing.filter(pc.is_in(listing.column("path"), pa.array(paths, pa.large_string())))
    missing = set(paths) - set(found.column("path").to_pylist())
    if missing:
        raise DatasetNotFound(f"no file {min(missing)}, and {len(missing) - 1} more; check the address")
    return found


def _matching(files: Files, pattern: str) -> list[_Part]:
    folder = posixpath.dirname(pattern)
    while _is_pattern(files, folder):
        folder = posixpath.dirname(folder)
    listing = files.list_files(folder)
    # `*` must not cross folders, as in a shell; fnmatch lets it, so `.*` becomes `[^/]*`.
    expression = translate(escape(folder) + pattern[len(folder) :])
    expression = expression.replace("(?s:", "(?:").replace(".*", "[^/]*")
    match = re.compile(expression).match
    keep = [bool(match(path)) and bool(_SHARD.search(path)) for path in listing.column("path").to_pylist()]
    found = listing.filter(pa.array(keep, pa.bool_()))
    if not found.num_rows:
        raise DatasetNotFound(f"no .tar or .parquet file matches {pattern}")
    return _by_layout(found)


def _by_layout(listing: pa.Table) -> list[_Part]:
    parts = []
    for suffix, layout in SHARDS.items():
        found = listing.filter(pc.match_substring_regex(listing.column("path"), rf"(?i)\.{suffix}$"))
        if found.num_rows:
            parts.append((layout, "", found))
    return parts


def _inside(files: Files, path: str, split: str | None) -> _Part:
    """What kind of dataset a folder holds."""
    if files.remote:
        return _inside_bucket(files, path, split)
    if not os.path.isdir(path):
        kind = "is no folder, .tar or .parquet file" if os.path.exists(path) else "does not exist"
        raise DatasetNotFound(f"{path} {kind}; check the address")
    if split and os.path.isdir(os.path.join(path, split)):
        path, split = os.path.join(path, split), None
    layout = _layout_of_folder(path)
    if layout != "folder":
        return _shards_of(files.list_files(path), layout, path=path, split=split)
    if split:
        raise DatasetNotFound(f"{path} has no split {split!r}: no folder and no shard of that name")
    return layout, path, LISTING.empty_table()


def _inside_bucket(files: Files, path: str, split: str | None) -> _Part:
    listing = files.list_files(path)
    if split:
        below = f"{path}/{split}/" if path else f"{split}/"
        narrowed = listing.filter(pc.starts_with(listing.column("path"), below))
        if narrowed.num_rows:
            listing, path, split = narrowed, below.rstrip("/"), None
    layout = _layout_of_listing(listing, path)
    if layout is None:
        raise DatasetNotFound(f"no image, .tar or .parquet file below {path or 'the bucket'}; check it")
    if layout != "folder":
        return _shards_of(listing, layout, path=path, split=split)
    if split:
        raise DatasetNotFound(f"{path} has no split {split!r}: no folder and no shard of that name")
    return layout, path, listing


def _shards_of(listing: pa.Table, layout: str, *, path: str, split: str | None) -> _Part:
    paths = listing.column("path")
    found = listing.filter(pc.match_substring_regex(paths, rf"(?i)\.{layout}$"))
    if split:
        belongs = re.compile(rf"/{re.escape(split)}(/|[^/a-zA-Z0-9][^/]*$)").search
        keep = [bool(belongs("/" + name[len(path) :])) for name in found.column("path").to_pylist()]
        found = found.filter(pa.array(keep, pa.bool_()))
    if not found.num_rows:
        raise DatasetNotFound(f"no .{layout} file of split {split!r} below {path}")
    return layout, path, found


def _layout_of_listing(listing: pa.Table, path: str) -> str | None:
    """The layout of a bucket's folder, from its shards and its first image: there may be millions."""
    names = pc.utf8_slice_codeunits(listing.column("path"), len(path) + 1 if path else 0)
    shards = names.filter(pc.match_substring_regex(names, rf"{_SHARD.pattern}|{COMPRESSED.pattern}"))
    image = pc.index(pc.match_substring_regex(names, _IMAGE.pattern), True).as_py()
    first = [names[image].as_py()] if image >= 0 else []
    return _layout_of_names(sorted([*shards.to_pylist(), *first]))


def _layout_of_folder(path: str) -> str:
    """Shards directly in the folder decide; else the first image or shard below it, without a full walk."""
    layout = _layout_of_names(os.listdir(path))
    if layout:
        return layout
    for _, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        layout = _layout_of_names(names)
        if layout:
            return layout
    return "folder"


def _layout_of_names(found: Sequence[str]) -> str | None:
    """What names below a folder make of it; shards directly in it win over pictures beside them."""
    shards = [name for name in found if name.lower().endswith(_ENDINGS)]
    direct = {match[1].lower() for name in shards if (match := _DIRECT.match(name))}
    if len(direct) > 1:
        raise WrongUse("the folder holds .tar and .parquet files at once; name one kind with a pattern")
    if direct:
        return SHARDS[direct.pop()]
    if not any(map(_IMAGE.search, found)) and any(map(COMPRESSED.search, found)):
        raise DatasetError("compressed tars, whose members cannot be read in place; decompress them")
    for name in found:
        if _IMAGE.search(name):
            return "folder"
        if match := _SHARD.search(name):
            return SHARDS[match[1].lower()]
    return None


def _files(names: Sequence[str], storage: Mapping[str, str]) -> tuple[Files, list[str]]:
    buckets = {name.split("/")[2] if name.startswith("s3://") else "" for name in names}
    if len(buckets) > 1:
        raise WrongUse(f"addresses in {len(buckets)} places at once; open each of them by itself")
    (bucket,) = buckets
    if not bucket:
        return LocalFiles(), list(names)
    from headwater.data.sources.objects import S3Files

    return S3Files(bucket, storage), [name.removeprefix(f"s3://{bucket}").strip("/") for name in names]


def _canonical(name: str) -> str:
    """One spelling per place: absolute for this machine, no trailing slash."""
    if name.startswith("s3://"):
        if not name.removeprefix("s3://").split("/")[0]:
            raise WrongUse(f"{name!r} names no bucket; write s3://bucket/prefix")
        return "s3://" + re.sub("/+", "/", name.removeprefix("s3://")).rstrip("/")
    scheme = re.match(r"([a-z][a-z0-9+]*)://", name)
    if scheme and scheme[1] != "file":
        raise WrongUse(f"no source reads {scheme[1]}://; known: a local path, file://, s3://")
    return os.path.abspath(os.path.expanduser(name.removeprefix("file://")))


def _choices(text: str) -> list[str]:
    span = _RANGE.fullmatch(text)
    if not span:
        return text.split(",") if "," in text else ["{" + text + "}"]
    first, last = int(span[1]), int(span[2])
    if abs(last - first) >= MOST_NAMES:
        raise WrongUse(f"{{{text}}} stands for more than {MOST_NAMES} names")
    width = max(len(span[1]), len(span[2])) if span[1].startswith("0") or span[2].startswith("0") else 0
    step = 1 if last >= first else -1
    return [str(number).zfill(width) for number in range(first, last + step, step)]


def _distinct(listing: pa.Table) -> pa.Table:
    """Sorted, each file once."""
    listing = listing.sort_by("path")
    paths = listing.column("path").to_pylist()
    keep = [place == 0 or path != paths[place - 1] for place, path in enumerate(paths)]
    return listing.filter(pa.array(keep, pa.bool_()))
