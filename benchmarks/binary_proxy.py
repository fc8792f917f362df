"""How far does a proxy for an FPGA say what int8 says, and how many bytes has it?

A small convolutional network is trained on CIFAR-10, and made int8. Binary proxies are trained on the same
images, one by their labels, one by what the network says of them, for as many epochs. On the test images,
which nobody has seen, each is compared with int8: equal labels, and rank correlation of the losses, by which
selection goes. A network like the first, from another seed, shows what two networks of one kind agree on. The
distilled proxy is exported as QONNX, and run by qonnx on some test images. All of it is done anew with
several seeds; figures are means, with the least and the most of them.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

import headwater as hw
from apart import go_there
from convnets import EDGE, make_network, make_pixels, read_pixels
from experiments import Found, Results
from headwater import transforms as T
from headwater.models.binary import binary_proxy, export_qonnx, packed_bytes
from headwater.models.export import export
from headwater.models.quantise import MOST_IMAGES, quantise
from headwater.models.runtime import Engine
from headwater.select.agreement import measure_agreement
from imagesets import FOLDERS, work_in
from measuring import Bar, Cell, Flag, Options, Report, Table, main

Floats = NDArray[np.float32]

CLASSES = 10
BATCH = 100
MIDDLE, SPREAD = 120, 64
"""What a pixel is less, and divided by."""
FLAGS = {
    "images": Flag(20_000, "images to train on"),
    "epochs": Flag(5, "over these images, for every network"),
    "width": Flag(32, "channels of the first layer, of every network"),
    "executed": Flag(40, "test images that qonnx runs, a node at a time, with each seed"),
    "seeds": Flag(3, "times that all networks are trained"),
}
QUICK = {"images": 400, "epochs": 1, "width": 8, "executed": 2, "seeds": 2}
TESTED = 500
"""Images to compare on in a quick run."""
FP32, INT8, OTHER = "fp32", "int8", "fp32, another seed"
LABELS, DISTILLED = "binary, by labels", "binary, distilled"
NETWORKS = (FP32, OTHER, INT8, LABELS, DISTILLED)
TOGETHER = "all networks"


@dataclass(frozen=True, eq=False)
class Judged:
    """A network's logits on the test images, the bytes of its weights, and the seconds of its training."""

    logits: Floats
    nbytes: int
    seconds: float | None


@dataclass(frozen=True)
class Compared:
    """What is kept of a seed: facts of each network, how many images differ by qonnx, and its file's bytes.

    Of a network: the share of labels that are `right`, and of those as int8 has them, the rank correlation of
    its losses with those of int8, bytes, seconds of training.
    """

    networks: dict[str, dict[str, float | None]]
    unequal: int
    size: int
    cpu: float

    def __str__(self) -> str:
        ranks = ", ".join(f"{name} {facts['losses']:.3f}" for name, facts in self.networks.items())
        return f"rank of losses with int8: {ranks}; {self.unequal} images differ by qonnx"


def scaled(pixels: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32).sub_(MIDDLE).div_(SPREAD)


