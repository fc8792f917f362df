"""What a step is: a name and parameters, a draw in bulk, and a function of one image or one batch.

An image between steps is a numpy array of height x width x channels (uint8 until a step says
otherwise). What a step drew for a sample is a row of float64: it prints, travels and compares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import Draws

if TYPE_CHECKING:
    import torch

Image = NDArray[Any]
Sizes = NDArray[np.int64]  # (n, 2): height, width
Rows = NDArray[np.float64]  # (n, k): what one step drew for each sample
Row = Sequence[float]


class Step(ABC):
    """One operation on one sample. Subclasses are frozen dataclasses whose fields are plain data."""

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    """Integer-exact: the same bytes on every CPU, so it may run at a store."""
    steady: ClassVar[bool] = False
    """Draws nothing, so that what it makes of an image is the same in every epoch."""
    opaque: ClassVar[bool] = False
    """The output's size is not known before it runs (a user's callable)."""
    crops: ClassVar[bool] = False
    """A row is (top, left, height, width) of a box inside the image, and nothing but that box is used."""

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        """What is drawn for each sample, given its size when it reaches this step."""
        return np.empty((len(draws), 0))

    def out_sizes(self, sizes: Sizes, rows: Rows) -> Sizes:
        """The size of each sample after this step."""
        return sizes

    @abstractmethod
    def apply(self, image: Image, row: Row) -> Image:
        """The image after this step; the input is not written to."""


class BatchStep(Step):
    """A step that also acts on a whole batch at once, on the training device."""

    @abstractmethod
    def apply_batch(self, batch: torch.Tensor, rows: Rows) -> torch.Tensor:
        """The batch (N, C, H, W) after this step; it may be changed in place."""

    def apply(self, image: Image, row: Row) -> Image:
        """The same on one image: a batch of one, so both forms give the same bits."""
        import torch

        batch = torch.from_numpy(image.copy()).permute(2, 0, 1)[None]
        done = self.apply_batch(batch, np.asarray([row], dtype=np.float64).reshape(1, -1))
        return done[0].permute(1, 2, 0).numpy()
