from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import headwater as hw
from headwater import transforms
from headwater.cli.exhibition import forgetting, models, offload, store, thinning, upkeep
from headwater.cli.exhibition.stream import PERIODS, Stream
from headwater.cli.training import ResumeProof, small_network
from headwater.data.synthetic import class_names, write_photos
from headwater.errors import HeadwaterError
from headwater.report.link import Passage
from headwater.report.trade import Turn
from headwater.store.wire.jobmessages import FailedSample, JobFacts


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
    check_selection(found["selection"])
    check_thinning(found)
    check_budget(found)
    check_forgetting(found["forgetting"])
    check_models(found["models"])
    check_left_behind(out / "models")
    page = Path(found["report"]).read_text()
    assert "differing after resuming in mid-epoch" in page
    titles = ("Models beside the data", "A stream that drifts")
    titles += ("Which samples", "Selected by infobatch", "A memory budget")
    titles += ("Near-duplicates", "Selected beside the data", "Selected by buckets")
    titles += ("An early ticket", "Without some photos", forgetting.TITLE)
    for title in ("The store and the link", "Fewer bytes for the same tensors", "Offloading", *titles):
        assert f"<h2>{title}</h2>" in page
    assert page.split("<body>")[1].count('src="data:image/png;base64,') == 48
    again = headwater(*words)
    assert again.returncode == 0, again.stderr
    assert all(said in again.stdout for said in (*titles, "report.html written"))


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


def check_selection(runs: list[dict[str, Any]]) -> None:
    whole, infobatch, buckets, fresh = runs
    assert [run["name"] for run in runs] == ["all samples", "infobatch", "buckets", "fresh"]
    assert (
        infobatch["samples"] == buckets["samples"] == whole["samples"]
    )  # nothing is known before the one epoch
    assert 0.3 < fresh["samples"] / whole["samples"] < 0.37
    assert fresh["bytes"] < whole["bytes"] / 2


def check_thinning(found: dict[str, Any], count: int = 160) -> None:
    """Copies are found, left out or stood in for; and a store has selected."""
    copies = found["duplicates"]
    assert copies["photos"] + copies["copies"] == count
    assert copies["found"] >= 0.9 * copies["copies"] > 0
    whole, dropped, cached, stood = copies["epochs"]
    assert dropped["samples"] <= whole["samples"] - 3 * copies["found"]
    assert dropped["bytes"] < whole["bytes"]
    assert cached["samples"] == stood["samples"] == whole["samples"] == 3 * count
    assert stood["bytes"] < cached["bytes"] < whole["bytes"]
    assert stood["stand_ins"] > 0 == cached["stand_ins"]
    epochs = found["beside"]["epochs"]
    assert epochs[0]["samples"] == count
    for one in epochs[1:]:
        assert 0.3 * count <= one["samples"] < 0.4 * count
        assert one["bytes"] < epochs[0]["bytes"] / 2
    assert all(one["proxy"] for one in epochs[:2])


@pytest.mark.slow
def test_what_need_not_be_visited_is_shown(out: Path) -> None:
    photos = out / "twice"
    write_photos(photos, count=160)
    exhibit = thinning.show_thinning(photos, out / "thinning", seed=3)
    check_thinning(exhibit.figures)
    copied, beside = exhibit.chapters
    facts = exhibit.figures["duplicates"]
    assert f"{facts['found']} of the {facts['copies']} copies" in " ".join(copied.text.split())
    assert beside.table is not None
    assert len(beside.table.rows) == 4


def check_budget(found: dict[str, Any]) -> None:
    memory, ticket, replay = found["memory"], found["ticket"], found["replay"]
    assert memory["differing"] == 0
    assert memory["peak"] <= memory["budget"] < memory["peak_before"]
    assert memory["swapped"] + memory["recomputed"] > 0
    assert 0 < ticket["step"] <= ticket["steps"]
    for dense, slim in (ticket["parameters"], ticket["macs"]):
        assert slim < dense
    assert (replay["photos"], replay["gone"]) == (187, 2)
    assert replay["ways"]["exact"]["ratio"] == 0
    assert replay["ways"]["replay"]["ratio"] < 0.1
    assert replay["ways"]["replay"]["work"] < 0.5


def check_forgetting(found: dict[str, Any]) -> None:
    assert (found["before"], found["after"], found["left"]) == (64, 63, 0)
    assert found["traces"] > 0
    assert found["audit"] == {"samples": 1, "hashes": 1}
    assert found["gone"]["index"] == 1
    assert found["gone"]["labels"] > 0
    assert found["gone"]["cached samples and features"] > 0


