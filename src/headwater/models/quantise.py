"""int8 layers for a model: calibrated on images of the data, and taken only if the labels stay the same.

Static quantisation by ONNX Runtime: unsigned activations whose range covers all but a hundred-thousandth of
the values, signed weights per channel, the first two convolutions left in fp32. These have few channels and
many pixels: EfficientNet-Lite0 takes a sixth longer with them in int8, and the labels are no better for it.
"""

from __future__ import annotations

import io
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwater.errors import ModelError, WrongUse
from headwater.models.evidence import BOUND, QUANTISED
from headwater.models.graph import split_tensors
from headwater.models.model import Model
from headwater.models.pixels import Affine
from headwater.models.proto import onnx_module
from headwater.models.runtime import Engine, Floats, onnxruntime, precision_of

if TYPE_CHECKING:
    from onnx import ModelProto

Pixels = NDArray[np.uint8]
Turn = Callable[[], AbstractContextManager[None]]
"""What a stretch of work is done inside of, where others want the cores too."""
T = TypeVar("T")

CALIBRATING = 64
"""Images whose activations are looked at; more take longer and gave no better labels."""
HELD_OUT = 256
"""Images on which the two are compared, at most."""
LEAST_HELD_OUT = 32
MOST_IMAGES = CALIBRATING + HELD_OUT
"""No more are looked at."""

_FP32_CONVOLUTIONS = 2
_CHUNK = 8
"""Images at a time: all their activations are in memory at once, of EfficientNet-Lite0 60 MB an image."""


@dataclass(frozen=True)
class Agreement:
    """Two models on the same images: share of equal labels, correlation of all logits, how many images.

    `speedup` is the first one's time over the second one's, the median of the batches, which they took in
    turns.
    """

    labels: float
    correlation: float
    images: int
    speedup: float


@dataclass(frozen=True, eq=False)
class Quantised:
    """The int8 model if it was accepted, else the one that was given; `reason` says in a line why.

    `agreement`, of how many `images`, `correlation` and `speedup`, of this machine, are None if they were not
    measured.
    """

    model: Model
    accepted: bool
    agreement: float | None
    correlation: float | None
    reason: str
    speedup: float | None = None
    images: int | None = None
    bound: float = BOUND

    @property
    def made(self) -> dict[str, Any]:
        """How the model came about, for the registry."""
        return {
            "by": QUANTISED,
            "agreement": self.agreement,
            "images": self.images,
            "bound": self.bound,
            "correlation": self.correlation,
        }


def quantise(
    model: Model,
    images: Iterable[Pixels],
    *,
    bound: float = BOUND,
    threads: int = 1,
    turn: Turn = nullcontext,
) -> Quantised:
    """The model with int8 layers, if they give the labels of fp32 for at least `bound` of other images.

    `images` are uint8 (height, width, channels) as the pipeline's steps per sample leave them. Every second
    one calibrates, until there are `CALIBRATING`; the others are held out, up to `HELD_OUT`. The agreement is
    that of this machine and of this head: `compare` measures it again elsewhere, or under a new head. Each
    few images go through the layers in a `turn`.
    """
    if not 0.0 <= bound <= 1.0:
        raise WrongUse(f"bound={bound} is outside 0..1")
    if precision_of(model) == "int8":
        raise WrongUse("the model's layers are int8 already; quantise the version that it was made of")
    calibrating, held_out = divide(images)
    if len(held_out) < LEAST_HELD_OUT:
        few = f"{len(held_out)} images are left to compare on, at least {LEAST_HELD_OUT} are needed"
        return Quantised(model, False, None, None, f"fp32: {few}", bound=bound)
    int8 = make_int8(model, calibrating, threads=threads, turn=turn)
    found = compare(model, int8, held_out, threads=threads, turn=turn)
    accepted = found.labels >= bound
    said = f"int8 gives the label of fp32 for {found.labels:.1%} of {found.images} images"
    return Quantised(
        int8 if accepted else model,
        accepted,
        found.labels,
        found.correlation,
        f"{'int8' if accepted else 'fp32'}: {said}, bound {bound:.1%}",
        found.speedup,
        found.images,
        bound,
    )


def compare(
    model: Model,
    other: Model,
    images: Iterable[Pixels],
    *,
    threads: int = 1,
    turn: Turn = nullcontext,
    clock: Callable[[], float] = time.perf_counter,
) -> Agreement:
    """How far two models of the same classes agree on images; as for `quantise`."""
    engines = Engine(model, threads=threads), Engine(other, threads=threads)
    logits: list[list[Floats]] = []
    seconds: list[list[float]] = []
    for chunk in _chunks(images, _CHUNK):
        with turn():
            answers = [_ask(engine, np.stack(chunk), clock) for engine in engines]
        logits.append([answer for answer, _ in answers])
        seconds.append([took for _, took in answers])
    if not logits:
        raise WrongUse("no images to compare on")
    one, two = (np.concatenate(side) for side in zip(*logits, strict=True))
    same = float((one.argmax(axis=1) == two.argmax(axis=1)).mean())
    correlation = float(np.corrcoef(one.ravel(), two.ravel())[0, 1])
    first, second = np.transpose(seconds[1:] or seconds)  # the first batch also pays for beginning
    return Agreement(same, correlation, len(one), float(np.median(first / second)))


