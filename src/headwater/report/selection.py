"""The chapter on a selection: how many, which classes, what they count, and how the run came to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.report.page import Chapter, Figure, Sheet, Table
from headwater.report.plots import axes, floats
from headwater.select.past import QUANTILES, Past
from headwater.select.samples import Samples
from headwater.select.selection import Selection

MOST_CLASSES = 60
"""That a plot shows side by side; of more, the least and the most favoured."""
_SET_ASIDE = {"buckets": "waiting", "medoids": "dropped as learned", "proxy": "left out by the proxy"}
"""What it means to be in bucket 1, by selector."""
_PAIRS = 4000


@dataclass(frozen=True, eq=False)
class Balance:
    """A class: its samples, those that were selected, and what they count together, as a share of all."""

    name: str
    samples: int
    selected: int
    weight: float

    @property
    def share(self) -> float:
        return self.selected / self.samples if self.samples else 0.0


def balance_of(samples: Samples, selection: Selection, names: Sequence[str]) -> list[Balance]:
    """Of each class that there is, the least selected first."""
    classes, places = np.unique(samples.labels, return_inverse=True)
    counts = np.bincount(places, minlength=len(classes))
    taken = np.bincount(places[selection.places], minlength=len(classes))
    weights = np.bincount(places[selection.places], selection.weights, len(classes)) / len(selection)
    found = [
        Balance(_name(int(label), names), int(count), int(some), float(weight))
        for label, count, some, weight in zip(classes, counts, taken, weights, strict=True)
    ]
    return sorted(found, key=lambda one: (one.share, one.name))


def _name(label: int, names: Sequence[str]) -> str:
    return "no label" if label < 0 else names[label] if label < len(names) else str(label)


def selection_chapter(
    samples: Samples,
    selection: Selection,
    *,
    names: Sequence[str],
    past: Sequence[Past] = (),
    sheets: Sequence[Sheet] = (),
) -> Chapter:
    """`past` are the epochs of the run that the samples' signals are from; `sheets` are pictures of some."""
    figures = [_balance(balance_of(samples, selection, names)), _weights(selection)]
    figures += [_scores(samples, selection)] if np.isfinite(samples.loss).any() else []
    figures += [] if samples.vectors is None else [_similarity(samples, selection)]
    figures += [_losses(past), _counts(past)] if past else []
    return Chapter(
        title=f"Selected by {selection.selector}",
        text=selection.reason,
        figures=tuple(figures),
        table=Table(("measure", "value"), tuple(facts(samples, selection).items())),
        sheets=tuple(sheets),
    )


def facts(samples: Samples, selection: Selection) -> Mapping[str, str]:
    """What a selection comes to."""
    own, whole = (float(np.nansum(samples.bytes[p])) for p in (selection.places, slice(None)))
    stood_in = 0 if selection.stand_ins is None else int(np.count_nonzero(selection.stand_ins >= 0))
    found = {
        "samples": f"{len(selection):,} of {len(samples):,} ({len(selection) / len(samples):.1%})",
        "worth, of equal weight": f"{selection.effective:,.0f}",
        "largest weight": f"{selection.weights.max():.2f}",
        "classes": f"{len(np.unique(samples.labels[selection.places])):,} of "
        f"{len(np.unique(samples.labels)):,}",
    }
    found |= {"bytes": f"{own / 1e6:,.1f} MB of {whole / 1e6:,.1f} MB ({own / whole:.1%})"} if whole else {}
    return found | ({"served by a stand-in": f"{stood_in:,}"} if stood_in else {})


def _balance(classes: Sequence[Balance]) -> Figure:
    half = MOST_CLASSES // 2
    shown = classes if len(classes) <= MOST_CLASSES else [*classes[:half], *classes[-half:]]
    total = sum(one.samples for one in classes)
    traces = [
        {"type": "bar", "x": [one.name for one in shown], "y": floats(values), "name": name}
        for name, values in (
            ("of all samples", [one.samples / total for one in shown]),
            ("of the weight", [one.weight for one in shown]),
        )
    ]
    title = "Classes" if len(shown) == len(classes) else f"Classes, {len(shown)} of {len(classes):,}"
    return Figure(title, traces, {**axes("", "share"), "barmode": "group"})


