"""A scan finds a sample in any form that it is kept in, and wherever in a file that lies."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headwater.tune.forget import traces
from headwater.tune.forget.task import Task
from headwater.tune.forget.traces import Marks, find_traces, marks_of

ID = 0x1234_5678_9ABC_DEF0
CONTENT = bytes(range(256)) * 3
FORMS = {
    "id, little-endian": ID.to_bytes(8, "little"),
    "id, big-endian": ID.to_bytes(8, "big"),
    "id, decimal": str(ID).encode(),
    "id, hexadecimal": f"{ID:016x}".encode(),
    "key": b"red/0007.png",
    "content": CONTENT[-100:],
    "blake2b of the content, hexadecimal": hashlib.blake2b(CONTENT, digest_size=16).hexdigest().encode(),
    "sha256 of the content": hashlib.sha256(CONTENT).digest(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", [0, 60, 4090, 8185])
def test_each_form_is_found_also_across_parts(
    form: str, offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_AT_ONCE", 4096)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"\x01" * offset + FORMS[form] + b"\x01" * 5000)
    (tmp_path / "a" / "other").write_bytes(b"\x01" * 9000)
    (found,) = find_traces([tmp_path], Marks.of(ID, "red/0007.png", CONTENT))
    assert (found.path.name, found.mark) == ("file", form)
    assert offset <= found.offset < offset + len(FORMS[form])


def test_names_of_files_count_and_a_file_may_be_named(tmp_path: Path) -> None:
    (tmp_path / f"{ID}.json").write_bytes(b"nothing")
    (found,) = find_traces([tmp_path / f"{ID}.json"], Marks.of(ID))
    assert (found.offset, found.mark) == (-1, "id, decimal")
    assert find_traces([tmp_path / "nowhere"], Marks.of(ID)) == []


def test_a_task_is_looked_for_by_all_that_it_knows(tmp_path: Path) -> None:
    task = Task(("photos",), (ID, 7_000_000_000_000_000_001), keys=("red/0007.png",), contents=("f" * 32,))
    (tmp_path / "log").write_text(f"red/0007.png {'f' * 32} 7000000000000000001")
    found = {trace.mark for trace in find_traces([tmp_path], marks_of(task))}
    assert found == {"path red/0007.png", f"content {'f' * 32}", "id, decimal of 7000000000000000001"}
