"""Photo-like JPEG files with classes that can be learned: data for demos, tests and benchmarks.

A photo shows one object before a noisy background. Its class is the object's shape, the direction of
its stripes and its palette; everything else (size, place, light, noise, compression) is nuisance. Sizes
follow ImageNet: about 400 x 470 pixels, 20 to 300 kB, mostly 4:2:0, some 4:4:4, grey and progressive.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image as Pillow

from headwater.data.randomness import Draws
from headwater.errors import WrongUse

Plane = NDArray[np.float32]

SHAPES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "disc": lambda x, y: np.sqrt(x * x + y * y),
    "cross": lambda x, y: np.maximum(np.minimum(abs(x), abs(y)) * 3, np.maximum(abs(x), abs(y))),
    "ring": lambda x, y: (
        np.abs(np.sqrt(x * x + y * y) - np.float32(0.72)) * np.float32(1.6) + np.float32(0.55)
    ),
    "square": lambda x, y: np.maximum(abs(x), abs(y)) * np.float32(1.15),
}
"""Distance from the centre, 1 at the outline, for coordinates in [-1, 1]."""
DIRECTIONS = ("level", "upright")
PALETTES = ("warm", "cool")

_MARK = ".headwater-photos.json"
_BANK = 1024  # side of a noise tile; a photo is a window of it
_DRAWS = 40
_CHUNK = 32


@dataclass(frozen=True)
class Recipe:
    """What makes a folder of photos; the same recipe gives the same files."""

    count: int
    classes: int
    seed: int
    version: int = 1


def class_names(classes: int) -> list[str]:
    """Names of the first `classes` kinds of photo, such as "disc-level-warm"."""
    kinds = ["-".join(kind) for kind in itertools.product(SHAPES, DIRECTIONS, PALETTES)]
    if not 2 <= classes <= len(kinds):
        raise WrongUse(f"classes={classes} is outside 2..{len(kinds)}")
    return kinds[:classes]


def write_photos(
    root: str | os.PathLike[str], *, count: int, classes: int = 8, seed: int = 0, threads: int = 2
) -> None:
    """Write `count` photos as root/class/number.jpg; photo i is of class i modulo `classes`.

    A run that was killed is continued by the same call, and a finished one costs a look at each name.
    Raises `WrongUse` for a folder that holds something else.
    """
    recipe, folder = Recipe(count, classes, seed), Path(root)
    if count < 1 or threads < 1:
        raise WrongUse(f"count={count} and threads={threads} must both be at least 1")
    folders = [folder / name for name in class_names(classes)]
    _claim(folder, recipe)
    for path in folders:
        path.mkdir(exist_ok=True)
    starts = range(0, count, _CHUNK)
    with ThreadPoolExecutor(threads) as pool:
        try:
            for _ in pool.map(lambda start: _write_chunk(folders, start, recipe), starts):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def make_photos(positions: NDArray[np.int64], *, classes: int, seed: int) -> Iterator[bytes]:
    """JPEG files, each a function of its position, the number of classes and the seed alone."""
    draws = Draws.of(positions, seed=seed, epoch=0, step=0)
    rows = np.stack([draws.uniform(draw) for draw in range(_DRAWS)], axis=1)
    kinds = list(itertools.product(SHAPES, DIRECTIONS, PALETTES))[:classes]
    for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
        yield _photo(kinds[position % classes], iter(row), seed)


def _claim(folder: Path, recipe: Recipe) -> None:
    """Mark the folder as ours before the first photo, so that nothing of the user's is mixed in."""
    mark, content = folder / _MARK, msgspec.json.encode(asdict(recipe))
    folder.mkdir(parents=True, exist_ok=True)
    if not mark.exists() and any(folder.iterdir()):
        raise WrongUse(f"{folder} is not empty and holds no generated photos; name another folder")
    if mark.exists() and mark.read_bytes() != content:
        raise WrongUse(
            f"{folder} holds photos of another recipe ({mark.read_text()}, asked for {content.decode()}); "
            "remove it or name another folder"
        )
    _replace(mark, content)


def _write_chunk(folders: list[Path], start: int, recipe: Recipe) -> None:
    stop = min(start + _CHUNK, recipe.count)
    paths = {i: folders[i % len(folders)] / f"{i:08d}.jpg" for i in range(start, stop)}
    missing = np.array([i for i, path in paths.items() if not path.exists()], dtype=np.int64)
    photos = make_photos(missing, classes=recipe.classes, seed=recipe.seed)
    for i, photo in zip(missing.tolist(), photos, strict=True):
        _replace(paths[i], photo)


