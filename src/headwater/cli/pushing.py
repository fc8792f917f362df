"""What `headwater models push` takes: an ONNX file, weights for a known architecture, or a preset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headwater import transforms
from headwater.cli.presets import finish
from headwater.data.pipeline import Pipeline
from headwater.errors import ModelRefused, WrongUse
from headwater.models import weights
from headwater.models.classifier import read_classifier
from headwater.models.model import Model
from headwater.models.presets import PRESETS
from headwater.models.proto import check_size, is_pickled, parse
from headwater.models.registry import PRESET, Registry

_SIZE = 224
_MARGIN = 256 / 224
"""Of what an image is resized to, over what is cropped from it: as ImageNet's models are tested."""


@dataclass(frozen=True, eq=False)
class Pushed:
    """A model, what it would be called, what it comes from, and how it was made."""

    model: Model
    name: str
    made: dict[str, Any]
    parent: str | None = None


def read_model(
    what: str, registry: Registry, *, like: str | None, classes: Path | None, steps: Path | None
) -> Pushed:
    """Raises `WrongUse` for what is nothing of these, `ModelRefused` for a file that is not taken."""
    path = Path(what)
    if like is not None:
        _refuse({"--classes": classes, "--steps": steps}, "--like, which has them from VERSION")
        return _from_weights(path, registry, like)
    if path.suffix.lower() == ".onnx":
        return _from_onnx(path, classes, steps)
    if what in PRESETS:
        _refuse({"--classes": classes, "--steps": steps}, "a preset, which has its own")
        return Pushed(PRESETS[what](), what, {"by": PRESET, "preset": what})
    if path.exists() and is_pickled(_read(path, 4)):
        raise ModelRefused(f"{path.name}: pickled content; save as safetensors, or export the model as ONNX")
    if path.suffix.lower() == ".safetensors":
        raise WrongUse(f"{path.name} holds weights; say with --like VERSION whose architecture they have")
    raise WrongUse(
        f"{what!r} is none of FILE.onnx, FILE.safetensors with --like, and the presets {', '.join(PRESETS)}"
    )


def _from_weights(path: Path, registry: Registry, like: str) -> Pushed:
    version = registry.version(like)
    known, tensors = registry.get(version.digest), weights.read(path)  # which name their files themselves
    with _naming(path):
        model = known.with_tensors(tensors)
    return Pushed(model, version.name, {"by": "push", "file": path.name}, version.digest)


def _from_onnx(path: Path, classes: Path | None, steps: Path | None) -> Pushed:
    names = None if classes is None else _read_lines(classes)
    given = None if steps is None else _read_steps(steps)
    with _naming(path):
        check_size(_size(path))
        data = _read(path)
        model = read_classifier(data, classes=names, steps=_steps_for(data) if given is None else given)
        model.check()
    return Pushed(model, path.stem, {"by": "push", "file": path.name})


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is refused is refused by the name of the file."""
    try:
        yield
    except ModelRefused as error:
        raise ModelRefused(f"{path.name}: {error}") from error


def _steps_for(data: bytes) -> list[dict[str, Any]]:
    """ImageNet's, for images of the size that the model takes."""
    edges = [edge.dim_value for value in parse(data).graph.input for edge in value.type.tensor_type.shape.dim]
    size = edges[3] if len(edges) == 4 and edges[3] else _SIZE
    resize, crop = transforms.Resize(round(size * _MARGIN)), transforms.CenterCrop(size)
    return transforms.Compose([resize, crop, *finish()]).spec()


def _read_steps(path: Path) -> list[dict[str, Any]]:
    from headwater.data.steps import catalogue

    try:
        found = msgspec.json.decode(_read(path), type=list[dict[str, Any]])
    except (msgspec.MsgspecError, ValueError) as error:
        raise WrongUse(f"{path.name} is no JSON list of steps: {error}") from error
    return Pipeline.from_spec(found, catalogue()).spec()


def _read_lines(path: Path) -> Sequence[str]:
    try:
        lines = _read(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise WrongUse(f"{path.name} is not UTF-8: {error}") from error
    return [line.strip() for line in lines if line.strip()]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(path: Path, count: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> WrongUse:
    return WrongUse(f"cannot read {path}: {error.strerror}; check the path")


def _refuse(options: dict[str, Path | None], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise WrongUse(f"{name} does not go with {why}")
