"""A slim model: what was removed and why, what that saves, and its file.

The file is a folder of two: a manifest of shapes as JSON, and weights as safetensors. With the code of the
dense model they make the slim one again; nothing is unpickled.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from headwater.data.atomic import replacing
from headwater.data.pipeline import Pipeline
from headwater.errors import ModelError, ModelNotFound, ModelRefused, StateMismatch, WrongUse
from headwater.models import weights
from headwater.models.refill import Refill
from headwater.models.registry import Registry
from headwater.models.version import MOST_BYTES, ModelVersion, canonical, digest_of
from headwater.plan.prune import PrunePlan
from headwater.train.tickets.costs import Cost
from headwater.train.tickets.cuts import Attributes
from headwater.train.tickets.surgery import reshape, tensors_of

FORMAT = 1
BY = "early ticket"
MOST_MANIFEST_BYTES = 16 << 20
MANIFEST, WEIGHTS = "ticket.json", "weights.safetensors"


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What differs from the dense model: numbers of modules, and shapes of tensors, by name.

    `dense` are the shapes that these tensors have in the dense model.
    """

    modules: Attributes
    tensors: dict[str, tuple[int, ...]]
    dense: dict[str, tuple[int, ...]]


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    plan: dict[str, Any]
    shape: Shape
    before: Cost
    after: Cost
    weights: str
    format: int = FORMAT
    digest: str = ""

    def sealed(self) -> _Manifest:
        """With the digest of all the rest, which tells one that was edited or damaged."""
        rest = {key: value for key, value in msgspec.structs.asdict(self).items() if key != "digest"}
        return msgspec.structs.replace(self, digest=digest_of(canonical(rest)))


@dataclass(frozen=True, eq=False)
class Ticket:
    """A model made slim: the plan, how its shape differs from the dense one's, and what both cost."""

    plan: PrunePlan
    shape: Shape
    before: Cost
    after: Cost

    def save(self, folder: str | os.PathLike[str], model: nn.Module) -> None:
        """Write the manifest, and the weights that the slim model has now; `load_ticket` reads them.

        Raises `WrongUse` where there is a file instead of a folder.
        """
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise WrongUse(f"{target} is no folder, or lies in a file; give a folder to write to") from error
        content = weights.dump({name: _to_array(name, tensor) for name, tensor in model.state_dict().items()})
        manifest = _Manifest(self.plan.to_dict(), self.shape, self.before, self.after, digest_of(content))
        for name, data in (
            (WEIGHTS, content),
            (MANIFEST, msgspec.json.format(msgspec.json.encode(manifest.sealed()))),
        ):
            with replacing(target / name) as file:
                file.write(data)

    def publish(
        self,
        registry: Registry,
        model: nn.Module,
        *,
        name: str,
        classes: Sequence[str],
        steps: Pipeline,
        parent: str | None = None,
        data: str | None = None,
        switch: bool = False,
    ) -> ModelVersion:
        """Keep the slim model as a version of `name`, and with `switch` put it in force.

        `steps` are what images go through before it, `parent` is the version that it came from. `data` is the
        version of the dataset that it was trained on, `dataset.version`: by that `headwater forget` knows
        what it saw. Raises `ModelError` for a model that cannot be exported, `WrongUse` for steps or classes
        that do not go with it.
        """
        exported = Refill(model, classes=classes, steps=steps).fill(model.state_dict())
        made = self.made if data is None else {**self.made, "data": data}
        return registry.put(exported, name=name, parent=parent, made=made, switch=switch)

    @property
    def made(self) -> dict[str, Any]:
        """How the version came about, for its manifest."""
        plan, before, after = self.plan, self.before, self.after
        return {
            "by": BY,
            "ratio": plan.ratio,
            "removed": plan.removed,
            "step": plan.step,
            "reason": plan.reason,
            "parameters": [before.parameters, after.parameters],
            "macs": [before.macs, after.macs],
        }

    def __str__(self) -> str:
        """What it saves, in a line; then the plan."""
        before, after = self.before, self.after
        return (
            f"{after.parameters:,} of {before.parameters:,} parameters, {after.macs:,} of {before.macs:,} "
            f"multiply-adds ({before.macs / max(after.macs, 1):.2f}x fewer)\n{self.plan}"
        )


