from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from headwater.data.synthetic import class_names, make_photos, write_photos
from headwater.errors import WrongUse


def photos(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.jpg"))}


def test_a_photo_depends_on_its_position_and_the_seed_alone() -> None:
    together = list(make_photos(np.arange(6), classes=8, seed=3))
    alone = [next(make_photos(np.array([i]), classes=8, seed=3)) for i in (5, 0, 2)]
    assert alone == [together[5], together[0], together[2]]
    assert list(make_photos(np.arange(6), classes=8, seed=4)) != together


def test_sizes_and_formats_are_like_those_of_real_photos() -> None:
    made = list(make_photos(np.arange(300), classes=8, seed=0))
    sizes = np.array([len(photo) for photo in made])
    headers = [simplejpeg.decode_jpeg_header(photo) for photo in made]
    pixels = np.array([header[:2] for header in headers])
    assert 90_000 < sizes.mean() < 130_000
    assert sizes.min() < 40_000
    assert 200_000 < sizes.max() < 500_000
    assert np.all((pixels.mean(axis=0) > 360) & (pixels.mean(axis=0) < 500))
    assert {header[3] for header in headers} == {"420", "444", "Gray"}
    progressive = [Image.open(io.BytesIO(photo)).info.get("progressive", 0) for photo in made]
    assert 0 < sum(progressive) < 40


def test_palette_and_shape_are_in_the_pixels() -> None:
    """A rule of one line tells warm from cool in most photos: the label is not decoration."""
    made = list(make_photos(np.arange(80), classes=8, seed=1))
    warmer = []
    for photo in made:
        pixels = simplejpeg.decode_jpeg(photo).astype(float)
        height, width = pixels.shape[:2]
        middle = pixels[height * 2 // 5 : height * 3 // 5, width * 2 // 5 : width * 3 // 5].mean(axis=(0, 1))
        warmer.append(middle[0] > middle[2])
    warm = [name.endswith("warm") for name in class_names(8)] * 10
    assert np.mean(np.array(warmer) == warm) > 0.85


def test_a_folder_is_the_same_for_any_number_of_threads_and_when_continued(tmp_path: Path) -> None:
    write_photos(tmp_path / "one", count=70, classes=4, seed=5, threads=1)
    write_photos(tmp_path / "many", count=70, classes=4, seed=5, threads=3)
    whole = photos(tmp_path / "one")
    assert sorted({name.split("/")[0] for name in whole}) == sorted(class_names(4))
    assert len(whole) == 70
    assert photos(tmp_path / "many") == whole
    for name in list(whole)[::3]:
        (tmp_path / "one" / name).unlink()
    write_photos(tmp_path / "one", count=70, classes=4, seed=5, threads=2)
    assert photos(tmp_path / "one") == whole


def test_a_killed_run_leaves_whole_photos_and_is_continued(tmp_path: Path) -> None:
    call = (
        "from headwater.data.synthetic import write_photos\n"
        f"write_photos({str(tmp_path / 'photos')!r}, count=400, classes=2, seed=0, threads=2)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", call], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "photos").rglob("*.jpg"))) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = photos(tmp_path / "photos")
    assert len(left) >= 20
    assert all(photo.endswith(b"\xff\xd9") for photo in left.values())
    write_photos(tmp_path / "photos", count=400, classes=2, seed=0)
    whole = photos(tmp_path / "photos")
    assert len(whole) == 400
    assert left.items() <= whole.items()


@pytest.mark.parametrize("change", [{"seed": 1}, {"classes": 3}, {"count": 9}])
def test_a_folder_of_another_recipe_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    recipe = {"count": 8, "classes": 2, "seed": 0}
    write_photos(tmp_path, **recipe)
    before = photos(tmp_path)
    with pytest.raises(WrongUse, match="another recipe"):
        write_photos(tmp_path, **{**recipe, **change})
    assert photos(tmp_path) == before


def test_a_folder_of_the_users_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(WrongUse, match="not empty"):
        write_photos(tmp_path, count=8)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("wrong", [{"count": 0}, {"threads": 0}, {"classes": 1}, {"classes": 17}])
def test_impossible_numbers_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(WrongUse, match=next(iter(wrong))):
        write_photos(tmp_path, **{"count": 4, **wrong})
    assert not list(tmp_path.iterdir())
