"""Who stands for whom."""

from __future__ import annotations

import numpy as np

from headwater.select.objectives.cover import Cover


def test_each_sample_belongs_to_the_most_alike_and_the_first_of_equals() -> None:
    cover = Cover(np.zeros((2, 1), np.float32), 4)
    cover.add(np.array([[9, 5, 5, 1], [1, 1, 9, 1]], np.float32), np.array([0, 2]))
    cover.add(np.array([[5, 9, 5, 2], [2, 9, 1, 1]], np.float32), np.array([1, 1]))
    assert cover.best.tolist() == [[9, 9, 5, 2], [2, 9, 9, 1]]
    assert cover.sizes().tolist() == [[2, 2], [2, 2]]


def test_who_is_taken_stands_for_itself_even_beside_its_double() -> None:
    cover = Cover(np.full((1, 1), -3, np.float32), 3)
    for place in range(3):
        cover.add(np.zeros((1, 3), np.float32), np.array([place]))
    assert cover.sizes().tolist() == [[1, 1, 1]]
