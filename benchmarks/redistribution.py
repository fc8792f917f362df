"""How many bytes must a store be sent to get a new version of EfficientNet-Lite0, against the whole model?

A new head of 10 classes and of 1,000; all weights changed a little, sent exactly and rounded to int8; and
stores that are one to five versions behind. Bytes are those of manifest, graphs and delta. The whole is
counted twice: plain, which is what somebody copies who has only files, and packed, as Headwater sends it to a
store that holds nothing. Each path is received by a second registry, which verifies every digest. Weights
change by noise relative to their size; and, for comparison, by some steps of SGD over all layers, on the
photos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

import headwater as hw
from classifiers import Photos, Pixels, open_photos
from headwater.models.export import export
from headwater.models.model import Model
from headwater.models.path import Path as Way
from headwater.models.path import cheapest, make_approximation
from headwater.models.pixels import Affine
from headwater.models.presets import LITE0_SIZE, PRESETS, imagenet_classes, lite0_steps, load_lite0
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from measuring import Bar, Cell, Options, Report, Table, main

SHARES = (0.001, 0.01, 0.1)
SLIGHT = 0.01
"""Which of the shares the bars mean by "slightly"."""
GAPS = 5
IMAGES = 250
STEPS, QUICK_STEPS, BATCH, RATE = 20, 2, 16, 1e-3
"""Of SGD, with the momentum that is usual."""
Change = Callable[[Model, int], Model]
"""The next version of a model, for a seed."""


@dataclass(frozen=True)
class Sent:
    """One case: what was sent, and what the whole would have been."""

    what: str
    way: Way
    plain: int
    packed: int

    @property
    def against_plain(self) -> float:
        return self.plain / self.way.nbytes

    @property
    def against_packed(self) -> float:
        return self.packed / self.way.nbytes


class Sender:
    """A registry that sends, and a fresh store for each case."""

    def __init__(self, folder: Path) -> None:
        self.registry, self._folder = Registry(folder / "sender"), folder
        self._numbers = count()

    def fresh_folder(self) -> Path:
        return self._folder / f"registry-{next(self._numbers)}"

    def put(self, model: Model, parent: str | None = None) -> str:
        return self.registry.put(model, name="lite0", parent=parent).digest

    def send(self, what: str, held: str, target: str) -> Sent:
        """To a store that holds one version; the store verifies what it gets."""
        store = Registry(self.fresh_folder())
        _receive(store, cheapest(self.registry, (), held))
        way = cheapest(self.registry, [held], target)
        _receive(store, way)
        assert store.get(target).facts == self.registry.version(target).tensors
        return Sent(what, way, self.plain(target), cheapest(self.registry, (), target).nbytes)

    def plain(self, target: str) -> int:
        """Manifest, graphs and tensors as they are."""
        version = self.registry.version(target)
        graphs = sum(len(self.registry.graph(digest)) for digest in version.graphs.values())
        return len(msgspec.json.encode(version)) + graphs + version.nbytes


def _receive(store: Registry, way: Way) -> None:
    for part in way.parts:
        store.receive(part.version, part.delta, base=part.base, graphs=part.graphs)


def new_head(model: Model, classes: int, *, seed: int) -> Model:
    """A head as a linear layer of torch begins: uniform within the root of one over the features."""
    rng = np.random.default_rng(seed)
    features = model.tensors["head/weight"].shape[1]
    weight = rng.uniform(-1, 1, size=(classes, features)) / np.sqrt(features)
    tensors = {"head/weight": weight.astype(np.float32), "head/bias": np.zeros(classes, np.float32)}
    names = model.classes if classes == len(model.classes) else tuple(f"class {n}" for n in range(classes))
    return replace(model, tensors={**model.tensors, **tensors}, classes=names)


def nudge(model: Model, share: float, *, seed: int) -> Model:
    """Every weight changed by a normal share of itself."""
    rng = np.random.default_rng(seed)

    def moved(array: NDArray[np.float32]) -> NDArray[np.float32]:
        return (array * (1 + share * rng.standard_normal(array.shape, np.float32))).astype(array.dtype)

    return replace(model, tensors={name: moved(array) for name, array in sorted(model.tensors.items())})


def train(photos: Photos, steps: int) -> Model:
    """EfficientNet-Lite0 after some steps of SGD over all its layers; photos of no class get any."""
    torch.manual_seed(0)
    network, affine = load_lite0().train(), Affine.of(lite0_steps().spec())
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9)
    labels = np.where(photos.labels < 0, np.arange(len(photos.labels)) % 1000, photos.labels)
    order = np.random.default_rng(0).permutation(len(labels))
    for step in range(steps):
        some = order.take(np.arange(step * BATCH, (step + 1) * BATCH), mode="wrap")
        logits = network(torch.from_numpy(affine.apply(photos.pixels[some])))
        loss = F.cross_entropy(logits, torch.from_numpy(labels[some]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    parts = hw.split(network.eval(), image_size=LITE0_SIZE)
    return export(parts, classes=imagenet_classes(), steps=lite0_steps()).model


def median_change(before: Model, after: Model) -> float:
    """Of all weights, by how much of itself the middle one moved."""
    names = [name for name, array in before.tensors.items() if array.dtype == np.float32]
    old, new = (np.concatenate([m.tensors[name].ravel() for name in names]) for m in (before, after))
    return float(np.median(np.abs(new - old)[old != 0] / np.abs(old[old != 0])))


def send_heads(sender: Sender, model: Model, base: str) -> list[Sent]:
    return [
        sender.send(
            f"new head, {count:,} classes", base, sender.put(new_head(model, count, seed=count), base)
        )
        for count in (10, 1000)
    ]


def send_dense(
    sender: Sender, changed: Mapping[str, Model], base: str, images: Pixels
) -> tuple[list[Sent], list[tuple[Cell, ...]]]:
    """All weights changed, exactly and rounded; and what the rounding did."""
    cases, errors = [], []
    for what, model in changed.items():
        target = sender.put(model, base)
        near = make_approximation(sender.registry, base, target)
        cases.append(sender.send(f"all weights by {what}, exact", base, target))
        cases.append(sender.send(f"all weights by {what}, int8", base, near.digest))
        errors.append((what, *measure_error(sender.registry, target, near, images)))
    return cases, errors


def measure_error(registry: Registry, target: str, near: ModelVersion, images: Pixels) -> tuple[Cell, ...]:
    """What rounding does to the model: weights, logits and labels."""
    exact, rounded = (_logits(registry.get(digest), images) for digest in (target, near.digest))
    same = float((exact.argmax(axis=1) == rounded.argmax(axis=1)).mean())
    return (
        float(near.made["largest error"]),
        float(np.abs(exact - rounded).max()),
        float(np.std(exact)),
        f"{same:.0%}",
    )


def _logits(model: Model, images: Pixels) -> NDArray[np.float32]:
    engine = Engine(model)
    return engine.logits(engine.features(images))


def send_gaps(sender: Sender, model: Model, what: str, change: Change, *, gaps: int) -> list[Sent]:
    """Stores that hold an earlier version; then the same where only stored deltas know that version."""
    line = [sender.put(model)]
    for step in range(gaps):
        model = change(model, 10 + step)
        line.append(sender.put(model, line[-1]))
        sender.registry.delta(line[-2], line[-1])
    behind = range(1, gaps + 1)
    cases = [sender.send(f"{what}, {gap} behind", line[-1 - gap], line[-1]) for gap in behind]
    return cases + [
        _send_chain(sender, line[-1 - gap :], f"{what}, {gap} behind, old one gone") for gap in behind
    ]


def _send_chain(sender: Sender, line: list[str], what: str) -> Sent:
    """From a registry that knows the version at the store by its delta to the next one, and the store's
    graphs because it tells of them."""
    other = Registry(sender.fresh_folder())
    held, *rest = line
    for digest in line:
        _receive(other, cheapest(sender.registry, (), digest))
    for old, new in zip(line, rest, strict=False):
        other.keep_delta(old, new, sender.registry.delta(old, new))
    other.collect(keep=rest)
    assert held not in other
    told = sender.registry.version(held).graphs.values()
    way = cheapest(other, [held], rest[-1], graphs=[*told])
    store = Registry(sender.fresh_folder())
    _receive(store, cheapest(sender.registry, (), held))
    _receive(store, way)
    return Sent(what, way, sender.plain(rest[-1]), cheapest(other, (), rest[-1]).nbytes)


def send_all_gaps(sender: Sender, model: Model, gaps: int) -> list[Sent]:
    def head(before: Model, seed: int) -> Model:
        return new_head(before, 10, seed=seed)

    def all_weights(before: Model, seed: int) -> Model:
        return nudge(before, SLIGHT, seed=seed)

    heads = send_gaps(sender, head(model, 9), "head of 10", head, gaps=gaps)
    return heads + send_gaps(sender, model, f"all by {SLIGHT:.0%}", all_weights, gaps=gaps)


def run(folder: Path, options: Options) -> Report:
    sender, model = Sender(folder), PRESETS["efficientnet-lite0"]()
    base = sender.put(model)
    heads = send_heads(sender, model, base)
    photos, steps = open_photos(folder, options), QUICK_STEPS if options.quick else STEPS
    trained = train(photos, steps)
    changed = {f"{share:.1%}": nudge(model, share, seed=1) for share in SHARES}
    changed[f"{steps} steps of SGD"] = trained
    dense, errors = send_dense(sender, changed, base, photos.pixels[:IMAGES])
    gaps = send_all_gaps(sender, model, 2 if options.quick else GAPS)
    cases = [*heads, *dense, *gaps]
    return Report(
        "bytes of a new version against the whole model",
        (_table(cases), _error_table(errors)),
        tuple(_bars(heads, dense, cases)),
        notes=(
            f"{model.nbytes:,} bytes of weights in {len(model.tensors)} tensors; all but SGD's are the same "
            "bytes in every run",
            f"labels and logits are those of {IMAGES} photos, the first of the data",
            f"SGD: batches of {BATCH} photos, rate {RATE:g}, momentum 0.9, all layers and running means; the "
            f"middle weight moved by {median_change(model, trained):.2%} of itself",
            f"the bars of changed weights mean a change of {SLIGHT:.0%}",
            "bars are judged by the plain whole; that it is never more is said of the packed one",
        ),
    )


def _table(cases: list[Sent]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            case.what,
            case.way.kind,
            len(case.way.parts),
            case.way.nbytes,
            f"{case.against_plain:.2f}x",
            f"{case.against_packed:.2f}x",
        )
        for case in cases
    ]
    return Table(
        ("sent", "as", "parts", "bytes", "less than the plain whole", "than the packed whole"), tuple(rows)
    )


def _error_table(errors: list[tuple[Cell, ...]]) -> Table:
    columns = ("int8, change", "largest error of a weight", "of a logit", "logits' deviation", "same label")
    return Table(columns, tuple(errors))


def _bars(heads: list[Sent], dense: list[Sent], cases: list[Sent]) -> list[Bar]:
    slight = dense[2 * SHARES.index(SLIGHT) :]
    asked = zip((*heads, *slight), (200, 3.5, 1.4, 4), strict=False)
    bars = [
        Bar(case.what, f"{least:g}x less", _both(case), case.against_plain >= least) for case, least in asked
    ]
    worst = min(case.against_packed for case in cases)
    return [*bars, Bar("never more than the whole", "at least 1x", f"{worst:.2f}x", worst >= 1)]


def _both(case: Sent) -> str:
    return f"{case.against_plain:.2f}x less than the plain whole, {case.against_packed:.2f}x than the packed"


if __name__ == "__main__":
    main(__doc__, run)
