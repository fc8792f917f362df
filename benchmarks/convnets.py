"""A small convolutional network for 32 pixels, and its training in memory, by torch on all cores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from headwater import transforms as T
from imagesets import PARTS, Floats, Ints, read_cifar10

EDGE = 32
_CLASSES = 10
_AT_ONCE = 500
_SHIFT = 3
"""Pixels that an image is moved by at most, in each direction."""
_ALONG = np.arange(EDGE)


def read_pixels(folder: Path) -> dict[str, NDArray[Any]]:
    """CIFAR-10's images and labels, of both parts."""
    found: dict[str, NDArray[Any]] = {}
    for part in PARTS:
        pixels, labels = read_cifar10(folder / "cifar10", part, T.Compose([T.CenterCrop(EDGE)]))
        found |= {part: np.concatenate(list(pixels)), f"{part}-labels": labels}
    return found


def make_pixels(count: int) -> dict[str, NDArray[Any]]:
    """Images of ten colours under noise."""
    rng = np.random.default_rng(17)
    found: dict[str, NDArray[Any]] = {}
    for part in PARTS:
        labels = rng.integers(0, _CLASSES, count)
        colours = np.stack([60 + 15 * labels, 200 - 15 * labels, 40 * (labels % 5)], axis=1)
        noise = rng.integers(-40, 40, (count, EDGE, EDGE, 3))
        made = np.clip(colours[:, None, None] + noise, 0, 255).astype(np.uint8)
        found |= {part: made, f"{part}-labels": labels}
    return found


class Residual(nn.Module):
    """Two convolutions beside which the input goes on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.layers(images)  # type: ignore[no-any-return]


def make_network(width: int) -> nn.Module:
    """Patches of two pixels, then three stages, of which the last two each have a residual block."""
    return nn.Sequential(
        nn.PixelUnshuffle(2),
        _convolution(12, width),
        _convolution(width, 2 * width),
        nn.MaxPool2d(2),
        Residual(2 * width),
        _convolution(2 * width, 4 * width),
        nn.MaxPool2d(2),
        Residual(4 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, _CLASSES),
    )


def _convolution(inputs: int, outputs: int) -> nn.Module:
    layers = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


class Convnet:
    """A new network for each seed; a `Learner`. `spent` are the CPU seconds of its steps since then."""

    def __init__(
        self,
        pixels: dict[str, NDArray[Any]],
        *,
        width: int = 16,
        rate: float = 0.05,
        decay: float = 5e-4,
    ) -> None:
        self._width, self._rate, self._decay = width, rate, decay
        self.labels: Ints = pixels["train-labels"]
        self._test_labels = pixels["test-labels"]
        self._labels = torch.from_numpy(self.labels)
        self._train = np.pad(pixels["train"], ((0, 0), (_SHIFT, _SHIFT), (_SHIFT, _SHIFT), (0, 0)))
        self._test = pixels["test"]

    def begin(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._drawn = np.random.default_rng(seed)
        self.spent = dict.fromkeys(("loading", "forward", "backward"), 0.0)
        self._network = make_network(self._width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimiser = torch.optim.SGD(
            self._network.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=self._decay
        )

    def step(self, places: Ints, weights: Floats | None, rate: float) -> Floats:
        """One step on these images, each moved and perhaps mirrored; the logits before it."""
        with self._spend("loading"):
            images = _scaled(self._augmented(places))
        with self._spend("forward"):
            self._network.train()
            logits = self._network(images)
            losses = F.cross_entropy(logits, self._labels[torch.from_numpy(places)], reduction="none")
            loss = losses.mean() if weights is None else (losses * torch.from_numpy(weights)).mean()
        with self._spend("backward"):
            self._optimiser.param_groups[0]["lr"] = self._rate * rate
            self._optimiser.zero_grad()
            loss.backward()
            self._optimiser.step()
        return logits.detach().numpy()

    @contextmanager
    def _spend(self, part: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        self.spent[part] += time.process_time() - begin

    def score(self, places: Ints) -> Floats:
        """Logits of these images as they are, by the network as it is now."""
        return self._run(self._train[:, _SHIFT:-_SHIFT, _SHIFT:-_SHIFT], places)

    def judge(self) -> float:
        """Percents of the test images that it gets right."""
        logits = self._run(self._test, np.arange(len(self._test_labels)))
        return 100 * float((logits.argmax(axis=1) == self._test_labels).mean())

    def _run(self, images: NDArray[Any], places: Ints) -> Floats:
        self._network.eval()
        with torch.inference_mode():
            parts = np.split(places, range(_AT_ONCE, len(places), _AT_ONCE))
            return np.concatenate([self._network(_scaled(images[at])).numpy() for at in parts])

    def _augmented(self, places: Ints) -> NDArray[Any]:
        """Each image moved by some pixels, what leaves at one edge being lost, and half of them mirrored."""
        down, right = self._drawn.integers(0, 2 * _SHIFT + 1, (2, len(places), 1))
        along = np.where(self._drawn.random((len(places), 1)) < 0.5, _ALONG, _ALONG[::-1])
        return self._train[places[:, None, None], (down + _ALONG)[:, :, None], (right + along)[:, None]]


def _scaled(images: NDArray[Any]) -> torch.Tensor:
    """As (n, channels, edge, edge), whose memory stays as it is: channels_last."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32).sub_(120).div_(64)
