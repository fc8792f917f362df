"""A few random samples in each step: nearly as good, and no sample is asked in vain."""

from __future__ import annotations

import numpy as np
import pytest

from coresets import random_vectors, similarities, value_of
from headwater.errors import WrongUse
from headwater.select.maximisers import Naive, Stochastic
from headwater.select.objectives import OBJECTIVES, FacilityLocation
from headwater.select.parts import Parts


@pytest.mark.parametrize("name", ["facility_location", "graph_cut"])
@pytest.mark.parametrize("kind", ["normal", "groups"])
def test_within_a_few_percent_of_the_greedy(name: str, kind: str) -> None:
    vectors, parts = random_vectors(np.random.default_rng(0), 600, kind=kind), Parts.whole(600, 60)
    values = [
        value_of(name, similarities(vectors), maximiser.maximise(OBJECTIVES[name](), vectors, parts).places)
        for maximiser in (Naive(), Stochastic())
    ]
    assert 0.97 * values[0] <= values[1] < values[0]


def test_asking_all_is_the_greedy() -> None:
    vectors, parts = random_vectors(np.random.default_rng(0), 50), Parts.whole(50, 20)
    # so little loss that each step asks all that are left
    found = Stochastic(1e-12).maximise(FacilityLocation(), vectors, parts)
    assert found.places.tolist() == Naive().maximise(FacilityLocation(), vectors, parts).places.tolist()


def test_less_loss_is_better() -> None:
    vectors, parts = random_vectors(np.random.default_rng(0), 500), Parts.whole(500, 25)
    values = [
        value_of(
            "facility_location",
            similarities(vectors),
            Stochastic(loss).maximise(FacilityLocation(), vectors, parts).places,
        )
        for loss in (0.9, 0.3, 0.01)
    ]
    assert values == sorted(values)
    assert values[0] < values[2]


@pytest.mark.parametrize("loss", [0.0, 1.0, -1.0, float("nan")])
def test_a_loss_that_cannot_be(loss: float) -> None:
    with pytest.raises(WrongUse, match="loss is"):
        Stochastic(loss)
