"""What is known of a Hessian before any step is computed: where it bends much, and where it bends little.

A few pairs say nothing about directions that they do not have. A bias, or the first principal components of
the features, bend ten to a hundred times more than the rest, and a prediction that takes all directions for
equal lets a replay run away along them. For a linear model the Hessian is about a product,

    H = E[curvature by the outputs] x E[features features']

as in K-FAC (Martens and Grosse, ICML 2015), of which the second is kept by its largest eigenvectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.plan.replay.apart import Apart, Numbers, Unparted, Vector


class Prior(Protocol):
    """A symmetric matrix that bends nowhere downwards, by its eigenvectors."""

    def times(self, vector: Vector) -> Vector:
        """The matrix times a vector, as a new one."""
        ...

    def take_apart(self, vector: Vector) -> Apart:
        """What a vector has in each group of the eigenvectors."""
        ...


class Plain:
    """One in all directions: nothing is known."""

    def times(self, vector: Vector) -> Vector:
        return vector.copy()

    def take_apart(self, vector: Vector) -> Unparted:
        return Unparted(vector)


@dataclass(frozen=True, eq=False)
class Span:
    """The largest eigenvectors of E[x x'], `rows` of them, with what they have; the others have `rest` each.

    With a bias, x has a 1 after its features.
    """

    rows: NDArray[np.float32]
    values: NDArray[np.float64]
    rest: float
    bias: bool

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """Of each row what is by the features, in one piece."""
        return np.ascontiguousarray(self.rows[:, :-1]) if self.bias else self.rows

    @cached_property
    def ends(self) -> NDArray[np.float32]:
        """Of each row what is by the bias."""
        return self.rows[:, -1].copy() if self.bias else np.zeros(len(self.rows), np.float32)


@dataclass(frozen=True, eq=False)
class Kronecker:
    """The product of a span of the features and a small matrix of the `outputs`.

    Vectors are weights of a linear layer, (outputs, features), and then the bias if there is one.
    """

    span: Span
    outputs: NDArray[np.float64]

    def times(self, vector: Vector) -> Vector:
        matrix, bias = self._split(vector)
        features, ends = self._features, self._ends
        outer, rest = self._outer
        inside = matrix @ features.T
        if self.span.bias:
            inside += bias[:, None] * ends
        inside *= self._above
        inside = outer @ inside
        found = np.empty_like(vector)
        found_matrix, found_bias = self._split(found)
        np.matmul(rest, matrix, out=found_matrix)
        found_matrix += inside @ features
        if self.span.bias:
            np.matmul(inside, ends, out=found_bias)
            found_bias += rest @ bias
        return found

    def take_apart(self, vector: Vector) -> KroneckerApart:
        matrix, bias = self._split(vector)
        turn, features, ends = self._bends[1].T, self._features, self._ends
        beside, edge = turn @ matrix, turn @ bias
        along: Vector = beside @ features.T + edge[:, None] * ends
        beside -= along @ features
        edge -= along @ ends
        return KroneckerApart(self, along, beside, edge)

    def put_together(self, apart: KroneckerApart) -> Vector:
        """What was taken apart."""
        turn, outputs = self._bends[1], len(self.outputs)
        found = np.empty(outputs * (self._features.shape[1] + self.span.bias), np.float32)
        matrix, bias = self._split(found)
        np.matmul(turn, apart.beside + apart.along @ self._features, out=matrix)
        bias[:] = turn @ (apart.edge + apart.along @ self._ends)
        return found

    @cached_property
    def all_bends(self) -> NDArray[np.float64]:
        """Of each eigenvector of the outputs with each of the features, and with all others."""
        return np.outer(self._bends[0], np.append(self.span.values, self.span.rest)).ravel()

    @cached_property
    def _outer(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What outputs do, and the same times what the eigenvectors that are left out have."""
        outer = self.outputs.astype(np.float32)
        return outer, outer * np.float32(self.span.rest)

    @cached_property
    def _above(self) -> NDArray[np.float32]:
        return (self.span.values - self.span.rest).astype(np.float32)

    @cached_property
    def _bends(self) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        bends, turn = np.linalg.eigh(self.outputs)
        return np.maximum(bends, 0.0), turn.astype(np.float32)

    @property
    def _features(self) -> NDArray[np.float32]:
        return self.span.features

    @property
    def _ends(self) -> NDArray[np.float32]:
        return self.span.ends

    def _split(self, vector: Vector) -> tuple[Vector, Vector]:
        """Matrix and bias as views; without a bias, one of zeros."""
        outputs, width = len(self.outputs), self._features.shape[1]
        matrix = vector[: outputs * width].reshape(outputs, width)
        return matrix, vector[matrix.size :] if self.span.bias else np.zeros(outputs, np.float32)


@dataclass(frozen=True, eq=False)
class KroneckerApart:
    """What lies `along` each eigenvector of the features, (outputs, eigenvectors), and `beside` all of them.

    Both are by the eigenvectors of the outputs; `edge` is what of the rest is by the bias.
    """

    prior: Kronecker
    along: Vector
    beside: Vector
    edge: Vector

    @property
    def bends(self) -> Numbers:
        return self.prior.all_bends

    @property
    def squares(self) -> Numbers:
        beside = np.einsum("ij,ij->i", self.beside, self.beside) + self.edge**2
        return np.column_stack([self.along**2, beside]).ravel()

    def times(self, factors: Numbers) -> KroneckerApart:
        wide = factors.astype(np.float32).reshape(len(self.edge), -1)
        rest = wide[:, -1]
        return KroneckerApart(
            self.prior, self.along * wide[:, :-1], self.beside * rest[:, None], self.edge * rest
        )

    def plus(self, other: Apart) -> KroneckerApart:
        if not isinstance(other, KroneckerApart) or other.prior is not self.prior:
            other = self.prior.take_apart(other.whole())
        return KroneckerApart(
            self.prior, self.along + other.along, self.beside + other.beside, self.edge + other.edge
        )

    def whole(self) -> Vector:
        return self.prior.put_together(self)


def find_span(x: NDArray[np.float32], count: int, *, bias: bool) -> Span:
    """The span of these rows of features by so many eigenvectors, found by powers of a random start.

    (Halko, Martinsson and Tropp, SIAM Review 2011.)
    """
    if bias:
        x = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)
    count = min(count, *x.shape)
    guess = np.random.default_rng(0).normal(size=(x.shape[1], count + 8)).astype(np.float32)
    for _ in range(2):
        guess = np.linalg.qr(x.T @ (x @ guess))[0]
    seen = (x @ guess).astype(np.float64)
    values, turn = np.linalg.eigh(seen.T @ seen / len(x))
    values, rows = values[::-1][:count], (guess @ turn[:, ::-1][:, :count]).T
    left = float(np.vdot(x, x)) / len(x) - float(values.sum())
    return Span(
        np.ascontiguousarray(rows, np.float32), values, max(left, 0.0) / max(x.shape[1] - count, 1), bias
    )
