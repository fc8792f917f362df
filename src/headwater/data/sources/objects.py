"""Objects of an S3 bucket as files, through obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from headwater.data.files import LISTING, Buffer, Fingerprint, Span, stale
from headwater.data.sources.profiles import settings
from headwater.errors import DatasetError, DatasetNotFound, ForkedUse, Unreachable

LISTED_AT_ONCE = 1000
NEIGHBOURS = 16 << 10
"""Spans of one object with a smaller gap are one request: in a tar, headers and labels lie between images."""
LARGEST_REQUEST = 4 << 20

_STATUS = re.compile(r"status code: (\d+)")
_LOOKUP = "/latest/"
"""In the address that hands credentials to machines in a cloud: asked only when none were given."""
_CONNECT_SECONDS = 5
_READ_SECONDS = 30
_WHOLE_SECONDS = 600  # a whole row group over a slow link
_RETRY_SECONDS = 30


class S3Files:
    """The objects of one bucket. Must not be used in a forked child: obstore's threads do not exist there."""

    remote = True

    def __init__(self, bucket: str, storage: Mapping[str, str]) -> None:
        self._bucket = bucket
        self._process = _process_of_first_use()
        self._check_process()
        config = settings(storage)
        self._endpoint = config.get("endpoint", "")
        self._store = _connect(bucket, config)

    def list_files(self, prefix: str) -> pa.Table:
        self._check_process()
        with self._errors(prefix or "the bucket"):
            pages = obstore.list(self._store, prefix or None, chunk_size=LISTED_AT_ONCE)
            chunks = [_chunk(rows) for rows in pages]
        table = pa.Table.from_batches(chunks, schema=LISTING)
        below = pc.utf8_slice_codeunits(table.column("path"), len(prefix))
        hidden = pc.match_substring_regex(below, r"(^|/)\.")
        return table.filter(pc.invert(hidden)).sort_by("path")

    def fingerprint(self, path: str) -> Fingerprint:
        self._check_process()
        with self._errors(path):
            meta = obstore.head(self._store, path)
        return Fingerprint(meta["size"], meta["e_tag"] or str(meta["last_modified"]))

    def read_range(self, path: str, start: int, length: int) -> Buffer:
        self._check_process()
        with self._errors(path):
            return _view(obstore.get(self._store, path, options={"range": (start, start + length)}))

    def read_whole(self, path: str) -> Buffer:
        self._check_process()
        with self._errors(path):
            return _view(obstore.get(self._store, path))

    def read_many(self, spans: Sequence[Span]) -> list[Buffer]:
        """One request after another: whoever wants several under way reads from several threads."""
        self._check_process()
        out: dict[int, Buffer] = {}
        for group in neighbours(spans):
            whole = self._read(_cover(spans, group))
            base = spans[group[0]].start
            for place in group:
                start = spans[place].start - base
                out[place] = whole[start : start + spans[place].length]
        return [out[place] for place in range(len(spans))]

    def close(self) -> None:
        return None

    def _read(self, span: Span) -> Buffer:
        if not span.length:
            return b""
        try:
            with self._errors(span.path):
                options = {"range": (span.start, span.start + span.length)}
                result = obstore.get(self._store, span.path, options=options)  # type: ignore[arg-type]
                size = int(result.meta["size"])
                data = _view(result)
        except DatasetNotFound as error:
            raise stale(span, None) from error
        except DatasetError as error:
            # A range past the end is an error of the server, and means that the object shrank.
            size = self.fingerprint(span.path).size
            if size == span.size:
                raise
            raise stale(span, size) from error
        if size != span.size or len(data) != span.length:
            raise stale(span, size)
        return data

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedUse(
                f"bucket {self._bucket} was opened in process {self._process} and is used in a forked child; "
                "use threads, or the spawn start method"
            )

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """obstore's errors as ours."""
        where = f"s3://{self._bucket}/{path}"
        try:
            yield
        except (FileNotFoundError, NotFoundError) as error:
            raise DatasetNotFound(f"nothing at {where}; check the address") from error
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise DatasetError(f"not allowed to read {where}; check {_CREDENTIALS}") from error
        except BaseError as error:
            raise _explained(error, where, endpoint=self._endpoint) from error


@cache
def _process_of_first_use() -> int:
    """obstore hangs in every forked child of this process, with a new client too; spawned ones start anew."""
    return os.getpid()


_CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile in ~/.aws, or pass storage={...}"


def neighbours(spans: Sequence[Span]) -> list[list[int]]:
    """Places of spans that are one request: same object, hardly a gap, not too large together."""
    order = sorted(range(len(spans)), key=lambda place: (spans[place].path, spans[place].start))
    groups: list[list[int]] = []
    begin = end = 0
    for place in order:
        span = spans[place]
        stop = span.start + span.length
        same = groups and spans[groups[-1][0]].path == span.path and spans[groups[-1][0]].size == span.size
        if same and span.start - end <= NEIGHBOURS and max(stop, end) - begin <= LARGEST_REQUEST:
            groups[-1].append(place)
            end = max(end, stop)
        else:
            groups.append([place])
            begin, end = span.start, stop
    return groups


def _cover(spans: Sequence[Span], group: Sequence[int]) -> Span:
    first = spans[group[0]]
    stop = max(spans[place].start + spans[place].length for place in group)
    return first._replace(length=stop - first.start)


def _connect(bucket: str, config: Mapping[str, str]) -> S3Store:
    try:
        return S3Store(
            bucket,
            config=dict(config),  # type: ignore[arg-type]
            client_options={
                "allow_http": config.get("endpoint", "").startswith("http://"),
                "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
                "read_timeout": timedelta(seconds=_READ_SECONDS),
                "timeout": timedelta(seconds=_WHOLE_SECONDS),
            },
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
        )
    except (BaseError, ValueError, TypeError) as error:
        raise DatasetError(f"bucket {bucket} cannot be set up: {error}; check storage={{...}}") from error


def _chunk(rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    tags = [row["e_tag"] or str(row["last_modified"]) for row in rows]
    columns = ([row["path"] for row in rows], [row["size"] for row in rows], tags)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LISTING, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LISTING)


def _view(result: obstore.GetResult) -> memoryview:
    data = memoryview(result.bytes())
    return data.cast("B") if len(data) else memoryview(b"")


def _explained(error: Exception, where: str, *, endpoint: str) -> Exception:
    """An error that obstore only tells apart by its text: listings and lookups of credentials."""
    text = str(error).split("\n", 1)[0]
    status = _STATUS.search(text)
    if _LOOKUP in text:
        return DatasetError(f"no credentials for {where}; set {_CREDENTIALS}")
    if status and status[1] == "404":
        return DatasetNotFound(f"nothing at {where}; check the address")
    if status and status[1] in ("401", "403"):
        return DatasetError(f"not allowed to read {where}; check {_CREDENTIALS}")
    if status and status[1] < "500":
        return DatasetError(f"{where} cannot be read: {text}")
    return Unreachable(f"{endpoint or 'S3'} does not answer for {where} ({text}); check endpoint and network")
