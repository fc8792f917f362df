from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headwater as hw
from headwater import transforms
from headwater.cli.training import ResumeProof, small_network


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def test_the_demo_trains_resumes_and_reports(headwater_json: Any, headwater: Any, out: Path) -> None:
    words = ("demo", "--out", out, "--count", 240, "--epochs", 1)
    found = headwater_json(*words)
    assert found["resume"]["differing_bytes"] == 0
    assert found["resume"]["compared_bytes"] > 64 * 3 * 64 * 64 * 4
    assert len(found["validation_accuracy"]) == 1
    assert found["stats"]["epochs"] == 1
    assert len(list(Path(found["photos"]).rglob("*.jpg"))) == 240
    page = Path(found["report"]).read_text()
    assert "differing after resuming in mid-epoch" in page
    assert page.split("<body>")[1].count('src="data:image/png;base64,') == 48
    again = headwater(*words)
    assert again.returncode == 0, again.stderr
    assert "report.html written" in again.stdout


def test_the_proof_notices_another_loader(photo_folder: Path) -> None:
    """A proof that cannot fail would prove nothing."""

    def make(**options: Any) -> hw.DataLoader:
        transform = transforms.Compose([transforms.RandomResizedCrop(16)])
        return hw.DataLoader(
            hw.open(photo_folder), transform, batch_size=4, shuffle=True, num_workers=0, **options
        )

    straight, proof = make(seed=1), ResumeProof(at=2)
    for step, batch in enumerate(straight, start=1):
        proof.watch(step, batch, straight)
    assert len(proof.batches) == 3
    assert proof.differing_bytes(make(seed=1))[0] == 0
    proof.batches[1].inputs[0, 0, 0, 0] ^= 1
    assert proof.differing_bytes(make(seed=1))[0] == 1
    proof.batches.reverse()
    assert proof.differing_bytes(make(seed=1))[0] > 100


def test_the_network_takes_the_demos_images() -> None:
    assert small_network(8)(torch.zeros(2, 3, 64, 64)).shape == (2, 8)