def _weights(selection: Selection) -> Figure:
    counts, edges = np.histogram(selection.weights, bins=40)
    trace = {
        "type": "bar",
        "x": floats((edges[1:] + edges[:-1]) / 2),
        "y": counts.tolist(),
        "name": "samples",
    }
    return Figure("What samples count", [trace], {**axes("weight", "samples"), "bargap": 0.05})


def _scores(samples: Samples, selection: Selection) -> Figure:
    """Losses of those that were taken and of those that were left."""
    taken = np.zeros(len(samples), np.bool_)
    taken[selection.places] = True
    known = np.isfinite(samples.loss)
    edges = np.histogram_bin_edges(
        np.clip(samples.loss[known], 0, np.quantile(samples.loss[known], 0.99)), 40
    )
    middles = floats((edges[1:] + edges[:-1]) / 2)
    traces = [
        {
            "type": "bar",
            "x": middles,
            "y": np.histogram(samples.loss[known & some], edges)[0].tolist(),
            "name": name,
        }
        for name, some in (("selected", taken), ("left out", ~taken))
    ]
    return Figure("Losses", traces, {**axes("last loss", "samples"), "barmode": "stack", "bargap": 0.05})


def _similarity(samples: Samples, selection: Selection) -> Figure:
    """Cosines of pairs of a class, among all samples and among the selected ones."""
    traces = []
    for name, places in (("all", np.arange(len(samples))), ("selected", selection.places)):
        counts, edges = np.histogram(_cosines(samples, places), bins=50, range=(-1, 1))
        share = counts / max(1, counts.sum())
        middles = floats((edges[1:] + edges[:-1]) / 2)
        traces.append(
            {"x": middles, "y": floats(share), "mode": "lines", "name": name, "line": {"shape": "hvh"}}
        )
    return Figure("How alike two samples of a class are", traces, axes("cosine", "share of pairs"))


def _cosines(samples: Samples, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of neighbours in order of class and of a draw, which are pairs at random."""
    assert samples.vectors is not None
    some = places[np.argsort(samples.draw(103)[places], kind="stable")[:_PAIRS]]
    some = some[np.argsort(samples.labels[some], kind="stable")]
    vectors = samples.vectors[some].astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1)
    same = (samples.labels[some][1:] == samples.labels[some][:-1]) & (norms[1:] > 0) & (norms[:-1] > 0)
    products = (vectors[1:] * vectors[:-1]).sum(1)[same]
    found: NDArray[np.float64] = products / (norms[1:] * norms[:-1])[same]
    # of equal vectors rounding may make a little more than 1, which no bin would hold
    return np.clip(found[np.isfinite(found)], -1, 1)


def _losses(past: Sequence[Past]) -> Figure:
    told = [one for one in past if one.losses]
    epochs = [one.epoch for one in told]
    traces = [
        {
            "x": epochs,
            "y": floats([one.losses[place] for one in told]),
            "mode": "lines",
            "name": f"{share:.0%}",
        }
        for place, share in enumerate(QUANTILES)
    ]
    return Figure("Losses that were known, by quantile", traces, axes("epoch", "loss"))


def _counts(past: Sequence[Past]) -> Figure:
    """Selected, of equal weight, and set aside, by the name that the selector has for that."""
    epochs = [one.epoch for one in past]
    lines: dict[str, list[float]] = {
        "selected": [one.selected for one in past],
        "of equal weight": [one.effective for one in past],
    }
    kinds = {one.selector: _SET_ASIDE.get(one.selector, "in bucket 1") for one in past if one.buckets}
    for selector, name in kinds.items():
        own = (one.buckets if one.selector == selector else [] for one in past)
        lines[name] = [buckets[1] if buckets else 0 for buckets in own]
    traces = [
        {"x": epochs, "y": floats(values), "mode": "lines+markers", "name": name}
        for name, values in lines.items()
    ]
    return Figure("Samples, epoch by epoch", traces, axes("epoch", "samples"))
