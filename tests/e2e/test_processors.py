"""The same bytes on every kind of CPU that can be had here: other kernels of torch, none of libjpeg's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from datasets import make_photo

DIGEST = """
import hashlib, sys
import headwater as hw
from headwater import transforms as T

steps = [T.RandomResizedCrop(48, interpolation=sys.argv[2]), T.RandomHorizontalFlip(), T.RandomVerticalFlip(),
         T.ToDtype("float32", scale=True), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
digest = hashlib.blake2b()
for batch in hw.DataLoader(hw.open(sys.argv[1]), steps, batch_size=8, shuffle=True, num_workers=2):
    digest.update(batch.inputs.numpy().tobytes())
print(digest.hexdigest())
"""
KINDS = ({}, {"ATEN_CPU_CAPABILITY": "default"}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"JSIMD_FORCENONE": "1"})


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_an_epoch_has_the_same_bytes(tmp_path: Path, interpolation: str) -> None:
    rng = np.random.default_rng(2)
    for number in range(16):  # large enough for partial decode, and some that are not
        side = 120 if number % 4 == 0 else 260
        (tmp_path / f"{number}.jpg").write_bytes(make_photo(rng, side + number, side + 40))
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, str(tmp_path), interpolation],
            env=os.environ | kind,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for kind in KINDS
    }
    assert len(digests) == 1
