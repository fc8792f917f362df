from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headwater.cli import doctor
from headwater.store.server.state import State
from held import make_state


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in document["checks"]}


def test_this_machine_is_ready(headwater_json: Any) -> None:
    document = headwater_json("doctor")
    assert document["ok"] is True
    assert len(document["checks"]) == len(doctor.CHECKS)
    assert "broken" not in statuses(document).values()


def test_a_cache_that_cannot_be_written_is_broken(headwater: Any, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    done = headwater("doctor", "--json", env={"HEADWATER_CACHE": str(in_the_way / "cache")})
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["ok"] is False
    assert statuses(document)["cache"] == "broken"
    assert "HEADWATER_CACHE" in next(
        check["remedy"] for check in document["checks"] if check["name"] == "cache"
    )


def test_a_state_folder_is_looked_at(tmp_path: Path) -> None:
    assert doctor.check_state(tmp_path / "nothing").status == "note"
    folder = make_state(tmp_path / "state")
    sound = doctor.check_state(folder)
    assert (sound.status, sound.value) == (
        "ok",
        f"{folder}, no store uses it now; 1 models in force, verified",
    )
    with State(folder):
        assert "in use by a store" in doctor.check_state(folder).value
    for pack in (folder / "models" / "packs").iterdir():
        pack.write_bytes(pack.read_bytes()[:-1])
    assert doctor.check_state(folder).status == "broken"


def test_a_broken_state_folder_fails_the_command(headwater: Any, tmp_path: Path) -> None:
    folder = make_state(tmp_path / "state")
    assert headwater("doctor", "--state", folder).returncode == 0
    for graph in (folder / "models" / "graphs").iterdir():
        graph.unlink()
    done = headwater("doctor", "--state", folder, "--json")
    assert done.returncode == 1
    assert statuses(json.loads(done.stdout))["state"] == "broken"


def test_missing_packages_for_models_are_a_note(monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, "_MODELS", ("onnx", "no-such-package"))
    check = doctor.check_models()
    assert (check.status, check.remedy) == ("note", "pip install 'headwater[models]'")
    assert "no-such-package absent" in check.value


def test_credentials_are_named_and_never_shown(headwater: Any) -> None:
    for words in (["doctor"], ["doctor", "--json"]):
        done = headwater(*words, env={"AWS_SECRET_ACCESS_KEY": "hush-hush"})
        assert "AWS_SECRET_ACCESS_KEY" in done.stdout
        assert "hush" not in done.stdout + done.stderr


def test_a_missing_package_is_broken_and_named(monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("numpy", "no-such-package"))
    check = doctor.check_packages()
    assert check.status == "broken"
    assert check.remedy == "pip install no-such-package"
