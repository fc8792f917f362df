from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from headwater import cli
from headwater.cli.printing import format_bytes
from headwater.errors import HeadwaterError, Unreachable, WrongUse


def test_version(headwater: Any) -> None:
    done = headwater("--version")
    assert (done.returncode, done.stdout) == (0, f"headwater {version('headwater')}\n")


def test_an_error_is_one_line_without_a_traceback(headwater: Any, tmp_path: Path) -> None:
    done = headwater("ls", tmp_path / "nothing")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("headwater: ")
    assert str(tmp_path / "nothing") in done.stderr
    assert done.stderr.count("\n") == 1


def test_debugging_shows_the_traceback(headwater: Any, tmp_path: Path) -> None:
    done = headwater("ls", tmp_path / "nothing", env={"HEADWATER_DEBUG": "1"})
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_an_error_is_one_document_with_json(headwater: Any, tmp_path: Path) -> None:
    done = headwater("ls", tmp_path / "nothing", "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "DatasetNotFound"
    assert error["exit_code"] == 1
    assert str(tmp_path / "nothing") in error["message"]


@pytest.mark.parametrize("words", [["ls"], ["ls", "x", "--wrong"], ["nonsense"], ["bench", "loader"]])
def test_wrong_use_is_2(headwater: Any, words: list[str]) -> None:
    done = headwater(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr
    with_json = headwater(*words, "--json")
    assert with_json.returncode == 2
    assert json.loads(with_json.stdout)["error"]["kind"] == "WrongUse"


@pytest.mark.parametrize(("error", "code"), [(HeadwaterError, 1), (WrongUse, 2), (Unreachable, 3)])
def test_exit_codes_are_those_of_the_errors(
    error: type[HeadwaterError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = error("it broke; mend it")
    failure.add_note("and a note")

    def fail(*words: object, **options: object) -> None:
        raise failure

    monkeypatch.setattr(cli.ls, "open", fail)
    assert cli.run(["ls", "somewhere"]) == code
    assert capsys.readouterr().err == "headwater: it broke; mend it\n  and a note\n"
    assert cli.run(["ls", "somewhere", "--json"]) == code
    said = {
        "kind": error.__name__,
        "message": "it broke; mend it",
        "exit_code": code,
        "notes": ["and a note"],
    }
    assert json.loads(capsys.readouterr().out) == {"error": said}


def test_an_unreachable_bucket_is_3(headwater: Any) -> None:
    settings = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }
    done = headwater("ls", "s3://bucket/photos", env=settings)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("headwater: ")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e12, "2.0 TB")]
)
def test_format_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text
