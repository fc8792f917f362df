"""Each size of part to its maximiser."""

from __future__ import annotations

import numpy as np

from coresets import random_vectors
from headwater.select.maximisers import BySize, Lazy, Naive, Stochastic
from headwater.select.objectives import FacilityLocation
from headwater.select.parts import Parts


def test_small_ones_naive_middling_ones_lazy_large_ones_stochastic() -> None:
    vectors = random_vectors(np.random.default_rng(0), 600)
    parts = Parts(np.arange(600), np.array([100, 200, 300]), np.array([10, 20, 30]))
    found = BySize(100, 200).maximise(FacilityLocation(), vectors, parts).places
    for number, maximiser in enumerate((Naive(), Lazy(), Stochastic())):
        alone = parts.where(np.arange(3) == number)
        wanted = maximiser.maximise(FacilityLocation(), vectors, alone).places
        low, high = parts.begins[number], parts.begins[number] + parts.sizes[number]
        assert found[(found >= low) & (found < high)].tolist() == wanted.tolist()
    lazy = Lazy().maximise(FacilityLocation(), vectors, parts.where(np.arange(3) == 2)).places
    assert found[found >= 300].tolist() != lazy.tolist()
