"""A head over features that are there already: two layers on one core, with gradients written out.

There is little to multiply in a step, so what torch does around it would take most of the time.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from imagesets import Examples, Floats, Ints

WIDTH = 128
"""Features of a sample."""
HIDDEN = 128
_CLASSES = 10
_AT_ONCE = 2048
_MOMENTUM = 0.9


class Layers:
    """Weights of two layers, and as many numbers for their gradients and their momentum."""

    def __init__(self, width: int, hidden: int) -> None:
        shapes = ((width, hidden), (hidden,), (hidden, _CLASSES), (_CLASSES,))
        sizes = [math.prod(shape) for shape in shapes]
        self.all, self.slopes, self.moving = (torch.zeros(sum(sizes)) for _ in range(3))
        self.first, self.bias, self.second, self.last_bias = _views(self.all, sizes, shapes)
        self.of_first, self.of_bias, self.of_second, self.of_last_bias = _views(self.slopes, sizes, shapes)
        for weights in (self.first, self.second):
            weights.normal_(std=math.sqrt(2 / len(weights)))

    def run(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is between both layers, and the logits."""
        between = torch.addmm(self.bias, inputs, self.first).relu_()
        return between, torch.addmm(self.last_bias, between, self.second)

    def descend(self, inputs: torch.Tensor, between: torch.Tensor, errors: torch.Tensor) -> None:
        """Fill in the gradients, of errors that are the gradient by the logits."""
        torch.mm(between.T, errors, out=self.of_second)
        torch.sum(errors, 0, out=self.of_last_bias)
        back = (errors @ self.second.T).mul_(between > 0)
        torch.mm(inputs.T, back, out=self.of_first)
        torch.sum(back, 0, out=self.of_bias)

    def step(self, rate: float, decay: float) -> None:
        """With Nesterov's momentum, as torch has it."""
        self.slopes.add_(self.all, alpha=decay)
        self.moving.mul_(_MOMENTUM).add_(self.slopes)
        self.all.sub_(self.slopes.add_(self.moving, alpha=_MOMENTUM), alpha=rate)


def _views(flat: torch.Tensor, sizes: list[int], shapes: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


class Head:
    """A new head for each seed; a `Learner`."""

    def __init__(
        self, examples: Examples, *, rate: float = 0.1, decay: float = 2e-3, hidden: int = HIDDEN
    ) -> None:
        self._examples, self._rate, self._decay, self._hidden = examples, rate, decay, hidden
        self._inputs, self._test = torch.from_numpy(examples.train), torch.from_numpy(examples.test)
        self._targets = torch.from_numpy(examples.labels)
        self.labels = examples.labels

    def begin(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._layers = Layers(self._inputs.shape[1], self._hidden)

    def step(self, places: Ints, weights: Floats | None, rate: float) -> Floats:
        at = torch.from_numpy(places)
        inputs = self._inputs.index_select(0, at)
        between, logits = self._layers.run(inputs)
        errors = logits.softmax(1)
        errors[torch.arange(len(at)), self._targets.index_select(0, at)] -= 1
        if weights is not None:
            errors.mul_(torch.from_numpy(weights)[:, None])
        self._layers.descend(inputs, between, errors.div_(len(at)))
        self._layers.step(self._rate * rate, self._decay)
        return logits.numpy()

    def score(self, places: Ints) -> Floats:
        return self._run(self._inputs[torch.from_numpy(places)])

    def judge(self) -> float:
        return 100 * float((self._run(self._test).argmax(axis=1) == self._examples.test_labels).mean())

    def _run(self, inputs: torch.Tensor) -> Floats:
        return np.concatenate([self._layers.run(some)[1].numpy() for some in inputs.split(_AT_ONCE)])