def _ask(engine: Engine, pixels: Pixels, clock: Callable[[], float]) -> tuple[Floats, float]:
    """The logits of a batch, and the seconds that they took."""
    begun = clock()
    logits = engine.logits(engine.features(pixels))
    return logits, clock() - begun


def divide(images: Iterable[T]) -> tuple[list[T], list[T]]:
    """Images to calibrate with, and others to compare on; no more are read than are used."""
    calibrating: list[T] = []
    held_out: list[T] = []
    for place, image in enumerate(itertools.islice(images, MOST_IMAGES)):
        used = place % 2 == 0 and len(calibrating) < CALIBRATING
        (calibrating if used else held_out).append(image)
    return calibrating, held_out


def make_int8(model: Model, images: Sequence[Pixels], *, threads: int = 1, turn: Turn = nullcontext) -> Model:
    """The model with int8 layers, calibrated on all of these images, however well it does.

    Raises `ModelError` for layers that cannot be int8.
    """
    quantization = _quantization()
    affine = Affine.of(model.steps)
    batches = ({"images": affine.apply(np.stack(chunk))} for chunk in _chunks(images, _CHUNK))
    with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
        file = Path(folder) / "model.onnx"
        onnx_module().save(_join(model), str(file))
        whole = quantization.quant_utils.load_model_with_shape_infer(file)
        ranges = _calibrate(file, batches, threads, turn)
    quantizer = quantization.qdq_quantizer.QDQQuantizer(
        whole,
        per_channel=True,
        reduce_range=False,
        weight_qType=quantization.QuantType.QInt8,
        activation_qType=quantization.QuantType.QUInt8,
        tensors_range=ranges,
        nodes_to_quantize=[],
        nodes_to_exclude=_first_convolutions(whole),
        op_types_to_quantize=_operators(),
        extra_options={},
    )
    quantizer.quantize_model()
    trunk, tensors = split_tensors(quantizer.model.model.SerializeToString())
    kept = {name: array for name, array in model.tensors.items() if name.startswith("head/")}
    return replace(
        model, trunk=trunk, tensors=kept | {f"trunk/{name}": array for name, array in tensors.items()}
    )


def _calibrate(file: Path, batches: Iterable[dict[str, Any]], threads: int, turn: Turn) -> Any:
    """The range of every activation."""
    calibrate = _quantization().calibrate
    augmented = str(file.with_name("augmented.onnx"))
    calibrator = calibrate.create_calibrator(
        file,
        _operators(),
        augmented_model_path=augmented,
        calibrate_method=calibrate.CalibrationMethod.Percentile,
    )
    calibrator.infer_session = _plain_session(augmented, threads)
    calibrator.collector = _quiet_collector(calibrate.HistogramCollector, calibrator)
    for batch in batches:
        with turn():
            calibrator.collect_data(_Reader(batch))
    with redirect_stdout(io.StringIO()):  # it prints what it does; this part of it takes no time
        return calibrator.compute_data()


def _plain_session(file: str, threads: int) -> Any:
    """Every activation as the graph has it: none may be optimised away."""
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    return runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def _quiet_collector(kind: Any, calibrator: Any) -> Any:
    """The calibrator's own collector, without a line on standard output for each chunk."""

    class Quiet(kind):  # type: ignore[misc]
        def collect(self, name_to_arr: dict[str, Any]) -> None:
            self.collect_absolute_value(name_to_arr)

    names = ("method", "symmetric", "num_bins", "num_quantized_bins", "percentile", "scenario")
    return Quiet(**{name: getattr(calibrator, name) for name in names})


class _Reader:
    """One batch, in the form that a calibrator asks for."""

    def __init__(self, batch: dict[str, Any]) -> None:
        self._left = [batch]

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


def _join(model: Model) -> ModelProto:
    """The frozen layers as one ONNX model, tensors inside."""
    onnx = onnx_module()
    whole: ModelProto = onnx.load_from_string(model.trunk)
    tensors = model.part("trunk")
    for tensor in whole.graph.initializer:
        if tensor.name in tensors:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(tensors[tensor.name]), tensor.name))
    return whole


def _first_convolutions(model: ModelProto) -> list[str]:
    found = [node.name for node in model.graph.node if node.op_type == "Conv"]
    if not found:
        raise ModelError("the frozen layers have no convolution; int8 is for convolutional layers")
    return found[:_FP32_CONVOLUTIONS]


def _operators() -> list[str]:
    """All that ONNX Runtime can quantise."""
    registry = _quantization().registry
    return sorted({*registry.QLinearOpsRegistry, *registry.QDQRegistry})


def _quantization() -> Any:
    onnxruntime()
    onnx_module()
    import onnxruntime.quantization as module

    return module


def _chunks(images: Iterable[Pixels], size: int) -> Iterator[list[Pixels]]:
    """Lists of `size` images, the last one shorter."""
    rest = iter(images)
    while chunk := list(itertools.islice(rest, size)):
        yield chunk
