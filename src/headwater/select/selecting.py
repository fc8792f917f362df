"""The selectors by name, and the one way from a selector to a `Selection`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.active_bias import ActiveBias
from headwater.select.biggest_losers import BiggestLosers
from headwater.select.buckets import Buckets
from headwater.select.choosing import distinct, everything
from headwater.select.craig import Craig
from headwater.select.fresh import Fresh
from headwater.select.infobatch import InfoBatch
from headwater.select.k_center import FarthestFirst
from headwater.select.loss_rank import LossRank
from headwater.select.medoids import Medoids
from headwater.select.proxy import Proxy
from headwater.select.redundancy import check_redundancy, representatives
from headwater.select.samples import Ints, Marks, Samples
from headwater.select.selection import Choice, Selection
from headwater.select.uniform import Uniform
from headwater.select.weights import CLIP, balance

_REPORTS = {"deviation": 2}  # that it takes to know a column, if not one
EXPLORED = 0.05
"""Of all samples, where a selector does not say how many and scores are those of visits."""
_EXPLORE, _CLASS = 101, 102  # what is drawn here, by number; selectors draw from 0 on


class Selector(Protocol):
    """Chooses the samples of an epoch: the same of the same columns, always.

    `needs` are the columns that it learns from; `explore` is the share of all samples that is visited
    whatever it says, so that nothing that it knows gets old. None is a twentieth, and nothing where all
    samples were just scored.
    """

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def explore(self) -> float | None: ...
    def choose(self, samples: Samples) -> Choice:
        """At least one sample; what is not known of a sample is NaN, and never a reason to drop it."""
        ...


SELECTORS: MappingProxyType[str, Callable[[], Selector]] = MappingProxyType(
    {
        "uniform": Uniform,
        "fresh": Fresh,
        "infobatch": InfoBatch,
        "loss_rank": LossRank,
        "active_bias": ActiveBias,
        "biggest_losers": BiggestLosers,
        "proxy": Proxy,
        "k_center": FarthestFirst,
        "craig": Craig,
        "medoids": Medoids,
        "buckets": Buckets,
    }
)


def find_selector(given: str | Selector) -> Selector:
    """By name, or as it is; raises `WrongUse` for a name that there is not."""
    if not isinstance(given, str):
        return given
    if given not in SELECTORS:
        raise WrongUse(f"there is no selector {given!r}; choose from {', '.join(SELECTORS)}")
    return SELECTORS[given]()


def make_selection(
    selector: Selector, samples: Samples, *, clip: float = CLIP, redundancy: str = "keep"
) -> Selection:
    """The samples of an epoch. No class vanishes, weights have mean 1, and a share is there to explore.

    With redundancy "drop", one of each group of near-duplicates is visited for all that were chosen of it.
    Raises `WrongUse` if nobody ever told what the selector learns from.
    """
    check_redundancy(redundancy)
    if not len(samples):
        raise WrongUse("there are no samples to select from")
    found = _choose(selector, samples)
    places, counts, reason, choice = found.places, found.counts, found.reason, found.choice
    if redundancy == "drop":
        places, counts, said = _drop(samples, places, counts)
        reason += said
    weights = balance(counts, clip=clip)
    return Selection(selector.name, samples.epoch, places, weights, reason, choice.buckets, choice.state)


def select_among(selector: Selector, samples: Samples, known: Marks, *, clip: float = CLIP) -> Selection:
    """A selection among the `known` samples, and all others with them; each of these stands for itself.

    What was chosen stands for all that are known, also where the selector says nothing of weights. `buckets`
    are of the known ones alone. Raises as `make_selection` does.
    """
    if known.all():
        return make_selection(selector, samples, clip=clip)
    found = _choose(selector, samples.take(known))
    (rows,), (rest,) = np.nonzero(known), np.nonzero(~known)
    counts = found.counts * (len(rows) / len(found.places)) if found.choice.counts_alike else found.counts
    places = np.concatenate((rows[found.places], rest))
    order = np.argsort(places, kind="stable")
    return Selection(
        *(selector.name, samples.epoch, places[order]),
        balance(np.concatenate((counts, np.ones(len(rest))))[order], clip=clip),
        f"{found.reason}, and {len(rest):,} that could not be scored",
        *(found.choice.buckets, found.choice.state),
    )


@dataclass(frozen=True, eq=False)
class _Chosen:
    """What a selector chose and what was added to it, with how many samples each counts for."""

    choice: Choice
    places: Ints
    counts: NDArray[np.float64]
    reason: str


def _choose(selector: Selector, samples: Samples) -> _Chosen:
    _demand(selector, samples)
    choice = selector.choose(samples)
    if not len(choice.places):
        raise WrongUse(f"selector {selector.name!r} chose no sample; a selector must choose at least one")
    chosen = np.zeros(len(samples), np.bool_)
    chosen[choice.places] = True
    added = _to_add(selector, samples, chosen)
    places = np.flatnonzero(chosen | added)
    further = len(places) - len(choice.places)
    reason = choice.reason + (f", and {further:,} to explore or for their class" if further else "")
    return _Chosen(choice, places, _count(choice, places, added), reason)


def complete_selection(
    samples: Samples, selection: Selection, *, clip: float = CLIP, redundancy: str = "keep"
) -> Selection:
    """What `make_selection` would have made of a choice, from one that it made without clip and redundancy.

    For what was chosen where nobody knows of near-duplicates, or only of some of the samples.
    """
    check_redundancy(redundancy)
    places, counts, said = selection.places, selection.weights.astype(np.float64), ""
    if redundancy == "drop":
        places, counts, said = _drop(samples, places, counts)
    weights = balance(counts, clip=clip)
    return replace(selection, places=places, weights=weights, reason=selection.reason + said)


def _drop(
    samples: Samples, places: Ints, counts: NDArray[np.float64]
) -> tuple[Ints, NDArray[np.float64], str]:
    """What is left if one of each group is visited, what that counts, and how many are not."""
    kept, stood = representatives(samples, places)
    said = f"; {len(places) - len(kept):,} near-duplicates left out"
    return kept, counts[np.searchsorted(places, kept)] * stood, said


def _count(choice: Choice, places: Ints, added: Marks) -> NDArray[np.float64]:
    """What each sample counts: what the selector says of it, and once if it was added.

    Also if the selector has it too: then the sum of all in expectation is that of the selector and a random
    share of all samples, neither of which favours any.
    """
    if choice.counts_alike:
        return np.ones(len(places))
    counts = added[places].astype(np.float64)
    own = 1.0 if choice.weights is None else choice.weights
    counts[np.searchsorted(places, choice.places)] += own if choice.chances is None else own / choice.chances
    return counts


def _demand(selector: Selector, samples: Samples) -> None:
    """Unless this is an epoch of which nothing can be known yet."""
    for name in selector.needs:
        if samples.epoch < _REPORTS.get(name, 1):
            continue
        column = getattr(samples, name)
        if column is None or not (~np.isnan(column)).any():
            raise WrongUse(
                f"selector {selector.name!r} learns from {name!r}, and no number of it is known; call "
                "loader.report(batch, loss=..., logits=...) for every batch, and see that not all is NaN"
            )


def _to_add(selector: Selector, samples: Samples, chosen: Marks) -> Marks:
    """One sample of each class that would vanish, and some of all samples to explore, chosen or not."""
    added = _of_lost_classes(samples, chosen)
    explore = _share_to_explore(selector, samples)
    if explore and not chosen.all():
        added |= samples.draw(_EXPLORE) < explore
    return added


def _share_to_explore(selector: Selector, samples: Samples) -> float:
    if selector.explore is not None:
        return selector.explore
    return 0.0 if samples.all_scored else EXPLORED


def _of_lost_classes(samples: Samples, chosen: Marks) -> Marks:
    """One sample of each class of which none was chosen."""
    found = np.zeros(len(samples), np.bool_)
    lost = np.setdiff1d(distinct(samples.labels), distinct(samples.labels[chosen]), assume_unique=True)
    lost = lost[lost >= 0]
    if len(lost):
        places = np.flatnonzero(np.isin(samples.labels, lost))
        order = places[np.lexsort((samples.draw(_CLASS)[places], samples.labels[places]))]
        _, first = np.unique(samples.labels[order], return_index=True)
        found[order[first]] = True
    return found


def select_all(samples: Samples, *, name: str, reason: str) -> Selection:
    """Every sample once, all alike."""
    weights = np.ones(len(samples), np.float32)
    return Selection(name, samples.epoch, everything(samples), weights, reason)
