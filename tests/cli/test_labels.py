from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.cli import run
from headwater.store.labels import LabelRows, Source, open_labels
from labelled import Kind, announce, digest, human, predicted
from stores import running_daemon


@pytest.fixture
def place(photo_folder: Path, label_kind: Kind) -> str:
    """The labels of a folder of photos as imports, then of two models, and one correction by hand."""
    data, path = hw.open(photo_folder), label_kind.make()
    with closing(open_labels(path)) as database:
        first, second = announce(database, 1), announce(database, 2)
        database.enrol("photos", data.ids[:10], data.labels[:10], class_names=data.classes)
        rest, count = data.ids[10:], len(data) - 10
        margins = np.linspace(0.1, 0.9, count)
        database.write("photos", predicted(rest, [0] * count, first, margins=margins), author="relabel")
        database.write("photos", predicted(data.ids, np.arange(len(data)) % 2, second, scores=0.9))
        database.write("photos", human(data.ids[-1:], [1]), author="anna")
    return path


Said = tuple[int, str, str]
"""Exit code, standard output and standard error."""


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run `headwater labels WORDS...` in this process, which is ten times as quick as in its own."""
    monkeypatch.setenv("COLUMNS", "200")

    def speak(*words: object) -> Said:
        capsys.readouterr()
        code = run(["labels", *map(str, words)])
        return (code, *capsys.readouterr())

    return speak


@pytest.fixture
def labels(say: Callable[..., Said], place: str) -> Callable[..., dict[str, Any]]:
    """The document of `headwater labels VERB photos ...` about that database."""

    def ask(verb: str, *words: object) -> dict[str, Any]:
        code, output, errors = say(verb, "photos", *words, "--db", place, "--json")
        assert code == 0, errors
        document: dict[str, Any] = json.loads(output)
        return document

    return ask


def test_search(labels: Any, photo_folder: Path) -> None:
    data = hw.open(photo_folder)
    found = labels("search", "--source", "import", "--limit", 4, "--data", photo_folder)
    assert [row["sample"] for row in found["rows"]] == sorted(data.ids[:10].tolist())[:4]
    position = data.index.position_of(np.array([found["rows"][0]["sample"]]))[0]
    assert found["rows"][0]["key"] == data.index.key(position)
    assert found["rows"][0]["class"] == data.classes[data.index.labels[position]]
    rest = labels("search", "--source", "import", "--after", found["next"])
    assert (len(rest["rows"]), rest["next"]) == (6, None)
    assert "key" not in rest["rows"][0]
    model = labels("search", "--version", "net2", "--class", data.classes[0], "--score", "0.9..")["rows"]
    assert {(row["class"], row["version"], row["score"]) for row in model} == {
        (data.classes[0], digest(2), 0.9)
    }
    assert labels("search", "--older-than", digest(2), "--margin", "..0.5")["rows"] == []


def test_counts_and_the_table(labels: Any, headwater: Any, place: str, photo_folder: Path) -> None:
    data = hw.open(photo_folder)
    found = labels("counts")
    assert sum(found["total"].values()) == len(data)
    assert found["total"]["human"] == 1
    assert tuple(found["classes"]) == data.classes
    done = headwater("labels", "counts", "photos", env={"HEADWATER_LABELS": place})
    assert done.returncode == 0
    assert "together" in done.stdout
    assert all(name in done.stdout for name in data.classes)


def test_diff_and_review(labels: Any, photo_folder: Path) -> None:
    data = hw.open(photo_folder)
    found = labels("diff", "net1", digest(2), "--limit", 3, "--data", photo_folder)
    assert found["samples"] == len(data) - 10
    assert found["changed"] == (len(data) - 10) // 2
    assert {(m["from"], m["to"]) for m in found["matrix"]} == {
        (data.classes[0], data.classes[0]),
        (data.classes[0], data.classes[1]),
    }
    assert [row["was"] for row in found["rows"]] == [data.classes[0]] * 3
    margins = [row["margin"] for row in labels("review", "--limit", 5)["rows"]]
    assert margins == sorted(margins)
    given = labels("review", "--by", "disagreement")["rows"]
    assert {row["source"] for row in given} <= {"import", "human"}
    assert all(row["class"] != row["other"]["class"] for row in given)
    assert len(labels("review", "--by", "models", "--limit", 2)["rows"]) == 2


def test_set_rename_merge_undo_log(labels: Any, photo_folder: Path, place: str) -> None:
    data = hw.open(photo_folder)
    key, sample = data[3].key, data[3].id
    labels("set", key, data.classes[1], "--by", "anna", "--data", photo_folder)
    labels("set", data[4].id, "brand new", "--new", "--by", "bert")
    with closing(open_labels(place)) as database:
        rows = database.get("photos", [sample, data[4].id])
        assert set(rows.sources.tolist()) == {Source.HUMAN}
        assert database.classes("photos").names[rows.labels[rows.samples == data[4].id][0]] == "brand new"
    renamed = labels("rename", "brand new", "newer", "--by", "anna")
    merged = labels("merge", "newer", data.classes[0])
    assert "newer" not in labels("counts")["classes"]
    assert labels("undo", merged["revision"])["wrote"] == 0
    assert labels("counts")["classes"]["newer"]["human"] == 1
    entries = labels("log", "--limit", 4)["revisions"]
    assert [entry["kind"] for entry in entries] == ["undo", "merge", "rename", "write"]
    assert entries[2]["number"] == renamed["revision"]
    assert [entry["author"] for entry in entries][2:] == ["anna", "bert"]
    assert entries[1]["undone_by"] == entries[0]["number"]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_export_and_import(
    labels: Any, say: Any, place: str, photo_folder: Path, tmp_path: Path, suffix: str
) -> None:
    count = len(hw.open(photo_folder))
    file, other = tmp_path / f"out.{suffix}", tmp_path / "other.db"
    exported = labels("export", file, "--data", photo_folder, "--image-prefix", "s3://bucket/")
    assert exported["rows"] == count
    if suffix == "json":
        assert json.loads(file.read_text())[0]["data"]["image"].startswith("s3://bucket/")
    code, _, errors = say("import", "photos", file, "--db", other)
    assert (code, "announce it first, with `--announce`" in errors) == (1, True)
    code, output, _ = say("import", "photos", file, "--announce", place, "--db", other, "--by", "anna")
    assert (code, f"{count} rows written, 0 kept as they were" in output) == (0, True)
    with closing(open_labels(other)) as database:
        assert sum(sum(row.values()) for row in database.counts("photos").values()) == count
        assert [version.digest for version in database.models()] == [digest(1), digest(2)]


def test_what_is_wrong_is_said(say: Any, place: str, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("sample,label\nfive,bee\n")
    cases = [
        (("counts", "fotos", "--db", place), 1, "no labels are kept of a dataset 'fotos'"),
        (("counts", "photos", "--db", tmp_path / "none.db"), 1, "there is no label database"),
        (("counts", "photos", "--db", "mysql://x/y"), 2, "no label database is kept in 'mysql'"),
        (("import", "photos", tmp_path / "bad.csv", "--db", place), 1, "bad.csv line 2, column 'sample'"),
        (("search", "photos", "--score", "high", "--db", place), 2, "is no range; write LOW..HIGH"),
        (("search", "photos", "--source", "robot", "--db", place), 2, "no source is called 'robot'"),
        (("search", "photos", "--version", "v9", "--db", place), 4, "model version 'v9' is not known"),
        (("set", "photos", "5", "cow", "--db", place), 2, "--new makes it a class"),
        (("undo", "photos", "999", "--db", place), 4, "revision 999 is none of this dataset"),
    ]  # fmt: skip
    for words, code, said in cases:
        found, output, errors = say(*words)
        assert (found, output) == (code, ""), words
        assert said in errors
    assert not (tmp_path / "none.db").exists()


def test_tables_show_the_same(say: Any, place: str, photo_folder: Path) -> None:
    data = hw.open(photo_folder)
    said = {
        ("search", "photos", "--limit", "3", "--data", str(photo_folder)): ".jpg",
        ("diff", "photos", "net1", "net2"): f"{(len(data) - 10) // 2} of {len(data) - 10} samples",
        ("review", "photos", "--by", "disagreement"): data.classes[0],
        ("log",): "announce",
        ("undo", "photos"): "1 rows are as they were",
    }
    for words, text in said.items():
        code, output, errors = say(*words, "--db", place)
        assert code == 0, errors
        assert text in output, words


def test_names_cannot_write_to_the_terminal(say: Any, tmp_path: Path) -> None:
    with closing(open_labels(tmp_path / "labels.db")) as database:
        database.adopt("photos", ["red[bold]"])
        database.write("photos", LabelRows.of([5], [0], source=Source.HUMAN), author="\x1b[31mred")
    _, output, _ = say("log", "--db", tmp_path / "labels.db")
    assert "\x1b" not in output
    assert "[31mred" in output
    assert "red[bold]" in say("search", "photos", "--db", tmp_path / "labels.db")[1]


def test_the_command_line_loads_no_database() -> None:
    program = (
        "import sys, headwater.cli, headwater.store.labels\n"
        "found = {'sqlalchemy', 'alembic', 'psycopg'} & set(sys.modules)\n"
        "sys.exit(f'{found} loaded' if found else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


ONE_KIND = pytest.mark.parametrize("label_kind", ["sqlite"], indirect=True)
"""What a store sends of each kind, the tests of its client say."""


@pytest.fixture
def store(place: str, photo_folder: Path, tmp_path: Path) -> Iterator[str]:
    """The address of one that keeps these labels."""
    with running_daemon({"photos": photo_folder}, state=tmp_path / "state", labels=place) as daemon:
        yield daemon.serving.address


@ONE_KIND
def test_what_a_store_sends_is_what_its_database_has(
    say: Callable[..., Said], labels: Any, store: str, place: str, photo_folder: Path, tmp_path: Path
) -> None:
    """Counts, searches and exports; all else is done in the database itself."""

    def ask(verb: str, *words: object) -> dict[str, Any]:
        code, output, errors = say(verb, "photos", *words, "--db", store, "--json")
        assert code == 0, errors
        document: dict[str, Any] = json.loads(output)
        return document

    assert ask("counts") == labels("counts")
    for words in (
        ("--limit", 7),
        ("--source", "import", "--limit", 4, "--data", photo_folder),
        ("--version", "net2", "--score", "0.9..", "--after", 1 << 60),
    ):
        found = ask("search", *words)
        assert found == labels("search", *words)
        assert found["rows"]
    for name in ("labels.csv", "labels.parquet", "tasks.json"):
        here, there = tmp_path / f"here-{name}", tmp_path / f"there-{name}"
        assert labels("export", here, "--data", photo_folder)["rows"] == 36
        assert ask("export", there, "--data", f"{store}/photos")["rows"] == 36
        assert here.read_bytes() == there.read_bytes()
    shown = say("counts", "photos", "--db", f"{store}/photos")
    assert (shown[0], "together" in shown[1]) == (0, True)


@pytest.mark.parametrize(
    "words", [("log",), ("review", "photos"), ("undo", "photos"), ("rename", "photos", "a", "b")]
)
def test_what_a_store_does_not_send(say: Callable[..., Said], words: tuple[str, ...]) -> None:
    code, _, errors = say(*words, "--db", "grpc://127.0.0.1:1")
    assert code == 2
    assert "searches, counts and exports what it sends" in errors


def test_a_store_that_is_not_there(say: Callable[..., Said]) -> None:
    assert say("counts", "photos", "--db", "grpc://127.0.0.1:1")[0] == 3


@ONE_KIND
def test_what_is_not_at_a_store(say: Callable[..., Said], store: str) -> None:
    code, _, errors = say("counts", "fotos", "--db", store)
    assert (code, "no dataset 'fotos'" in errors) == (1, True)
    code, _, errors = say("search", "photos", "--class", "dog", "--db", store)
    assert (code, "no class is called 'dog'" in errors) == (2, True)