def train(
    net: nn.Module, pixels: Mapping[str, NDArray[Any]], *, epochs: int, rate: float, teacher: nn.Module | None
) -> float:
    """By the labels, or by what a teacher says of the same images; the seconds that it took."""
    labels = torch.from_numpy(pixels["train-labels"])
    steps = epochs * (len(labels) // BATCH)
    optimiser = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=0.2)
    begin = time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(len(labels))
        for places in order[: len(order) // BATCH * BATCH].split(BATCH):
            images = mirror_half(scaled(pixels["train"][places.numpy()]))
            loss = loss_of(net.train()(images), labels[places], images, teacher)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return time.perf_counter() - begin


def mirror_half(images: torch.Tensor) -> torch.Tensor:
    mirrored = torch.rand(len(images)) < 0.5
    images[mirrored] = images[mirrored].flip(-1)
    return images


def loss_of(
    logits: torch.Tensor, labels: torch.Tensor, images: torch.Tensor, teacher: nn.Module | None
) -> torch.Tensor:
    if teacher is None:
        return F.cross_entropy(logits, labels)
    with torch.no_grad():
        said = teacher(images).softmax(dim=1)
    return F.cross_entropy(logits, said)


def ask(net: nn.Module, pixels: NDArray[Any]) -> Floats:
    net.eval()
    with torch.inference_mode():
        parts = [net(scaled(some)).numpy() for some in np.array_split(pixels, -(-len(pixels) // BATCH))]
    return np.concatenate(parts)


def ask_int8(net: nn.Module, pixels: Mapping[str, NDArray[Any]]) -> Judged:
    """The network with int8 layers, as a store runs it, calibrated on images of the training."""
    mean, deviation = (3 * (value / 255,) for value in (MIDDLE, SPREAD))
    steps = T.Compose([T.CenterCrop(EDGE), T.Normalize(mean, deviation)])
    parts = hw.split(copy.deepcopy(net).eval(), image_size=EDGE)
    model = export(parts, classes=[f"class {number}" for number in range(CLASSES)], steps=steps).model
    int8 = quantise(model, pixels["train"][:MOST_IMAGES], bound=0.0).model
    engine = Engine(int8)
    assert engine.precision == "int8"
    return Judged(engine.logits(engine.features(pixels["test"])), int8.nbytes, None)


def measure(
    pixels: Mapping[str, NDArray[Any]], numbers: Mapping[str, int], seed: int
) -> tuple[dict[str, Judged], nn.Module]:
    """Every network on the test images; and the distilled proxy."""
    nets: dict[str, nn.Module] = {}
    found: dict[str, Judged] = {}
    trained = (FP32, OTHER, LABELS, DISTILLED)
    for place, name in enumerate(trained):
        torch.manual_seed(len(trained) * seed + place)
        plain = name in (FP32, OTHER)
        make = make_network(numbers["width"]) if plain else binary_proxy(CLASSES, width=numbers["width"])
        nets[name] = make
        teacher = nets[FP32].eval() if name == DISTILLED else None
        rate = 5e-3 if plain else 1e-2
        seconds = train(make, pixels, epochs=numbers["epochs"], rate=rate, teacher=teacher)
        nbytes = 4 * sum(value.numel() for value in make.parameters()) if plain else packed_bytes(make)
        found[name] = Judged(ask(make, pixels["test"]), nbytes, seconds)
        print(f"{name}: trained in {seconds:.0f} s", file=sys.stderr, flush=True)
    found[INT8] = ask_int8(nets[FP32], pixels)
    return found, nets[DISTILLED]


def count_unequal(net: nn.Module, folder: Path, pixels: NDArray[Any]) -> tuple[int, int]:
    """Of how many images the exported graph does not give the logits of torch; and its bytes."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    export_qonnx(net, folder / "proxy.onnx", EDGE)
    graph = ModelWrapper(str(folder / "proxy.onnx"))
    logits, images = ask(net, pixels), scaled(pixels).numpy()
    made = [
        execute_onnx(graph, {"images": np.ascontiguousarray(image[None])})["logits"][0] for image in images
    ]
    return int((np.stack(made) != logits).any(axis=1).sum()), (folder / "proxy.onnx").stat().st_size


def compare(
    pixels: Mapping[str, NDArray[Any]], numbers: Mapping[str, int], folder: Path, seed: int
) -> Compared:
    """All networks of a seed."""
    begin = time.process_time()
    found, net = measure(pixels, numbers, seed)
    labels, facts = pixels["test-labels"], {}
    for name in NETWORKS:
        one = found[name]
        same = measure_agreement(one.logits, found[INT8].logits, labels)
        right = float((one.logits.argmax(axis=1) == labels).mean())
        facts[name] = {"right": right, "labels": same.labels, "losses": same.losses}
        facts[name] |= {"bytes": one.nbytes, "seconds": one.seconds}
    unequal, size = count_unequal(net, folder, pixels["test"][: numbers["executed"]])
    return Compared(facts, unequal, size, time.process_time() - begin)


def rows_of(runs: Sequence[Compared]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for name in NETWORKS:
        facts = [run.networks[name] for run in runs]
        same = (
            ("", "") if name == INT8 else (_spread(facts, "labels", ".1%"), _spread(facts, "losses", ".3f"))
        )
        nbytes = int(facts[0]["bytes"])
        smaller = f"{runs[0].networks[FP32]['bytes'] / nbytes:.1f}x"
        trained = "" if facts[0]["seconds"] is None else _spread(facts, "seconds", ".0f")
        rows.append((name, _spread(facts, "right", ".1%"), *same, nbytes, smaller, trained))
    return rows


def _spread(facts: Sequence[Mapping[str, Any]], name: str, form: str) -> str:
    values = [one[name] for one in facts]
    return f"{statistics.fmean(values):{form}} ({min(values):{form}}..{max(values):{form}})"


def read(options: Options, numbers: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """So many images to train on, and all to test by, or made ones."""
    count = numbers["images"]
    known = make_pixels(count) if options.data is None else read_pixels(options.data)
    pixels = known | {name: known[name][:count] for name in ("train", "train-labels")}
    if options.quick:
        pixels |= {name: known[name][:TESTED] for name in ("test", "test-labels")}
    return pixels


def run(folder: Path, options: Options) -> Report:
    numbers = QUICK if options.quick else {name: int(value) for name, value in options.numbers.items()}
    pixels, (count, epochs) = read(options, numbers), (numbers["images"], numbers["epochs"])
    file = f"binary-{count}x{epochs}-{numbers['width']}-{numbers['executed']}.jsonl"
    data = "made" if options.data is None else "CIFAR-10"
    found = Found(Results(work_in(folder, options) / file, Compared), data, range(numbers["seeds"]))
    found.make([TOGETHER], lambda _, seed: compare(pixels, numbers, folder, seed))
    runs: list[Compared] = found.of(TOGETHER)
    unequal, executed = sum(run.unequal for run in runs), numbers["executed"] * len(runs)
    columns = ("network", "right", "label of int8", "rank of losses, with int8", "bytes", "fewer", "train s")
    asked = f"{executed} test images: QONNX by qonnx against torch"
    bar = Bar(asked, "0 differ in any bit", f"{unequal}", unequal == 0)
    what = f"{count:,} images, {epochs} epochs; {len(pixels['test-labels']):,} test images; {len(runs)} seeds"
    notes = (
        f"The QONNX file has {runs[0].size:,} bytes: it holds weights as float32, of which FINN makes bits.",
        "Bytes are of weights, biases and batch norms; int8 has two convolutions in fp32.",
        found.used,
    )
    table = Table((f"{columns[0]}: {what}", *columns[1:]), tuple(rows_of(runs)))
    raw = {"runs": [vars(run) for run in runs]}
    return Report("a binary proxy against int8", (table,), (bar,), notes, raw)


if __name__ == "__main__":
    go_there()
    main(__doc__, run, flags=FLAGS, folders={"work": FOLDERS["work"]})
