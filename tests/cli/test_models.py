from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs import SIZE, STEPS, classifier_file, make_tensors
from headwater import transforms
from headwater.cli import run
from headwater.models.registry import Registry
from headwater.models.shelf import models_folder
from headwater.models.weights import dump
from headwater.store.jobs.record import JobFolder, JobRecord

Call = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The registry that commands use when none is named."""
    monkeypatch.setenv("HEADWATER_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    path = tmp_path / "birds.onnx"
    path.write_bytes(classifier_file())
    return path


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `headwater models WORDS... --json` and parse; `code` is what it must exit with."""

    def found(*words: object, code: int = 0) -> dict[str, Any]:
        assert run(["models", *map(str, words), "--json"]) == code
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return found


@pytest.fixture
def text(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    monkeypatch.setenv("COLUMNS", "200")

    def found(*words: object) -> str:
        assert run(["models", *map(str, words)]) == 0
        return capsys.readouterr().out

    return found


def write_weights(path: Path, seed: int, **changes: np.ndarray | None) -> Path:  # type: ignore[type-arg]
    tensors = make_tensors(seed) | {name.replace("_", "/"): array for name, array in changes.items()}
    path.write_bytes(dump({name: array for name, array in tensors.items() if array is not None}))
    return path


def message(document: dict[str, Any]) -> str:
    return str(document["error"]["message"])


def test_a_pushed_file_is_in_force(call: Call, birds: Path, folder: Path) -> None:
    pushed = call("push", birds)
    assert (pushed["name"], pushed["in_force"], pushed["parent"]) == ("birds", ["birds"], None)
    assert not pushed["sealed"]
    assert pushed["made"] == {"by": "push", "file": "birds.onnx"}
    assert Registry(folder).current("birds").digest == pushed["digest"]
    listed = call("list")
    assert listed["registry"] == str(folder)
    assert listed["current"] == {"birds": pushed["digest"]}
    assert listed["versions"] == [pushed]


def test_the_steps_are_imagenets_for_the_models_size(call: Call, birds: Path) -> None:
    call("push", birds)
    steps = call("show", "birds")["steps"]
    assert [step["name"] for step in steps][-2:] == ["to_dtype", "normalize"]
    sizes = {step["name"]: step["size"] for step in steps if "size" in step}
    assert (sizes["resize"], sizes["central_box"]) == (round(SIZE * 256 / 224), [SIZE, SIZE])


def test_names_and_steps_can_be_given(call: Call, birds: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("red\n\ngreen \nblau ä\n")
    (tmp_path / "steps.json").write_text(json.dumps(STEPS))
    call(
        "push",
        birds,
        "--name",
        "fish",
        "--classes",
        tmp_path / "classes.txt",
        "--steps",
        tmp_path / "steps.json",
    )
    shown = call("show", "fish")
    assert shown["classes"] == ["red", "green", "blau ä"]
    assert shown["steps"] == json.loads(json.dumps(STEPS))


def test_held_versions_are_not_in_force(call: Call, birds: Path) -> None:
    assert call("push", birds, "--hold")["in_force"] == []
    assert call("list")["current"] == {}


def test_new_weights_for_a_known_architecture(call: Call, birds: Path, tmp_path: Path, folder: Path) -> None:
    first = call("push", birds)
    second = call("push", write_weights(tmp_path / "new.safetensors", 5), "--like", first["digest"][:8])
    assert (second["name"], second["parent"], second["in_force"]) == ("birds", first["digest"], ["birds"])
    assert np.array_equal(Registry(folder).get("birds").tensors["head/bias"], make_tensors(5)["head/bias"])


def test_a_second_push_has_the_first_as_its_parent(call: Call, birds: Path) -> None:
    first = call("push", birds)
    birds.write_bytes(classifier_file(seed=3))
    assert call("push", birds)["parent"] == first["digest"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"head_bias": None}, "head/bias"),
        ({"head_more": np.zeros(1, np.float32)}, "head/more"),
        ({"head_bias": np.zeros(4, np.float32)}, "head/bias"),
        ({"head_bias": np.zeros(3)}, "float64"),
    ],
)
def test_weights_of_another_architecture_are_refused_by_name(
    call: Call, birds: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    call("push", birds)
    path = write_weights(tmp_path / "new.safetensors", 5, **changes)
    found = call("push", path, "--like", "birds", code=4)
    assert found["error"]["kind"] == "ModelRefused"
    assert message(found).startswith("new.safetensors: ")
    assert named in message(found)


def test_a_pickle_is_refused_by_name(call: Call, birds: Path, tmp_path: Path) -> None:
    call("push", birds)
    path = tmp_path / "weights.pt"
    path.write_bytes(pickle.dumps({"weight": [1.0]}))
    assert "weights.pt: pickled content; save as safetensors" in message(call("push", path, code=4))
    assert "pickled content; save as safetensors" in message(call("push", path, "--like", "birds", code=4))


@pytest.mark.parametrize("steps", [False, True], ids=["usual steps", "own steps"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (pickle.dumps({"weight": [1.0]}), "pickled content instead of ONNX"),
        (b"\xff" * 100, "not an ONNX model"),
        (b"", "the model has 0 outputs"),
        (classifier_file().replace(b"GlobalAveragePool", b"GlobalEvilestPool"), "GlobalEvilestPool"),
    ],
    ids=["pickle", "garbage", "nothing", "operator"],
)
def test_an_onnx_file_is_refused_by_name(
    call: Call, tmp_path: Path, content: bytes, says: str, steps: bool
) -> None:
    (tmp_path / "steps.json").write_text(json.dumps(STEPS))
    path = tmp_path / "strange.onnx"
    path.write_bytes(content)
    words = ("--steps", tmp_path / "steps.json") if steps else ()
    found = message(call("push", path, *words, code=4))
    assert found.startswith("strange.onnx: ")
    assert says in found


def test_a_huge_onnx_file_is_refused_before_it_is_read(call: Call, tmp_path: Path) -> None:
    """It has holes only: what lies on disk is nothing, what would lie in memory is more than there is."""
    path = tmp_path / "huge.onnx"
    path.touch()
    os.truncate(path, 1 << 40)
    found = message(call("push", path, code=4))
    assert found == "huge.onnx: an ONNX model of 1,099,511,627,776 bytes; at most 2,147,483,647 are taken"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("nothing",), "efficientnet-lite0"),
        (("none.onnx",), "cannot read none.onnx"),
        (("some.safetensors",), "--like"),
        (("some.safetensors", "--like", "birds", "--classes", "x"), "--classes does not go"),
        (("efficientnet-lite0", "--steps", "x"), "--steps does not go"),
    ],
)
def test_what_cannot_be_pushed_is_wrong_use(
    call: Call, birds: Path, words: tuple[str, ...], named: str
) -> None:
    call("push", birds)
    found = call("push", *words, code=2)
    assert named in message(found)


