"""Hashes are whole-number arithmetic, stay close under what does not change a picture, and far otherwise."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from headwater.data.image.fingerprint import EDGE, VIEWS, WORDS, cosines, hash_thumbnails
from headwater.data.image.thumbnail import shrink
from headwater.errors import WrongUse
from headwater.select.duplicates import ALIKE
from headwater.select.hamming import alike, distances
from pictures import jpeg

Pixels = NDArray[np.uint8]


def scene(seed: int, height: int = 240, width: int = 320) -> Pixels:
    """Blots of all sizes, so that every frequency says something, as in a photo."""
    rng = np.random.default_rng(seed)
    layers = [rng.normal(0, 60, (edge, edge, 3)) for edge in (3, 6, 12, 24)]
    sized = [
        np.stack([_enlarge(part, height, width) for part in np.moveaxis(layer, 2, 0)], 2) for layer in layers
    ]
    return (sum(sized) + 128).clip(0, 255).astype(np.uint8)


def _enlarge(part: NDArray[np.float64], height: int, width: int) -> NDArray[np.float32]:
    return np.asarray(
        Image.fromarray(part.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC)
    )


def hashes(*images: Pixels) -> NDArray[np.uint64]:
    return hash_thumbnails(np.stack([shrink(image, EDGE)[:, :, 0] for image in images]))


def distance(one: Pixels, other: Pixels) -> int:
    left, right = hashes(one, other)
    return int(distances(left[None], right[None])[0])


def test_the_waves_are_the_same_on_every_machine() -> None:
    """No cosine is so close to the middle of two whole numbers that an unlike last digit would tell."""
    for _, _, edge in VIEWS:
        angles = np.arange(len(cosines(edge)))[:, None] * (2 * np.arange(edge) + 1) * math.pi / (2 * edge)
        exact = 1024 * np.cos(angles)
        assert np.abs(np.abs(exact - np.floor(exact)) - 0.5).min() > 1e-4


def test_the_bits_are_signs_of_frequencies() -> None:
    """By Python's integers, for one thumbnail and every view."""
    thumbnail = shrink(scene(3), EDGE)[:, :, 0]
    (made,) = hash_thumbnails(thumbnail[None])
    order = sorted((down**2 + across**2, down, across) for down in range(13) for across in range(13))
    for view, (top, left, edge) in enumerate(VIEWS):
        part = thumbnail[top : top + edge, left : left + edge].astype(object)
        waves = cosines(edge).astype(np.int64).astype(object)
        strengths = waves @ (part * part.size - part.sum()) @ waves.T
        bits = [int(strengths[down, across] > 0) for _, down, across in order[1 : 64 * WORDS + 1]]
        words = [int("".join(map(str, bits[64 * word : 64 * word + 64])), 2) for word in range(WORDS)]
        assert made[view].tolist() == words


def test_releases_agree_on_hashes() -> None:
    """A change of one bit makes all that was ever hashed worthless: do it on purpose."""
    ramp = np.arange(EDGE * EDGE, dtype=np.uint32).reshape(1, EDGE, EDGE)
    pictures = ((ramp * np.array([[[7919]], [[104729]]], np.uint32)) >> np.uint32(7)).astype(np.uint8)
    content = hash_thumbnails(pictures).astype("<u8").tobytes()
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == "57d9a367f0a65198"


def test_one_by_one_is_all_at_once() -> None:
    images = [scene(seed) for seed in range(5)]
    np.testing.assert_array_equal(hashes(*images), np.concatenate([hashes(image) for image in images]))
    assert hash_thumbnails(np.empty((0, EDGE, EDGE), np.uint8)).shape == (0, len(VIEWS), WORDS)


@pytest.mark.parametrize("seed", range(5))
def test_the_same_picture_is_recognised(seed: int) -> None:
    image = scene(seed)
    height, width = image.shape[:2]
    small = np.asarray(Image.fromarray(image).resize((width * 6 // 10, height * 7 // 10)))
    assert distance(image, simplejpeg.decode_jpeg(jpeg(image, quality=30))) <= 6
    assert distance(image, small) <= 6
    for top, left in ((0, 0), (10, 0), (0, 13), (10, 13), (5, 6)):
        cut = image[top : top + height - 10, left : left + width - 13]
        assert distance(image, cut) <= ALIKE
        assert distance(image, cut) == distance(cut, image)


def test_other_pictures_are_not() -> None:
    images = hashes(*(scene(seed) for seed in range(40)))
    left, right = np.triu_indices(len(images), 1)
    assert not alike(images[left], images[right], most=ALIKE).any()
    assert distance(scene(0), scene(0)[:, ::-1]) > ALIKE


def test_pictures_without_anything_on_them_are_all_the_same() -> None:
    black, white = (np.full((9, 50, 3), value, np.uint8) for value in (0, 255))
    assert not hashes(black, white).any()


@pytest.mark.parametrize("thumbnails", [np.zeros((2, 32, 32), np.uint8), np.zeros((2, EDGE, EDGE))])
def test_what_is_no_thumbnail_is_refused(thumbnails: NDArray[np.uint8]) -> None:
    with pytest.raises(WrongUse, match="hashes are made of uint8"):
        hash_thumbnails(thumbnails)
