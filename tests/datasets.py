"""Small datasets that tests write for themselves: three classes of photos in every layout."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from PIL import Image

CLASSES = ("ant", "bee", "cat")


class Photo(NamedTuple):
    """One sample before it is written in some layout."""

    label: int
    name: str
    suffix: str
    data: bytes


def make_pixels(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A smooth picture with a little noise, so that its JPEG is as small as a photo's."""
    corners = rng.uniform(0, 255, (2, 2, 3))
    down = np.linspace(0, 1, height)[:, None, None]
    across = np.linspace(0, 1, width)[None, :, None]
    top = corners[0, 0] * (1 - across) + corners[0, 1] * across
    bottom = corners[1, 0] * (1 - across) + corners[1, 1] * across
    smooth = top * (1 - down) + bottom * down + rng.normal(0, 6, (height, width, 3))
    return np.ascontiguousarray(smooth.clip(0, 255).astype(np.uint8))


def make_photo(rng: np.random.Generator, height: int, width: int, suffix: str = "jpg") -> bytes:
    """The bytes of one picture as JPEG, PNG or WebP."""
    pixels = make_pixels(rng, height, width)
    if suffix == "jpg":
        return bytes(simplejpeg.encode_jpeg(pixels, quality=85))
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, {"png": "PNG", "webp": "WEBP"}[suffix])
    return stream.getvalue()


def make_photos(count: int = 36, seed: int = 5) -> list[Photo]:
    """Photos of differing sizes, all classes in turn; one in six is a PNG, one a WebP."""
    rng = np.random.default_rng(seed)
    photos = []
    for number in range(count):
        suffix = {4: "png", 5: "webp"}.get(number // len(CLASSES) % 6, "jpg")
        height, width = (int(side) for side in rng.integers(40, 120, 2))
        data = make_photo(rng, height, width, suffix)
        photos.append(Photo(number % len(CLASSES), f"{number:04d}", suffix, data))
    return photos


def write_folder(root: Path, photos: Sequence[Photo]) -> Path:
    for photo in photos:
        folder = root / CLASSES[photo.label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{photo.name}.{photo.suffix}").write_bytes(photo.data)
    return root


def write_tar(path: Path, members: Sequence[tuple[str, bytes]], *, form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def members_of(photo: Photo) -> list[tuple[str, bytes]]:
    """A photo as WebDataset writes it: image, class and JSON under one name."""
    described = json.dumps({"class": CLASSES[photo.label], "number": int(photo.name)}).encode()
    parts = ((photo.suffix, photo.data), ("cls", CLASSES[photo.label].encode()), ("json", described))
    return [(f"{photo.name}.{extension}", data) for extension, data in parts]


def write_tars(root: Path, photos: Sequence[Photo], shards: int = 3) -> Path:
    for shard in range(shards):
        some = photos[shard * len(photos) // shards : (shard + 1) * len(photos) // shards]
        write_tar(root / f"shard-{shard:03d}.tar", [member for photo in some for member in members_of(photo)])
    return root


def write_parquet(path: Path, photos: Sequence[Photo], *, rows_per_group: int = 5) -> Path:
    """With Hugging Face's image schema: a struct of bytes and path, and named classes in the metadata."""
    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(CLASSES), "_type": "ClassLabel"},
    }
    table = pa.table(
        {
            "image": [{"bytes": photo.data, "path": f"{photo.name}.{photo.suffix}"} for photo in photos],
            "label": pa.array([photo.label for photo in photos], pa.int64()),
            "number": pa.array([int(photo.name) for photo in photos], pa.int32()),
            "camera": [("north", "south")[int(photo.name) % 2] for photo in photos],
        }
    )
    described = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(described), path, row_group_size=rows_per_group)
    return path


def write_parquets(root: Path, photos: Sequence[Photo], files: int = 2) -> Path:
    for number in range(files):
        some = photos[number * len(photos) // files : (number + 1) * len(photos) // files]
        write_parquet(root / f"train-{number:05d}-of-{files:05d}.parquet", some)
    return root
