"""MixUp and CutMix: each sample of a batch is mixed with the one before it, and so are their labels.

MixUp: Zhang et al., "mixup: Beyond Empirical Risk Minimization" (ICLR 2018); CutMix: Yun et al., "CutMix:
Regularization Strategy to Train Strong Classifiers with Localizable Features" (ICCV 2019). As in torchvision
the partner is the previous sample (the first one's is the last). Torchvision draws one share for the whole
batch; here each pair of ids has its own, so that it does not depend on the rest of the batch.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import Draws, as_words, derive_key, mix
from headwater.data.steps.arguments import settle, to_float, to_int
from headwater.data.steps.base import BatchStep, Rows
from headwater.data.steps.tensors import functional, torch_module
from headwater.errors import WrongUse

if TYPE_CHECKING:
    import torch

_BETA_TRIES = 64
_FIRST_BETA_DRAW = 2  # draws 0 and 1 place the box


class MixStep(BatchStep):
    """A step of the batch stage that changes inputs and targets together."""

    alpha: float
    num_classes: int | None

    def draw_pairs(self, ids: NDArray[np.int64], *, seed: int, epoch: int, step: int) -> Rows:
        """(share of the sample itself, x, y) for each sample and the one before it; x and y in [0, 1)."""
        draws = pair_draws(ids, seed=seed, epoch=epoch, step=step)
        return np.stack((draw_beta(draws, self.alpha), draws.uniform(0), draws.uniform(1)), axis=1)

    @abstractmethod
    def apply_mix(
        self, batch: torch.Tensor, targets: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mixed batch and its targets as probabilities (N, classes); rows are of `draw_pairs`."""

    def apply_batch(self, batch: torch.Tensor, rows: Rows) -> torch.Tensor:
        raise WrongUse(
            f"{self.name} mixes labels too; it works in a DataLoader that has labels, not on images"
        )

    def mix_targets(self, targets: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Targets as probabilities, mixed with those of the sample before."""
        soft = self._to_probabilities(targets)
        shares = shares.to(soft.dtype)[:, None]
        return soft.roll(1, 0).mul_(1.0 - shares).add_(soft.mul(shares))

    def _to_probabilities(self, targets: torch.Tensor) -> torch.Tensor:
        if targets.ndim == 1:
            if self.num_classes is None:
                raise WrongUse(f"{self.name} got class numbers as targets; pass num_classes")
            return functional().one_hot(targets.long(), num_classes=self.num_classes).float()  # type: ignore[no-any-return]
        if self.num_classes not in (None, targets.shape[1]):
            raise WrongUse(f"num_classes is {self.num_classes}, the targets have {targets.shape[1]} classes")
        return targets.float()


@dataclass(frozen=True)
class MixUp(MixStep):
    """A weighted mean of two images and of their labels; the weight is drawn from Beta(alpha, alpha)."""

    name: ClassVar[str] = "mixup"
    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _settle_mix(self)

    def apply_mix(
        self, batch: torch.Tensor, targets: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not batch.is_floating_point():
            raise WrongUse(
                f"mixup needs a float batch, not {batch.dtype}; put ToDtype or Normalize before it"
            )
        shares = torch_module().from_numpy(rows[:, 0].copy()).to(batch.device)
        weights = shares.to(batch.dtype)[:, None, None, None]
        mixed = batch.roll(1, 0).mul_(1.0 - weights).add_(batch.mul(weights))
        return mixed, self.mix_targets(targets, shares)


@dataclass(frozen=True)
class CutMix(MixStep):
    """A box of the image before is pasted in; labels are mixed by the areas."""

    name: ClassVar[str] = "cutmix"
    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _settle_mix(self)

    def apply_mix(
        self, batch: torch.Tensor, targets: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        torch = torch_module()
        height, width = int(batch.shape[2]), int(batch.shape[3])
        boxes = cut_boxes(rows, height, width)
        top, left, bottom, right = torch.from_numpy(boxes.T.copy()).to(batch.device)[:, :, None, None, None]
        y = torch.arange(height, device=batch.device)[:, None]
        x = torch.arange(width, device=batch.device)
        inside = (y >= top) & (y < bottom) & (x >= left) & (x < right)
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        shares = torch.from_numpy(1.0 - areas / (height * width)).to(batch.device)
        return torch.where(inside, batch.roll(1, 0), batch), self.mix_targets(targets, shares)


def cut_boxes(rows: Rows, height: int, width: int) -> NDArray[np.int64]:
    """(top, left, bottom, right) of each box: its area is 1 - share before it is cut at the image's edge."""
    extent = np.array((height, width), np.float64)
    centre = (rows[:, [2, 1]] * extent).astype(np.int64)
    half = (0.5 * np.sqrt(1.0 - rows[:, :1]) * extent).astype(np.int64)
    return np.concatenate((np.maximum(centre - half, 0), np.minimum(centre + half, (height, width))), axis=1)


def pair_draws(ids: NDArray[np.int64], *, seed: int, epoch: int, step: int) -> Draws:
    """What may be drawn for each id and the one before it, in this order: (a, b) is not (b, a)."""
    before = mix(as_words(np.roll(ids, 1)))
    return Draws(derive_key(seed, epoch, step), mix(as_words(ids) + mix(before)))


def draw_beta(draws: Draws, alpha: float) -> NDArray[np.float64]:
    """A number of Beta(alpha, alpha) per sample, without exp or log.

    Below 1: Jöhnk's method. From 1 on: a uniform number x, accepted with probability (4x(1-x))^(alpha-1).
    A sample that no try accepts (fewer than one in 10^9 for alpha up to 10) gets 1/2.
    """
    values = np.full(len(draws), 0.5)
    left = np.arange(len(draws))
    for attempt in range(_BETA_TRIES):
        some = Draws(draws.key, draws.ids[left])
        draw = _FIRST_BETA_DRAW + 2 * attempt
        value, accepted = _try_beta(some.uniform(draw), some.uniform(draw + 1), alpha)
        values[left[accepted]] = value[accepted]
        left = left[~accepted]
        if not len(left):
            break
    return values


def _try_beta(
    first: NDArray[np.float64], second: NDArray[np.float64], alpha: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if alpha >= 1.0:
        return first, second < power(4.0 * first * (1.0 - first), alpha - 1.0)
    first, second = power(first, 1.0 / alpha), power(second, 1.0 / alpha)
    total = first + second
    accepted = (total > 0.0) & (total <= 1.0)
    return first / np.where(accepted, total, 1.0), accepted


def power(base: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """`base` in [0, 1] to a power of at least 0, by products and square roots: the same bits on every CPU."""
    whole = int(exponent)
    result, square = np.ones_like(base), base.copy()
    while whole:
        if whole & 1:
            result *= square
        square *= square
        whole >>= 1
    fraction, root = exponent - int(exponent), base
    for _ in range(30):
        fraction, root = 2.0 * fraction, np.sqrt(root)
        if fraction >= 1.0:
            result, fraction = result * root, fraction - 1.0
    return result


def _settle_mix(step: MixUp | CutMix) -> None:
    settle(step, alpha=to_float("alpha", step.alpha, low=1e-3, high=1e3))
    if step.num_classes is not None:
        settle(step, num_classes=to_int("num_classes", step.num_classes, low=1))
