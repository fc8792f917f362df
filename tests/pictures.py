"""Pictures for tests, made on the spot: photo-like pixels, and files of every kind that is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

SUBSAMPLINGS = ("444", "422", "420", "440", "411")


def photo(height: int, width: int, *, channels: int = 3, seed: int = 0) -> Pixels:
    """Soft colours with edges and noise, so that blocks, chroma and borders all matter."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = rng.uniform(0.02, 0.35, (channels, 2))
    soft = [127 + 90 * np.sin(rows * down + columns * across) for down, across in waves]
    noisy = np.stack(soft, axis=2) + rng.normal(0, 14, (height, width, channels))
    noisy[(rows // 9 + columns // 13) % 5 == 0] += 60
    return noisy.clip(0, 255).astype(np.uint8)


def save(pixels: Pixels | Image.Image, format: str, **options: Any) -> bytes:
    """A file as Pillow writes it."""
    image = pixels if isinstance(pixels, Image.Image) else as_image(pixels)
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def as_image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def jpeg(pixels: Pixels, subsampling: str = "420", *, quality: int = 90) -> bytes:
    """A baseline file of any of `SUBSAMPLINGS`, or grey where the pixels are."""
    pixels = np.ascontiguousarray(pixels)
    colours = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", subsampling)
    return bytes(simplejpeg.encode_jpeg(pixels, quality, *colours))


def progressive(pixels: Pixels, subsampling: str = "4:2:0", **options: Any) -> bytes:
    if pixels.shape[2] == 3:
        options["subsampling"] = subsampling
    return save(pixels, "JPEG", quality=90, progressive=True, **options)


def exif(orientation: int) -> bytes:
    """An EXIF block that holds the orientation only."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def turned(data: bytes, orientation: int) -> bytes:
    """The JPEG with an EXIF block that says how to turn it."""
    block = exif(orientation)
    return data[:2] + struct.pack(">BBH", 0xFF, 0xE1, 2 + len(block)) + block + data[2:]


def open_pillow(data: bytes, mode: str = "RGB") -> Pixels:
    """The referee's pixels, as stored."""
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.array(image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def resize_frame(data: bytes, height: int, width: int) -> bytes:
    """The JPEG with another size written into its frame header."""
    at = min(place for mark in (b"\xff\xc0", b"\xff\xc2") if (place := data.find(mark)) > 0)
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def keep_scans(data: bytes, count: int) -> bytes:
    """A multi-scan JPEG that ends properly after its first scans."""
    at = -1
    for _ in range(count + 1):
        at = data.index(b"\xff\xda", at + 1)
    last_table = data.rfind(b"\xff\xc4", 0, at)
    scan = data.rfind(b"\xff\xda", 0, at)
    return data[: last_table if last_table > scan else at] + b"\xff\xd9"


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(rows: bytes, *, width: int, height: int, depth: int, kind: int, interlaced: bool = False) -> bytes:
    """A PNG of raw rows (each with its filter byte), for depths that Pillow does not write."""
    start = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    body = png_chunk(b"IHDR", start) + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
