"""From a table of signals to what selectors see of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from headwater.measure.signals import Signals
from headwater.select.past import Past
from headwater.select.samples import COLUMNS, Samples
from headwater.store.dataset import Dataset

SELECTION, HISTORY, ENDED = "selection", "history", "ended"
"""Notes of a table: what was selected last, the epochs until then, and why nothing more is selected."""

BESIDE = "{} beside the data"
"""What a selector is called where stores select by it."""

_SOURCES = {"last": "epoch", "judged": "logits_epoch", "peak": "losses", "deviation": "probability_spread"}
"""Columns that have another name in the table, or follow from another one there."""
_DERIVED = ("peak", "deviation")


def look_at(dataset: Dataset, signals: Signals, **facts: Any) -> Samples:
    """What is known of the dataset's samples; `facts` are those of `Samples` beside its columns."""
    whole = len(dataset) == len(dataset.index)
    rows = slice(None) if whole else dataset.positions()  # no copy of columns where it is all of them
    known: dict[str, Any] = {}
    for name in (*COLUMNS, "vectors"):
        source = _SOURCES.get(name, name)
        if signals.has(source):
            known[name] = getattr(signals, name if name in _DERIVED else source)[rows]
    known.setdefault("bytes", dataset.sizes.astype(np.float32))
    facts.setdefault("state", signals.notes.get(SELECTION, {}).get("state", {}))
    return Samples.of(dataset.ids, dataset.labels.astype(np.int64), **known, **facts)


def past_of(signals: Signals) -> Sequence[Past]:
    """The epochs of the run that the table is from."""
    return msgspec.convert(signals.notes.get(HISTORY, []), list[Past])


def facts_of(signals: Signals, epoch: int) -> dict[str, Any]:
    """`seed`, `epochs` and `stalled` as the table's run has them in an epoch, for `look_at`.

    Of an epoch that it has not come to, training is taken to wait as much as in the last one.
    """
    note, past = signals.notes.get(SELECTION, {}), past_of(signals)
    stalled = {one.epoch: one.stalled for one in past}
    last = past[-1].stalled if past else 0.0
    return {
        "seed": note.get("seed", 0),
        "epochs": note.get("epochs"),
        "stalled": stalled.get(epoch, last),
    }
