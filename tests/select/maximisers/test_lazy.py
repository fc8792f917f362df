"""Lazy takes what naive takes, and asks for less."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from columns import seeds
from coresets import KINDS, random_table, random_vectors
from headwater.select.maximisers import Lazy, Naive
from headwater.select.objectives import OBJECTIVES, FacilityLocation
from headwater.select.objectives.facility_location import Located
from headwater.select.parts import Parts
from headwater.select.samples import Floats, Ints


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("given_table", [False, True])
@given(seed=seeds, kind=st.sampled_from(KINDS), count=st.integers(2, 150))
@settings(max_examples=40, deadline=None)
def test_the_same_as_naive_in_the_same_order(
    name: str, given_table: bool, seed: int, kind: str, count: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors = random_table(rng, count) if given_table else random_vectors(rng, count, kind=kind)
    objective, parts = OBJECTIVES[name](given=given_table), Parts.whole(count, int(rng.integers(1, count)))
    naive, lazy = (maximiser.maximise(objective, vectors, parts) for maximiser in (Naive(), Lazy()))
    assert lazy.places.tolist() == naive.places.tolist()
    assert lazy.sizes.tolist() == naive.sizes.tolist()


class Counting(FacilityLocation):
    """Counts the gains that it is asked for."""

    def begin(self, vectors: Floats, rows: Ints) -> Located:  # type: ignore[override]
        progress, ask = super().begin(vectors, rows), Located.gains

        def gains(places: Ints | None = None) -> Floats:
            asked.append(progress.shape[1] if places is None else len(places))
            return ask(progress, places)

        progress.gains = gains  # type: ignore[method-assign]
        return progress


asked: list[int] = []


@pytest.mark.parametrize(("kind", "share"), [("normal", 0.2), ("same", 0.03)])
def test_it_asks_for_few_gains_of_all(kind: str, share: float) -> None:
    vectors = random_vectors(np.random.default_rng(0), 400, kind=kind)
    asked.clear()
    Lazy().maximise(Counting(), vectors, Parts.whole(400, 100))
    assert 400 < sum(asked) < share * 400 * 100