def test_steps_that_are_none_are_wrong_use(call: Call, birds: Path, tmp_path: Path) -> None:
    for content in ("{", "[1]", '[{"name": "download"}]'):
        (tmp_path / "steps.json").write_text(content)
        call("push", birds, "--steps", tmp_path / "steps.json", code=2)


def test_a_model_that_does_not_run_is_not_pushed(call: Call, birds: Path, tmp_path: Path) -> None:
    """Without the trial every prediction would fail from then on."""
    steps = transforms.Compose([transforms.CenterCrop(SIZE + 1), transforms.Normalize(0.5, 0.5)]).spec()
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    found = call("push", birds, "--steps", tmp_path / "steps.json", code=4)
    assert f"does not run on images of {SIZE + 1}x{SIZE + 1} pixels" in message(found)
    assert call("list")["versions"] == []


def test_classes_of_one_name_are_refused(call: Call, birds: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("red\ngreen\nred\n")
    found = call("push", birds, "--classes", tmp_path / "classes.txt", code=4)
    assert "'red' is the name of more than one class" in message(found)


def test_what_is_damaged_is_passed_over_and_pushing_again_mends(
    call: Call, birds: Path, folder: Path, tmp_path: Path
) -> None:
    first = call("push", birds, "--name", "fish")
    second = call("push", write_weights(tmp_path / "new.safetensors", 5), "--like", "fish", "--name", "fish")
    pointer = folder / "current" / "fish"
    pointer.write_bytes(b"{")
    listed = call("list")
    assert (listed["current"], len(listed["versions"])) == ({}, 2)
    (folder / "versions" / f"{first['digest']}.json").write_bytes(b"{")
    assert [version["digest"] for version in call("list")["versions"]] == [second["digest"]]
    assert call("push", birds, "--name", "fish")["in_force"] == ["fish"]
    assert len(call("list")["versions"]) == 2


def test_diff_lists_what_differs_and_what_it_costs(
    call: Call, birds: Path, tmp_path: Path, folder: Path
) -> None:
    call("push", birds)
    bias = make_tensors(0)["head/bias"]
    call("push", write_weights(tmp_path / "new.safetensors", 0, head_bias=bias + 0.5), "--like", "birds")
    found = call("diff", "birds@previous", "birds")
    (row,) = found["tensors"]
    assert (row["name"], row["change"], row["bytes"]) == ("head/bias", "changed", 12)
    assert row["largest_change"] == pytest.approx(0.5)
    assert 0 < row["delta_bytes"] <= 12
    assert (found["same"], found["same_graphs"], found["same_classes"], found["same_steps"]) == (
        3,
        True,
        True,
        True,
    )
    registry = Registry(folder)
    assert found["delta_bytes"] == len(
        registry.delta(registry.resolve("birds@previous"), registry.resolve("birds"))
    )
    assert call("diff", "birds", "birds")["tensors"] == []


def test_rollback_and_collect(call: Call, birds: Path, tmp_path: Path) -> None:
    first = call("push", birds)
    second = call("push", write_weights(tmp_path / "new.safetensors", 5), "--like", "birds")
    assert call("rollback", "birds")["digest"] == first["digest"]
    assert call("rollback", "birds", "--to", second["digest"])["in_force"] == ["birds"]
    assert call("rollback", "birds")["digest"] == first["digest"]
    assert "was in force before" in message(call("rollback", "birds", code=1))
    collected = call("collect")
    assert collected["versions"] == 1
    assert "no version" in message(call("show", second["digest"][:10], code=1))


def test_parents_are_kept_if_asked_for(call: Call, birds: Path, tmp_path: Path) -> None:
    call("push", birds, "--hold")
    held = call("list")["versions"][0]["digest"]
    call("push", write_weights(tmp_path / "new.safetensors", 5), "--like", held)
    assert call("collect", "--ancestors", 1) == {"freed": 0, "versions": 2}
    assert call("collect")["versions"] == 1


@pytest.mark.parametrize("state", ["running", "waiting", "done"])
def test_what_an_unfinished_job_of_the_store_needs_is_kept(
    call: Call, birds: Path, tmp_path: Path, state: str
) -> None:
    registry = tmp_path / "state" / "models"
    held = call("push", birds, "--hold", "--registry", registry)["digest"]
    job = JobRecord("a", "relabel", "photos", "v", held, "me", "now", state=state)
    (tmp_path / "state" / "jobs").mkdir()
    JobFolder(tmp_path / "state" / "jobs").save(job)
    (tmp_path / "state" / "jobs" / "damaged.json").write_bytes(b"{")
    (tmp_path / "state" / "lock").touch()
    assert call("collect", "--registry", registry)["versions"] == (0 if state == "done" else 1)


def test_tables_say_the_same(text: Callable[..., str], birds: Path, tmp_path: Path) -> None:
    digest = text("push", birds).strip()
    text("push", write_weights(tmp_path / "new.safetensors", 5), "--like", "birds")
    listed, shown, differing = text("list"), text("show", digest), text("diff", digest, "birds")
    assert digest[:12] in listed
    assert "birds" in listed
    assert digest in shown
    assert "head/weight" in shown
    assert "4x3x3x3" in shown
    assert "trunk/conv.weight" in differing
    assert "0 tensors are the same" in differing
    assert text("rollback", "birds").strip() == digest
    assert "freed" in text("collect")


def test_names_cannot_write_to_the_terminal(text: Callable[..., str], birds: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("a\x1b[31m\nb\nc\n")
    text("push", birds, "--classes", tmp_path / "classes.txt")
    assert "\x1b" not in text("show", "birds")


def test_a_registry_can_be_named(call: Call, birds: Path, tmp_path: Path, folder: Path) -> None:
    call("push", birds, "--registry", tmp_path / "other")
    assert call("list", "--registry", tmp_path / "other")["current"]
    assert not folder.exists()
    assert call("list")["versions"] == []


def test_the_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWATER_MODELS", "/a")
    assert models_folder() == Path("/a")
    monkeypatch.delenv("HEADWATER_MODELS")
    monkeypatch.setenv("XDG_DATA_HOME", "/b")
    assert models_folder() == Path("/b/headwater/models")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_folder() == tmp_path / ".local/share/headwater/models"


@pytest.mark.slow
def test_the_real_command(headwater: Any, birds: Path, tmp_path: Path) -> None:
    done = headwater("models", "push", birds, "--registry", tmp_path / "other")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 32
    done = headwater("models", "show", "fish", "--registry", tmp_path / "other")
    assert done.returncode == 1
    assert done.stderr.startswith("headwater: no version of 'fish'")


def test_int8_layers_are_pushed_to_be_held_or_unmeasured(
    call: Call, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(classifier_file(int8=True))
    refused = message(call("push", path, code=4))
    assert "the layers of 'small' " in refused
    assert "95.0% of labels" in refused
    assert "`headwater models quantise`, or say --unmeasured" in refused
    assert Registry(folder).versions() == []
    held = call("push", path, "--hold")
    assert held["in_force"] == []
    assert "are int8" in message(call("rollback", "small", "--to", held["digest"], code=4))
    assert run(["models", "push", str(path), "--unmeasured"]) == 0
    assert "in force, int8: nobody has measured whether labels stay" in capsys.readouterr().err
    assert Registry(folder).current("small").digest == held["digest"]


def test_back_to_int8_layers_that_nobody_measured_if_that_is_said(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(classifier_file(int8=True))
    held = call("push", path, "--hold")["digest"]
    assert call("rollback", "small", "--to", held, "--unmeasured")["in_force"] == ["small"]
