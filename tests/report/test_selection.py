"""The chapter on a selection: what its plots say of samples whose likeness is known."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.report.page import Figure
from headwater.report.selection import selection_chapter
from headwater.select.past import Past
from headwater.select.samples import Samples
from headwater.select.selection import Selection

COUNT = 400


def similarity(vectors: np.ndarray | None, places: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Cosines and shares of pairs, of all samples and of those at the places."""
    labels = np.arange(COUNT) % 2
    samples = Samples.of(np.arange(COUNT), labels, vectors=vectors)
    selection = Selection("some", 0, places, np.ones(len(places), np.float32), "because")
    chapter = selection_chapter(samples, selection, names=("a", "b"))
    found = [one for one in chapter.figures if one.title == "How alike two samples of a class are"]
    if not found:
        return {}
    (figure,) = found
    assert isinstance(figure, Figure)
    return {trace["name"]: (np.array(trace["x"]), np.array(trace["y"])) for trace in figure.traces}


def set_aside(*past: Past) -> dict[str, list[float]]:
    """The lines over the epochs of a run, but for those that every selector has."""
    samples = Samples.of(np.arange(COUNT), np.zeros(COUNT, np.int64))
    selection = Selection("some", 0, np.arange(9), np.ones(9, np.float32), "because")
    figures = selection_chapter(samples, selection, names=("a",), past=past).figures
    (figure,) = (one for one in figures if one.title == "Samples, epoch by epoch")
    assert isinstance(figure, Figure)
    return {trace["name"]: list(trace["y"]) for trace in figure.traces[2:]}


def epoch(number: int, selector: str, *buckets: int) -> Past:
    return Past(number, COUNT, 9, 9.0, 0.0, 0.0, buckets=list(buckets), selector=selector)


@pytest.mark.parametrize(
    ("selector", "name"),
    [
        ("buckets", "waiting"),
        ("medoids", "dropped as learned"),
        ("proxy", "left out by the proxy"),
        ("my own", "in bucket 1"),
    ],
)
def test_what_is_set_aside_is_called_as_the_selector_means_it(selector: str, name: str) -> None:
    found = set_aside(epoch(0, selector), epoch(1, selector, 390, 10), epoch(2, selector, 300, 100))
    assert found == {name: [0, 10, 100]}


def test_where_nothing_is_set_aside_there_is_no_line_and_of_two_selectors_there_are_two() -> None:
    assert set_aside(epoch(0, "infobatch"), epoch(1, "infobatch")) == {}
    found = set_aside(epoch(0, "buckets", 396, 4), epoch(1, "medoids", 398, 2))
    assert found == {"waiting": [4, 0], "dropped as learned": [0, 2]}


def test_without_vectors_nothing_is_compared() -> None:
    assert similarity(None, np.arange(10)) == {}


def test_samples_of_a_class_are_compared_and_no_others() -> None:
    """Those of one class are all the same, and the other class is its opposite."""
    vectors = np.where(np.arange(COUNT) % 2, -1.0, 1.0)[:, None] * np.ones((COUNT, 3))
    for _, (cosines, shares) in similarity(vectors.astype(np.float16), np.arange(50)).items():
        assert shares.sum() == 1
        assert shares[cosines > 0.95].sum() == 1


def test_a_selection_of_what_differs_is_seen() -> None:
    """Half of each class is one vector, over and over; the selected half points anywhere."""
    vectors = np.random.default_rng(0).normal(size=(COUNT, 8))
    vectors[: COUNT // 2] = 1.0
    found = similarity(vectors.astype(np.float32), np.arange(COUNT // 2, COUNT))
    alike = {name: shares[cosines > 0.95].sum() for name, (cosines, shares) in found.items()}
    assert alike["all"] > 0.15
    assert alike["selected"] < 0.02


def test_vectors_that_are_zero_or_no_numbers_are_like_nothing() -> None:
    vectors = np.zeros((COUNT, 3), np.float32)
    vectors[::3] = np.nan
    for _, (_, shares) in similarity(vectors, np.arange(COUNT)).items():
        assert shares.sum() == 0
