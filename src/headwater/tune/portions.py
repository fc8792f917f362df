"""What each store has sent of what it is to send, while features flow in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from headwater.store.base import Store
from headwater.store.client.connection import Connection
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedStore
from headwater.tune.runs import Places


class Portions:
    """From now on, by store: samples that came, and those that are wanted of what it holds.

    Replicas share what is wanted of them: each may send all of it. Data that lies here has no portion.
    """

    def __init__(self, store: Store, wanted: Iterable[Places]) -> None:
        """`wanted` are positions in parts, of all that will be asked for."""
        self._sites = _sites(store)
        self._before = self._count_sent()
        self._totals: Counter[str] = Counter()
        if any(self._sites):
            for positions in wanted:
                counts = np.bincount(store.site_of(positions), minlength=len(self._sites))
                for names, count in zip(map(_names, self._sites), counts.tolist(), strict=True):
                    self._totals.update(dict.fromkeys(names, count))

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Each store with what it has sent, and what it is to send at most."""
        sent = self._count_sent()
        sent.subtract(self._before)
        for name, total in self._totals.items():
            yield name, min(sent[name], total), total  # what was asked for twice counts once

    def _count_sent(self) -> Counter[str]:
        sent: Counter[str] = Counter()
        for connection in {one for site in self._sites for one in site}:
            sent[connection.address.place] += connection.samples
        return sent


def _sites(store: Store) -> list[list[Connection]]:
    """The replicas of each site, in the order in which sites are numbered."""
    if isinstance(store, ShardedStore):
        return [site for one in store.stores for site in _sites(one)]
    return [[one.connection for one in store.replicas.all] if isinstance(store, RemoteStore) else []]


def _names(site: Iterable[Connection]) -> set[str]:
    return {connection.address.place for connection in site}
