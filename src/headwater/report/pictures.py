"""Batches as pictures for people."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headwater.report.page import Picture, Sheet


def contact_sheet(title: str, images: NDArray[np.uint8], captions: Sequence[str]) -> Sheet:
    """Images (N, height, width, 1 or 3) side by side, pixel for pixel as given."""
    pictures = (Picture(_png(image), caption) for image, caption in zip(images, captions, strict=True))
    return Sheet(title, tuple(pictures))


def to_pixels(inputs: NDArray[np.float32], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.uint8]:
    """Undo normalisation: a batch (N, C, H, W) of floats as images (N, H, W, C) of bytes."""
    shape = (1, len(mean), 1, 1)
    unit = np.asarray(inputs * np.reshape(std, shape) + np.reshape(mean, shape))
    return np.clip(unit.transpose(0, 2, 3, 1) * 255 + 0.5, 0, 255).astype(np.uint8)


def _png(image: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()