def check_models(found: dict[str, Any]) -> None:
    """A network of one short epoch knows little; a fresh head is better in the end all the same."""
    link = {one["what"]: one for one in found["link"]}
    assert list(link) == [
        *(upkeep.WHOLE, upkeep.FIRST, upkeep.FEATURES, upkeep.HEADS),
        *(upkeep.ANEW, upkeep.NEARLY, upkeep.ASKED),
    ]
    assert link[upkeep.WHOLE]["link_bytes"] > 300_000
    least = {upkeep.FIRST: 500, upkeep.ANEW: 500, upkeep.NEARLY: 500, upkeep.FEATURES: 40, upkeep.HEADS: 5}
    for what, fewer in least.items():
        assert 0 < fewer * link[what]["link_bytes"] < link[what]["instead_bytes"], what
    first, *anew = found["labels"]
    assert (found["photos"], first["labelled"], len(anew)) == (240, 240, PERIODS)
    assert all(counts["changed"] + counts["unchanged"] + counts["skipped"] == 240 for counts in anew)
    assert anew[-1]["skipped"] > 120
    assert {found["prediction"]["label"], found["prediction"]["truth"]} <= set(class_names(12))
    check_drift(found["drift"])


def check_drift(periods: list[dict[str, Any]]) -> None:
    first, last = periods[0], periods[-1]
    assert len(periods) == PERIODS
    assert sum(period["photos"] for period in periods) == 240
    assert first["new"] == 0
    assert last["new"] > 0.5
    assert first["stale"] == first["fresh"]
    assert last["fresh"] > last["stale"]


def check_left_behind(folder: Path) -> None:
    """Photos, log and token; what the store kept is gone with it."""
    assert sorted(path.name for path in folder.iterdir()) == [
        "photos-240-17-stream",
        "store.log",
        "tokens.toml",
    ]
    assert (folder / "tokens.toml").stat().st_mode & 0o077 == 0


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


def test_a_photo_is_forgotten_in_folders_of_its_own(out: Path) -> None:
    photos = out / "some"
    write_photos(photos, count=80)
    before = {name: os.environ.get(name) for name in ("HEADWATER_CACHE", "HEADWATER_FORGOTTEN")}
    exhibit = forgetting.show_forgetting(photos)
    check_forgetting(exhibit.figures["forgetting"])
    assert {name: os.environ.get(name) for name in before} == before
    assert len(hw.open(photos)) == 80
    assert "of 64 photos" in exhibit.chapters[0].text


def test_the_chapter_on_forgetting_notices_a_trace() -> None:
    forgetting.check(5, 0)
    for before, after in ((5, 1), (0, 0)):
        with pytest.raises(HeadwaterError, match="traces of a forgotten photo are left"):
            forgetting.check(before, after)


def test_the_chapter_on_models_notices_a_photo_without_a_label() -> None:
    good = JobFacts("1", "relabel", "stream", "v", "m", "done", "", done=5, total=5, counts={"labelled": 5})
    upkeep.check(good)
    with pytest.raises(HeadwaterError, match="2 of 5 photos are labelled and the job is stopped"):
        upkeep.check(msgspec.structs.replace(good, state="stopped", done=2))
    broken = msgspec.structs.replace(
        good, counts={"failed": 1}, failures=[FailedSample(1, "a.jpg", "truncated")]
    )
    with pytest.raises(HeadwaterError, match=r"4 of 5 photos .*: truncated"):
        upkeep.check(broken)


def test_a_stream_changes_its_kinds(tmp_path: Path) -> None:
    known = class_names(8)
    stream = Stream.write(tmp_path / "stream", count=60, known=known, seed=1)
    assert sorted(np.concatenate(stream.periods)) == sorted(stream.data.ids)
    assert [len(ids) for ids in stream.periods] == pytest.approx([10] * PERIODS, abs=1)
    shares = [stream.share_of_new(period) for period in range(PERIODS)]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(2 / 3, abs=0.1)
    for period in range(PERIODS):
        chosen = stream.data.select(stream.periods[period])
        kinds = [stream.data.classes[label] for label in chosen.labels]
        assert sorted(stream.kinds[stream.part(period)]) == sorted(kinds)
        assert np.mean([kind not in known for kind in kinds]) == pytest.approx(shares[period])
    assert set(stream.before(2)) == {*stream.periods[0], *stream.periods[1]}


def test_without_its_packages_the_chapter_on_models_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "NEEDED", ("numpy", "no_such_package"))
    exhibit = models.show_models(tmp_path, tmp_path / "models", network=small_network(8), seed=0)
    assert exhibit.figures == {"models": {"missing": ["no_such_package"]}}
    (chapter,) = exhibit.chapters
    assert chapter.table is None
    for text in (chapter.text, capsys.readouterr().err):
        assert "needs no_such_package; pip install 'headwater[models,labels,serve]' onnxscript" in text
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("chapter", ["models", "thinning"])
def test_the_demo_loads_without_the_packages_of_models_and_labels(chapter: str) -> None:
    """Or it could not say that they are missing."""
    module = f"headwater.cli.exhibition.{chapter}"
    program = f"import sys, {module} as m; sys.exit(' '.join(set(m.NEEDED) & set(sys.modules)) or 0)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


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
