"""Chosen once by what a smaller model said, and kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from columns import make_samples
from headwater.errors import WrongUse
from headwater.select.proxy import Proxy
from headwater.select.samples import Samples
from headwater.select.selecting import make_selection

# the target's probability, and the largest other one; three classes
TARGETS = np.array([0.98, 0.4, 0.05, 0.5, 0.7, 0.34])
OTHERS = np.array([0.01, 0.35, 0.9, 0.5, 0.2, 0.33])


def scored(**facts: object) -> Samples:
    facts = {"labels": [0, 0, 0, 0, 0, 0], **facts}
    return make_samples(6, probability=TARGETS, margin=TARGETS - OTHERS, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("by", "sure"),
    [("confidence", np.maximum(TARGETS, OTHERS)), ("margin", np.abs(TARGETS - OTHERS))],
)
def test_those_with_the_least_confidence_or_margin(by: str, sure: np.ndarray) -> None:
    choice = Proxy(0.5, by=by).choose(scored())  # type: ignore[arg-type]
    assert choice.places.tolist() == sorted(np.argsort(np.float32(sure), kind="stable")[:3])


def test_those_with_the_highest_entropy_exact_for_three_classes() -> None:
    labels = [0, 0, 0, 1, 1, 2]
    rest = np.clip(1 - TARGETS - OTHERS, 1e-12, None)
    entropy = -sum(part * np.log(part) for part in (TARGETS, OTHERS, rest))
    wanted = []
    for label, count in ((0, 2), (1, 1), (2, 1)):
        places = np.flatnonzero(np.array(labels) == label)
        wanted.extend(places[np.argsort(-entropy[places])[:count]].tolist())
    choice = Proxy(0.5, by="entropy").choose(scored(labels=labels))
    assert choice.places.tolist() == sorted(wanted)
    assert "highest entropy" in choice.reason


def test_it_keeps_what_it_chose_whatever_training_says_then() -> None:
    first = make_selection(Proxy(0.5), scored())
    assert first.buckets is not None
    later = replace(scored(), probability=1 - np.float32(TARGETS), epoch=5, seed=9)
    kept = make_selection(Proxy(0.5), replace(later, bucket=first.buckets, state=first.state))
    assert kept.places.tolist() == first.places.tolist()
    assert (kept.state, kept.reason) == (first.state, first.reason)
    anew = make_selection(Proxy(0.5), later)
    assert anew.places.tolist() != first.places.tolist()
    assert anew.state == {"chosen": 5}


def test_without_scores_everything_and_nothing_is_fixed() -> None:
    choice = Proxy(0.5).choose(make_samples(5))
    assert len(choice.places) == 5
    assert not choice.state


def test_unknown_scores_stay_beside_the_share_of_the_others() -> None:
    margins = TARGETS - OTHERS
    margins[0] = np.nan
    choice = Proxy(0.4).choose(make_samples(6, probability=TARGETS, margin=margins))
    assert len(choice.places) == 3
    assert choice.places[0] == 0


def test_the_whole_share_is_everything() -> None:
    assert len(Proxy(1.0).choose(scored()).places) == 6


def test_a_measure_that_there_is_not_is_refused() -> None:
    with pytest.raises(WrongUse, match="choose from confidence, margin, entropy"):
        Proxy(by="loss")  # type: ignore[arg-type]
