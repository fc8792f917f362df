"""Building an index once, keeping it outside the user's data, and noticing what changed.

A dataset is a list of units (folders or shards), each with a fingerprint. Only units that are new
or changed are scanned. Finished units are written down every few seconds, so that an interrupted
build goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from headwater.data.forgotten import Forgotten
from headwater.data.index import Index
from headwater.data.indexcache import IndexCache
from headwater.data.progress import bar
from headwater.data.scans import Scan, Unit, assemble, kept

log = logging.getLogger("headwater")

FLUSH_SECONDS = 3.0
_SIFTED = "forgotten"  # in an index' notes: the digest of the list whose samples are left out
_FEWEST_SCANS = 64  # if there are as many units: what is not yet a finished scan is neither shown nor kept


class Layout(Protocol):
    """How a dataset is laid out: what its units are, and how to scan some of them."""

    identity: str
    """Address and options that shape the index; two layouts with one identity share a cached index."""
    numeric_labels: bool
    """Labels that all look like integers are integers."""
    exact_sizes: bool
    workers: int
    """Scans under way at once."""
    batch: int
    """Units per scan, at most."""

    def units(self, known: Mapping[str, str]) -> list[Unit]:
        """The units as they are now; `known` holds the fingerprints of the last time, by name."""

    def scan(self, units: Sequence[Unit]) -> Scan:
        """The rows of some units."""


def open_index(
    layout: Layout,
    *,
    refresh: bool = False,
    progress: bool | None = None,
    forgotten: Forgotten | None = None,
) -> Index:
    """The dataset's index: from the cache if nothing changed, else with only the changed units scanned.

    Samples that are `forgotten` are left out, and are not in the cache either.
    """
    gone = forgotten or None
    cache = _cache(layout, gone)
    old = None if refresh else cache.load()
    if old is None and gone and not refresh:
        old = _cache(layout, None).load()  # from before the first was forgotten
    known = {} if old is None else dict(zip(old.places.shards, old.notes["fingerprints"], strict=True))
    units = sorted(layout.units(known))
    sifted = old is not None and old.notes.get(_SIFTED, "") == (gone.digest if gone else "")
    same = all(known.values()) and units == [Unit(*pair) for pair in sorted(known.items())]
    if old is not None and same and sifted:
        return old
    done = [] if refresh else [_without(scan, gone) for scan in cache.load_parts()]
    before = None if old is None else _without(Scan.of_index(old), None if sifted else gone)
    scans = _reuse(units, before, done=done)
    scans += _scan_missing(layout, units, scans=scans, cache=cache, progress=progress, forgotten=gone)
    index = assemble(scans, units, numeric_labels=layout.numeric_labels, exact_sizes=layout.exact_sizes)
    if gone:
        index = replace(index, notes={**index.notes, _SIFTED: gone.digest})
    cache.save(index)
    return _without_private_copy(cache, index)


def _cache(layout: Layout, forgotten: Forgotten | None) -> IndexCache:
    """One for each list: who has forgotten nothing must find all."""
    identity = layout.identity if forgotten is None else f"{layout.identity}\n{forgotten.mark}"
    return IndexCache(hashlib.blake2b(identity.encode(), digest_size=16).hexdigest())


def _without(scan: Scan, forgotten: Forgotten | None) -> Scan:
    if forgotten is None:
        return scan
    gone = forgotten.among(scan.rows.column("id").to_numpy())
    return replace(scan, rows=scan.rows.filter(pa.array(~gone))) if gone.any() else scan


def _without_private_copy(cache: IndexCache, index: Index) -> Index:
    """The saved file mapped instead of the arrays just built, so that both opens cost the same memory."""
    saved = cache.load()
    return saved if saved is not None and saved.version == index.version else index


def _reuse(units: Sequence[Unit], old: Scan | None, *, done: Sequence[Scan]) -> list[Scan]:
    """What is known of the units from the last index and from an interrupted build."""
    candidates = list(done) if old is None else [*done, old]
    wanted = {unit for unit in units if unit.fingerprint}
    scans = []
    for scan in candidates:
        useful = kept(scan, wanted)
        wanted -= set(useful.units)
        scans.append(useful)
    return [scan for scan in scans if scan.units]


def _scan_missing(
    layout: Layout,
    units: Sequence[Unit],
    *,
    scans: Sequence[Scan],
    cache: IndexCache,
    progress: bool | None,
    forgotten: Forgotten | None,
) -> list[Scan]:
    have = {unit.name for scan in scans for unit in scan.units}
    missing = [unit for unit in units if unit.name not in have]
    size = max(min(layout.batch, len(missing) // _FEWEST_SCANS), 1)
    batches = [missing[start : start + size] for start in range(0, len(missing), size)]
    pool = ThreadPoolExecutor(layout.workers, thread_name_prefix="headwater-index")
    with bar("indexing", len(missing), wanted=progress) as advance:
        futures = [pool.submit(_scan, layout, batch, forgotten) for batch in batches]
        fresh = _collect(pool, futures, cache=cache, advance=advance)
    _tell_skipped(fresh)
    return fresh


def _scan(layout: Layout, units: Sequence[Unit], forgotten: Forgotten | None) -> Scan:
    return _without(layout.scan(units), forgotten)


def _collect(
    pool: ThreadPoolExecutor,
    futures: Sequence[Future[Scan]],
    *,
    cache: IndexCache,
    advance: Callable[[int], None],
) -> list[Scan]:
    """All scans; what is finished is written down every few seconds, and when the build is interrupted."""
    waiting = set(futures)
    unwritten: list[Scan] = []
    written = time.monotonic()
    try:
        for future in as_completed(futures):
            scan = future.result()
            waiting.discard(future)
            unwritten.append(scan)
            advance(len(scan.units))
            if time.monotonic() - written > FLUSH_SECONDS:
                cache.save_part(unwritten)
                unwritten, written = [], time.monotonic()
    except BaseException:
        # Ctrl-C too. Scans that were under way are waited for: they are finished work as well.
        pool.shutdown(wait=True, cancel_futures=True)
        done = [future for future in waiting if not future.cancelled() and future.exception() is None]
        cache.save_part([*unwritten, *(future.result() for future in done)])
        raise
    pool.shutdown()
    return [future.result() for future in futures]


def _tell_skipped(scans: Sequence[Scan]) -> None:
    totals: dict[str, int] = {}
    for scan in scans:
        for reason, count in scan.skipped.items():
            totals[reason] = totals.get(reason, 0) + count
    for reason, count in sorted(totals.items()):
        log.warning("indexing left out %d %s", count, reason)
