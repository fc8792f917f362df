"""Transforms of torchvision, v1 and v2, recognised by class name without importing torchvision.

Each becomes ours where ours gives the same pixels for the same parameters; any other is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headwater.data.steps.blur import GaussianBlur
from headwater.data.steps.compound import CenterCrop, RandomCrop, RandomResizedCrop
from headwater.data.steps.dtype import Normalize, ToDtype
from headwater.data.steps.erasing import RandomErasing
from headwater.data.steps.flip import RandomHorizontalFlip, RandomVerticalFlip
from headwater.data.steps.jitter import ColorJitter, Grayscale, RandomGrayscale
from headwater.data.steps.mix import CutMix, MixUp
from headwater.data.steps.pad import Pad
from headwater.data.steps.resize import Resize
from headwater.data.steps.trivial import TrivialAugmentWide
from headwater.errors import WrongUse

_PREFIX = "torchvision.transforms."
_SEQUENTIAL = "torch.nn.modules.container.Sequential"
_PILLOW_FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}


def is_foreign(transform: object) -> bool:
    """Whether it is one of torchvision's transforms, or a sequence module that may hold some."""
    kind = type(transform)
    return kind.__module__.startswith(_PREFIX) or f"{kind.__module__}.{kind.__name__}" == _SEQUENTIAL


def recognise(transform: object) -> list[object]:
    """Our transforms in place of one of torchvision's, or the object itself where there is none."""
    name = type(transform).__name__
    if name in ("Compose", "Sequential"):
        members: Iterable[object] = transform.transforms if hasattr(transform, "transforms") else transform  # type: ignore[assignment]
        return [
            ours for member in members for ours in (recognise(member) if is_foreign(member) else [member])
        ]
    translate = _TRANSLATIONS.get(name)
    if translate is None:
        return [transform]
    try:
        return translate(transform)
    except (WrongUse, AttributeError):
        # Parameters that ours do not take, such as a fill per type: torchvision's own code then runs.
        return [transform]


def _is_v2(transform: object) -> bool:
    return type(transform).__module__.startswith(_PREFIX + "v2")


def _filter(transform: Any) -> Any:
    """The interpolation; torchvision takes Pillow's constants too."""
    return _PILLOW_FILTERS.get(transform.interpolation, transform.interpolation)


def _resize(transform: Any) -> list[object]:
    antialias = transform.antialias is not False
    return [Resize(transform.size, _filter(transform), transform.max_size, antialias)]


def _random_resized_crop(transform: Any) -> list[object]:
    antialias = transform.antialias is not False
    crop = RandomResizedCrop(
        transform.size,
        transform.scale,
        transform.ratio,
        interpolation=_filter(transform),
        antialias=antialias,
    )
    return [crop]


def _random_crop(transform: Any) -> list[object]:
    padding = transform.padding
    if padding is not None and _is_v2(transform):
        # v2 keeps them parsed, in another order than they are passed in.
        left, right, top, bottom = padding
        padding = (left, top, right, bottom)
    fill = 0.0 if transform.fill is None else transform.fill
    needed, mode = transform.pad_if_needed, transform.padding_mode
    return [RandomCrop(transform.size, padding, pad_if_needed=needed, fill=fill, padding_mode=mode)]


def _to_tensor(transform: Any) -> list[object]:
    return [ToDtype("float32", scale=True, divide=True)]


def _convert_dtype(transform: Any) -> list[object]:
    return [ToDtype(transform.dtype, scale=True, divide=not _is_v2(transform))]


_TRANSLATIONS: dict[str, Callable[[Any], list[object]]] = {
    "CenterCrop": lambda t: [CenterCrop(t.size)],
    "ColorJitter": lambda t: [ColorJitter(t.brightness, t.contrast, t.saturation, t.hue)],
    "ConvertImageDtype": _convert_dtype,
    "CutMix": lambda t: [CutMix(t.alpha, t.num_classes)],
    "GaussianBlur": lambda t: [GaussianBlur(t.kernel_size, t.sigma)],
    "Grayscale": lambda t: [Grayscale(t.num_output_channels)],
    "Identity": lambda t: [],
    "MixUp": lambda t: [MixUp(t.alpha, t.num_classes)],
    "Normalize": lambda t: [Normalize(t.mean, t.std)],
    "PILToTensor": lambda t: [],
    "Pad": lambda t: [Pad(t.padding, 0.0 if t.fill is None else t.fill, t.padding_mode)],
    "RandomCrop": _random_crop,
    "RandomErasing": lambda t: [
        RandomErasing(t.p, t.scale, t.ratio, "random" if t.value is None else t.value)
    ],
    "RandomGrayscale": lambda t: [RandomGrayscale(t.p)],
    "RandomHorizontalFlip": lambda t: [RandomHorizontalFlip(t.p)],
    "RandomResizedCrop": _random_resized_crop,
    "RandomVerticalFlip": lambda t: [RandomVerticalFlip(t.p)],
    "Resize": _resize,
    "ToDtype": lambda t: [ToDtype(t.dtype, scale=t.scale)],
    "ToImage": lambda t: [],
    "ToPureTensor": lambda t: [],
    "ToTensor": _to_tensor,
    "TrivialAugmentWide": lambda t: [TrivialAugmentWide(t.num_magnitude_bins, _filter(t), t.fill)],
}
