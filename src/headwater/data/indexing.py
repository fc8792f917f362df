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
from typing import Protocol

from headwater.data.index import Index
from headwater.data.indexcache import IndexCache
from headwater.data.progress import bar
from headwater.data.scans import Scan, Unit, assemble, kept

log = logging.getLogger("headwater")

FLUSH_SECONDS = 3.0
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


def open_index(layout: Layout, *, refresh: bool = False, progress: bool | None = None) -> Index:
    """The dataset's index: from the cache if nothing changed, else with only the changed units scanned."""
    cache = IndexCache(hashlib.blake2b(layout.identity.encode(), digest_size=16).hexdigest())
    old = None if refresh else cache.load()
    known = {} if old is None else dict(zip(old.places.shards, old.notes["fingerprints"], strict=True))
    units = sorted(layout.units(known))
    if old is not None and all(known.values()) and units == [Unit(*pair) for pair in sorted(known.items())]:
        return old
    done = [] if refresh else cache.load_parts()
    scans = _reuse(units, old, done=done)
    scans += _scan_missing(layout, units, scans=scans, cache=cache, progress=progress)
    index = assemble(scans, units, numeric_labels=layout.numeric_labels, exact_sizes=layout.exact_sizes)
    cache.save(index)
    return _without_private_copy(cache, index)


def _without_private_copy(cache: IndexCache, index: Index) -> Index:
    """The saved file mapped instead of the arrays just built, so that both opens cost the same memory."""
    saved = cache.load()
    return saved if saved is not None and saved.version == index.version else index


def _reuse(units: Sequence[Unit], old: Index | None, *, done: Sequence[Scan]) -> list[Scan]:
    """What is known of the units from the last index and from an interrupted build."""
    candidates = list(done) if old is None else [*done, Scan.of_index(old)]
    wanted = {unit for unit in units if unit.fingerprint}
    scans = []
    for scan in candidates:
        useful = kept(scan, wanted)
        wanted -= set(useful.units)
        scans.append(useful)
    return [scan for scan in scans if scan.units]


def _scan_missing(
    layout: Layout, units: Sequence[Unit], *, scans: Sequence[Scan], cache: IndexCache, progress: bool | None
) -> list[Scan]:
    have = {unit.name for scan in scans for unit in scan.units}
    missing = [unit for unit in units if unit.name not in have]
    size = max(min(layout.batch, len(missing) // _FEWEST_SCANS), 1)
    batches = [missing[start : start + size] for start in range(0, len(missing), size)]
    pool = ThreadPoolExecutor(layout.workers, thread_name_prefix="headwater-index")
    with bar("indexing", len(missing), wanted=progress) as advance:
        futures = [pool.submit(layout.scan, batch) for batch in batches]
        fresh = _collect(pool, futures, cache=cache, advance=advance)
    _tell_skipped(fresh)
    return fresh


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
