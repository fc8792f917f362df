"""The first baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from columns import make_samples
from headwater.errors import WrongUse
from headwater.select.uniform import Uniform


def test_the_same_share_of_each_class_in_every_epoch() -> None:
    samples = make_samples(30, labels=[0] * 20 + [1] * 10)
    found = Uniform(0.3).choose(samples).places
    assert [(found < 20).sum(), (found >= 20).sum()] == [6, 3]
    assert Uniform(0.3).choose(replace(samples, epoch=7)).places.tolist() == found.tolist()
    assert Uniform(0.3).choose(replace(samples, seed=7)).places.tolist() != found.tolist()


@pytest.mark.parametrize("wrong", [{"explore": 1.5}, {"explore": -0.1}, {"share": 0.0}])
def test_what_is_no_share_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(WrongUse, match=f"{next(iter(wrong))} is "):
        Uniform(**wrong)


def test_everything_unless_told() -> None:
    assert len(Uniform().choose(make_samples(9)).places) == 9
