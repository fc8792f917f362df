"""Which columns of a Parquet file hold what: by Hugging Face's metadata, else by their names."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from headwater.data.sources.base import SourceOptions
from headwater.errors import DatasetError, WrongUse

IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "photo", "picture")
LABEL_NAME = "label"


@dataclass(frozen=True)
class ImageSchema:
    """Columns of one file, by role; `image_leaf` is the image bytes' path in Parquet's own schema."""

    image: str
    image_leaf: str
    label: str | None
    classes: tuple[str, ...]
    scalars: tuple[str, ...]
    fixed_width: frozenset[str]

    def is_fixed_width(self, name: str) -> bool:
        return name in self.fixed_width

    @classmethod
    def of(cls, schema: pa.Schema, options: SourceOptions) -> ImageSchema:
        """Raises `WrongUse` for a named column that is not there, `DatasetError` if none holds images."""
        for name in (options.image, options.label, *options.fields):
            if name is not None and name not in schema.names:
                raise WrongUse(f"no column {name!r}; the columns are {', '.join(schema.names)}")
        features = _features(schema)
        image = options.image or _image_column(schema, features)
        label = options.label or _label_column(schema, features)
        kind = schema.field(image).type
        names = features.get(label or "", {}).get("names") or ()
        others = [field for field in schema if field.name not in (image, label)]
        return cls(
            image=image,
            image_leaf=f"{image}.bytes" if pa.types.is_struct(kind) else image,
            label=label,
            classes=tuple(map(str, names)) if isinstance(names, list) else (),
            scalars=tuple(f.name for f in others if _is_fixed(f.type) or _is_text(f.type)),
            fixed_width=frozenset(f.name for f in others if _is_fixed(f.type)),
        )


def _features(schema: pa.Schema) -> dict[str, dict[str, object]]:
    """Hugging Face's description of the columns; empty if there is none or it is not what it should be."""
    try:
        described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = described.get("info", {}).get("features", {})
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _image_column(schema: pa.Schema, features: dict[str, dict[str, object]]) -> str:
    usable = [field.name for field in schema if _holds_bytes(field.type)]
    described = [name for name in usable if features.get(name, {}).get("_type") == "Image"]
    named = [name for name in IMAGE_NAMES if name in usable]
    structs = [name for name in usable if pa.types.is_struct(schema.field(name).type)]
    for candidates in (described, named, structs, usable if len(usable) == 1 else []):
        if candidates:
            return candidates[0]
    raise DatasetError(f"no image column among {', '.join(schema.names)}; name it with image=...")


def _label_column(schema: pa.Schema, features: dict[str, dict[str, object]]) -> str | None:
    described = [n for n, f in features.items() if f.get("_type") == "ClassLabel" and n in schema.names]
    if described:
        return described[0]
    return LABEL_NAME if LABEL_NAME in schema.names else None


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _holds_bytes(kind.field(place).type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
