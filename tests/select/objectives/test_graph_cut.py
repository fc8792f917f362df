"""How much of itself a subset may repeat."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.select.maximisers import Naive
from headwater.select.objectives import GraphCut
from headwater.select.parts import Parts

# two that are one another's double and like everything, and two apart
TABLE = np.array([[1, 1, 0.5, 0.5], [1, 1, 0.5, 0.4], [0.5, 0.5, 1, 0.7], [0.5, 0.4, 0.7, 1]], np.float32)


@pytest.mark.parametrize(("redundancy", "second"), [(0.0, 1), (0.5, 2)])
def test_redundancy_sends_the_second_elsewhere(redundancy: float, second: int) -> None:
    picks = Naive().maximise(GraphCut(redundancy, given=True), TABLE, Parts.whole(4, 2))
    assert picks.places.tolist() == [0, second]


@pytest.mark.parametrize("redundancy", [-0.1, 0.51, float("nan")])
def test_a_redundancy_that_would_make_things_worse(redundancy: float) -> None:
    with pytest.raises(WrongUse, match="redundancy is"):
        GraphCut(redundancy)
