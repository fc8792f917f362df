"""Agreement of a proxy with a reference: by definition, and what is left out or refused."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.select.agreement import Agreement, measure_agreement

RNG = np.random.default_rng(7)
TARGETS = RNG.integers(0, 5, 300)
LOGITS = RNG.normal(size=(300, 5)).astype(np.float32)


def losses(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(wide)), TARGETS[: len(wide)]]


def test_a_model_agrees_with_itself() -> None:
    found = measure_agreement(LOGITS, LOGITS, TARGETS)
    assert found == Agreement(1.0, pytest.approx(1.0), 300)


def test_a_proxy_that_is_less_sure_ranks_two_classes_alike() -> None:
    two, targets = LOGITS[:, :2], TARGETS % 2
    found = measure_agreement(two / 4, two, targets)
    assert (found.labels, found.losses) == (1.0, pytest.approx(1.0, abs=1e-5))


def test_the_opposite_has_no_label_and_the_reverse_order() -> None:
    two, targets = LOGITS[:, :2], TARGETS % 2
    found = measure_agreement(-two, two, targets)
    assert (found.labels, found.losses) == (0.0, pytest.approx(-1.0, abs=1e-5))


def test_labels_are_counted_and_losses_ranked() -> None:
    other = (LOGITS + RNG.normal(size=LOGITS.shape)).astype(np.float32)
    found = measure_agreement(other, LOGITS, TARGETS)
    ranks = [np.argsort(np.argsort(losses(logits))) for logits in (other, LOGITS)]
    assert found.labels == (other.argmax(axis=1) == LOGITS.argmax(axis=1)).mean()
    assert found.losses == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-3)
    assert 0.3 < found.losses < 0.95


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_samples_without_a_loss_are_left_out(broken: float) -> None:
    one, two = LOGITS.copy(), LOGITS.copy()
    one[3, 1] = two[5, 2] = broken
    one[3, 0] = 100  # would be a label of its own
    assert measure_agreement(one, two, TARGETS) == Agreement(1.0, pytest.approx(1.0), 298)
    with pytest.raises(WrongUse, match="of 300 samples none has a finite loss by both"):
        measure_agreement(np.full_like(LOGITS, broken), LOGITS, TARGETS)


def test_losses_that_do_not_vary_have_no_order() -> None:
    found = measure_agreement(np.zeros_like(LOGITS), LOGITS, TARGETS)
    assert np.isnan(found.losses)
    assert found.labels == (LOGITS.argmax(axis=1) == 0).mean()


def test_one_sample_has_no_order() -> None:
    found = measure_agreement(LOGITS[:1], LOGITS[:1], TARGETS[:1])
    assert np.isnan(found.losses)
    assert (found.labels, found.samples) == (1.0, 1)


@pytest.mark.parametrize(
    ("logits", "reference", "targets", "text"),
    [
        (LOGITS, LOGITS[:9], TARGETS, r"shape \(300, 5\) and \(9, 5\) with targets of shape \(300,\)"),
        (LOGITS, LOGITS, TARGETS[:9], r"targets of shape \(9,\)"),
        (LOGITS[0], LOGITS[0], TARGETS[:5], r"must be \(samples, classes\)"),
        (LOGITS, LOGITS, TARGETS + 1, "targets are 1 to 5, and there are 5 classes"),
        (LOGITS, LOGITS, TARGETS - 1, "targets are -1 to 3"),
        (LOGITS[:0], LOGITS[:0], TARGETS[:0], "of 0 samples none"),
    ],
    ids=["samples", "targets", "flat", "above", "below", "none"],
)
def test_arrays_of_other_samples_are_refused(
    logits: np.ndarray, reference: np.ndarray, targets: np.ndarray, text: str
) -> None:
    with pytest.raises(WrongUse, match=text):
        measure_agreement(logits, reference, targets)
