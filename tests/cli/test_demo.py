from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import headwater as hw
from headwater import transforms
from headwater.cli.exhibition import store
from headwater.cli.training import ResumeProof, small_network
from headwater.errors import HeadwaterError
from headwater.report.link import Passage


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
    check_link(found["link"])
    check_store(out / "store")
    page = Path(found["report"]).read_text()
    assert "differing after resuming in mid-epoch" in page
    assert "The store and the link" in page
    assert page.split("<body>")[1].count('src="data:image/png;base64,') == 48
    again = headwater(*words)
    assert again.returncode == 0, again.stderr
    assert "report.html written" in again.stdout


def check_link(link: dict[str, Any]) -> None:
    local, files, crops, faulty = link["epochs"]
    for epoch in link["epochs"]:
        assert epoch["samples"] == 240
        assert epoch["differing_bytes"] == 0
        assert epoch["compared_bytes"] >= 240 * 3 * 64 * 64 * 4
    # A connection may say a word of its own at any time.
    assert local["link_bytes"] < 1_000
    assert crops["link_bytes"] < files["link_bytes"] / 2
    assert (files["reconnects"], crops["reconnects"]) == (0, 0)
    assert faulty["reconnects"] >= 2
    assert faulty["link_bytes"] >= files["link_bytes"]
    assert list(link["faults"]) == ["connections reset", "store killed", "store back"]


def check_store(folder: Path) -> None:
    """Its token is for its owner alone, and the audit log tells who read without telling the token."""
    tokens, audit = folder / "tokens.toml", (folder / "audit.jsonl").read_text()
    assert tokens.stat().st_mode & 0o077 == 0
    assert tomllib.loads(tokens.read_text())["token"][0]["secret"] not in audit
    lines = [json.loads(line) for line in audit.splitlines()]
    assert any(line["action"] == "read" and line["caller"] == "demo" for line in lines)


def test_the_demo_notices_another_byte() -> None:
    """Were the link to change a byte, the chapter would not be written."""
    good = Passage("files", 10, 1, 1.0, 0, compared_bytes=100, differing_bytes=0)
    store._check(good)
    with pytest.raises(HeadwaterError, match="1 of 100 bytes differ"):
        store._check(replace(good, differing_bytes=1))
    with pytest.raises(HeadwaterError, match="0 of 0 bytes"):
        store._check(replace(good, compared_bytes=0))


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