def _replace(path: Path, content: bytes) -> None:
    """Write whole or not at all; the hidden name of an unfinished file is never taken for a photo."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def _photo(kind: tuple[str, str, str], row: Iterator[float], seed: int) -> bytes:
    style, quality = next(row), int(84 + 13 * next(row) ** 0.6)
    step = 1 if style > 0.85 else 2  # of chroma
    # simplejpeg reads past the end of a luma plane of odd size when chroma is halved.
    height, width = (length // step * step for length in _pixels(row))
    light = _background(row, height, width, seed)
    tint = _tints(row, height // step, width // step, seed)
    _paint(kind, row, light, tint, step)
    planes = [np.clip(plane, 0, 255).astype(np.uint8) for plane in (light, *tint)]
    return _encode(planes, quality, grey=style < 0.02, progressive=0.02 <= style < 0.06)


def _pixels(row: Iterator[float]) -> tuple[int, int]:
    """Most photos have a long side of 500, as downloaded ones do; a few are small or large."""
    spread, ratio, lying = next(row), 0.6 + 0.4 * next(row), next(row) < 0.68
    long = 500 if spread < 0.7 else int(240 + 480 * next(row))
    short = max(120, int(long * ratio))
    return (short, long) if lying else (long, short)


def _background(row: Iterator[float], height: int, width: int, seed: int) -> Plane:
    """Light: a gradient, noise like a landscape's, and the grain of a sensor."""
    light = _window(row, height, width, seed) * np.float32(10 + 28 * next(row))
    light += _window(row, height, width, seed, grain=True) * np.float32(2 + 9 * next(row) ** 2)
    light += np.linspace(-1, 1, height, dtype=np.float32)[:, None] * np.float32(60 * next(row) - 30)
    light += np.linspace(-1, 1, width, dtype=np.float32) * np.float32(60 * next(row) - 30)
    light += np.float32(95 + 60 * next(row))
    top, left = int(height * next(row) * 0.8), int(width * next(row) * 0.8)
    light[top : top + height // 3, left : left + width // 4] += np.float32(50 * next(row) - 25)
    return light


def _tints(row: Iterator[float], height: int, width: int, seed: int) -> list[Plane]:
    """Blue and red difference of the background: any hue, weaker than the object's."""
    tints = []
    for _ in range(2):
        tint = _window(row, height, width, seed) * np.float32(3 + 6 * next(row))
        tints.append(tint + np.float32(128 + 30 * next(row) - 15))
    return tints


def _paint(
    kind: tuple[str, str, str], row: Iterator[float], light: Plane, tint: list[Plane], step: int
) -> None:
    """Blend the object into light and tint; its outline fades over a few pixels."""
    shape, direction, palette = kind
    height, width = light.shape
    radius = min(height, width) * (0.26 + 0.18 * next(row))
    centre = height * (0.38 + 0.24 * next(row)), width * (0.38 + 0.24 * next(row))
    (rows, y), (columns, x) = (
        _span(middle, radius, length) for middle, length in zip(centre, light.shape, strict=True)
    )
    cover = np.clip((1 - SHAPES[shape](x[None, :], y[:, None])) * np.float32(radius / 3), 0, 1)
    tilt, phase = 0.5 * next(row) - 0.25, 6.28 * next(row)
    waves = (2.5 + 1.5 * next(row)) * np.pi
    along, across = (y[:, None], x[None, :]) if direction == "level" else (x[None, :], y[:, None])
    stripes = np.sin((along + np.float32(tilt) * across) * np.float32(waves) + np.float32(phase))
    stripes *= np.float32(28 + 24 * next(row))
    light[rows, columns] += cover * (stripes + np.float32(40 * next(row) - 20))
    sign = 1 if palette == "warm" else -1
    # Even starts keep the object's chroma samples under its light samples.
    cover = cover[(-rows.start) % step :: step, (-columns.start) % step :: step]
    for plane, strength in zip(tint, (-22 - 22 * next(row), 26 + 24 * next(row)), strict=True):
        at = -(-rows.start // step), -(-columns.start // step)
        part = plane[at[0] : at[0] + cover.shape[0], at[1] : at[1] + cover.shape[1]]
        part += cover * np.float32(sign * strength)


def _span(middle: float, radius: float, length: int) -> tuple[slice, Plane]:
    """The pixels of one axis that the object covers, and their coordinates in [-1, 1]."""
    start, stop = max(0, int(middle - radius)), min(length, int(middle + radius) + 1)
    return slice(start, stop), ((np.arange(start, stop) - middle) / radius).astype(np.float32)


def _window(row: Iterator[float], height: int, width: int, seed: int, *, grain: bool = False) -> Plane:
    tile = _noise(seed, grain)
    top, left = int(next(row) * (_BANK - height)), int(next(row) * (_BANK - width))
    return tile[top : top + height, left : left + width]


@lru_cache(maxsize=8)
def _noise(seed: int, grain: bool) -> Plane:
    """A tile of standard deviation 1 whose amplitude falls as 1/f, as in natural scenes; grain is white."""
    white = np.random.default_rng([seed & 0xFFFFFFFF, int(grain)]).standard_normal((_BANK, _BANK))
    if grain:
        return white.astype(np.float32)
    down, right = np.fft.fftfreq(_BANK)[:, None], np.fft.rfftfreq(_BANK)[None, :]
    frequency = np.maximum(np.hypot(down, right), 1 / _BANK)
    tile = np.asarray(np.fft.irfft2(np.fft.rfft2(white) / frequency), dtype=np.float32)
    return np.asarray((tile - tile.mean()) / tile.std(), dtype=np.float32)


def _encode(planes: list[NDArray[np.uint8]], quality: int, *, grey: bool, progressive: bool) -> bytes:
    if grey:
        return bytes(simplejpeg.encode_jpeg(planes[0][:, :, None], quality=quality, colorspace="GRAY"))
    if not progressive:
        return bytes(simplejpeg.encode_jpeg_yuv_planes(*planes, quality=quality))
    bands = [Pillow.fromarray(plane) for plane in planes]
    image = Pillow.merge("YCbCr", [band.resize(bands[0].size) for band in bands])
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, progressive=True)
    return buffer.getvalue()