def load_ticket(folder: str | os.PathLike[str], model: nn.Module) -> Ticket:
    """Make a dense model, fresh from its code, the slim one that `Ticket.save` wrote there.

    Its parameters stay the objects that they are. Raises `ModelNotFound` where there is none,
    `ModelRefused` for files that do not belong together or to this model; the model is then as it was.
    """
    target = Path(folder)
    manifest = _parse(_read(target / MANIFEST, most=MOST_MANIFEST_BYTES), target / MANIFEST)
    content = _read(target / WEIGHTS, most=MOST_BYTES)
    if digest_of(content) != manifest.weights:
        raise ModelRefused(f"the weights in {target} are not those of its manifest; save the ticket again")
    tensors = weights.parse(memoryview(content))
    _check_shape(manifest.shape, model)
    held, found = _slim(model, manifest.shape), {name: array.shape for name, array in tensors.items()}
    if found != held:
        name = min(name for name in found.keys() | held.keys() if found.get(name) != held.get(name))
        raise ModelRefused(
            f"{name!r} is {found.get(name)} in the file and {held.get(name)} in the model; "
            "give the model that it was made of"
        )
    _check_costs(manifest, model)
    own = tensors_of(model)
    empty = {name: own[name].new_empty(shape) for name, shape in manifest.shape.tensors.items()}
    reshape(model, empty, manifest.shape.modules)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in tensors.items()})
    return Ticket(PrunePlan.from_dict(manifest.plan), manifest.shape, manifest.before, manifest.after)


def _read(path: Path, *, most: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > most:
            raise ModelRefused(f"{path} has {size:,} bytes; at most {most:,} are read")
        return path.read_bytes()
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}") from error


def _parse(data: bytes, path: Path) -> _Manifest:
    try:
        found = msgspec.json.decode(data, type=_Manifest)
        PrunePlan.from_dict(found.plan)
    except (msgspec.MsgspecError, ValueError, RecursionError, StateMismatch) as error:
        raise ModelRefused(f"{path} is not the manifest of a ticket: {error}") from error
    if found.format != FORMAT:
        raise ModelRefused(
            f"{path} has format {found.format}, this version reads {FORMAT}; upgrade Headwater"
        )
    if found.digest != found.sealed().digest:
        raise ModelRefused(f"{path} is not as it was written: its digest is another; save the ticket again")
    return found


def _check_shape(shape: Shape, model: nn.Module) -> None:
    """Nothing may be larger than in the dense model, nor be there that is not in it, nor be of other widths.

    The model may also be one that is slim already.
    """
    if shape.dense.keys() != shape.tensors.keys():
        raise ModelRefused("the manifest has dense shapes of other tensors; save the ticket again")
    modules, tensors = dict(model.named_modules()), tensors_of(model)
    for name, numbers in shape.modules.items():
        for key, value in numbers.items():
            dense = vars(modules[name]).get(key) if name in modules else None
            if not _is_within(value, dense):
                raise ModelRefused(
                    f"{name}.{key} is {value} in the file and {dense} in the model; give the dense one"
                )
    for name, edges in shape.tensors.items():
        dense = tuple(tensors[name].shape) if name in tensors else None
        if not _is_within(edges, dense):
            raise ModelRefused(f"{name} is {edges} in the file and {dense} in the model; give the dense one")
        if dense not in (shape.dense[name], edges):
            raise ModelRefused(
                f"{name} is {dense} in the model, and was {shape.dense[name]} in the one that was made slim; "
                "give a model of these widths"
            )


def _check_costs(manifest: _Manifest, model: nn.Module) -> None:
    """What the manifest says of costs: the slim model's are what it has, and no more than the dense one's."""
    dense = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    slim = {name: manifest.shape.tensors.get(name, edges) for name, edges in dense.items()}
    before, after, held = manifest.before, manifest.after, sum(map(math.prod, slim.values()))
    fits = after.parameters == held <= before.parameters and 0 <= after.macs <= before.macs
    if not fits:
        raise ModelRefused(
            f"the manifest says {before}, then {after}; the slim model has {held:,} parameters; "
            "save the ticket again"
        )


def _slim(model: nn.Module, shape: Shape) -> dict[str, tuple[int, ...]]:
    """Shapes of a state dict when the model is slim; of a tensor's several names, `shape` has one."""
    own = tensors_of(model)
    changed = {id(own[name]): edges for name, edges in shape.tensors.items()}
    state = model.state_dict(keep_vars=True)
    return {name: changed.get(id(tensor), tuple(tensor.shape)) for name, tensor in state.items()}


def _is_within(value: object, dense: object) -> bool:
    if isinstance(value, tuple) and isinstance(dense, tuple):
        return len(value) == len(dense) and all(map(_is_within, value, dense))
    both_numbers = type(value) is int and type(dense) is int
    return both_numbers and 0 < value <= dense  # type: ignore[operator]


def _to_array(name: str, tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        raise ModelError(f"{name} is bfloat16, which is not kept; call model.float() first")
    return tensor.detach().cpu().numpy()
