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
from headwater.cli.exhibition import offload, store
from headwater.cli.training import ResumeProof, small_network
from headwater.data.synthetic import write_photos
from headwater.errors import HeadwaterError
from headwater.report.link import Passage
from headwater.report.trade import Turn


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.mark.timeout(600)  # the whole demo, twice
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
    check_offload(found["offload"])
    page = Path(found["report"]).read_text()
    assert "differing after resuming in mid-epoch" in page
    for title in ("The store and the link", "Fewer bytes for the same tensors", "Offloading"):
        assert f"<h2>{title}</h2>" in page
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


def check_offload(found: dict[str, Any]) -> None:
    """Whether a plan was worth following depends on the machine; that nothing differs does not."""
    files, *planned = found["epochs"]
    assert [epoch["name"] for epoch in planned] == ["auto 0", "auto 1", "auto 2"]
    for epoch in found["epochs"]:
        assert (epoch["samples"], epoch["differing"]) == (240, 0)
        assert epoch["trainer_cpu_seconds"] > 0
    assert files["planned"] == 0
    assert files["link_bytes"] > 240 * 50_000
    assert sum(epoch["store_cpu_seconds"] for epoch in planned) > files["store_cpu_seconds"]
    assert sum(way["done"] for way in found["ways"]) == 3 * 240
    assert sum(way["done"] for way in found["ways"][1:]) > 0


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


def test_offloading_is_shown_without_any_codec(out: Path) -> None:
    """As where the extras are not installed: cuts alone, and the page says what is missing."""
    photos = out / "few"
    write_photos(photos, count=96)
    exhibit = offload.show_offload(photos, out / "cuts", seed=3, codecs=())
    found = exhibit.figures["offload"]
    assert [epoch["differing"] for epoch in found["epochs"]] == [0] * 4
    assert all("," not in way["way"] and "JPEG" not in way["way"] for way in found["ways"])
    assert "JPEG XL and cuts inside the JPEG were missing here" in exhibit.chapters[0].text


def test_the_chapter_on_offloading_notices_another_sample() -> None:
    good = Turn("auto 1", 2, 2, 10, 1.0, 0.1, 0.1, differing=0)
    offload._check(good)
    with pytest.raises(HeadwaterError, match="1 of 2 samples differ"):
        offload._check(replace(good, differing=1))
    with pytest.raises(HeadwaterError, match="0 of 0 samples"):
        offload._check(replace(good, samples=0))


def test_samples_are_told_apart_by_every_byte(photo_folder: Path) -> None:
    loader = hw.DataLoader(hw.open(photo_folder), [transforms.Resize((8, 8))], batch_size=4, num_workers=0)
    batch = next(iter(loader))
    before = list(offload._digests(batch))
    assert offload._differing(list(offload._digests(batch)), before) == 0
    batch.inputs[1, 0, 0, 0] ^= 1
    batch.targets[2] += 1
    changed = list(offload._digests(batch))
    assert offload._differing(changed, before) == 2
    assert offload._differing(changed[:3], before) == 3


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
