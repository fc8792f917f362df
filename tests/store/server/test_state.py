"""The folder of a store: for one process at a time, its parts opened when they are wanted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import HeadwaterError, MissingExtra, ModelNotFound, WrongUse
from headwater.store.server.state import State, is_taken
from held import NAME, held_versions, make_state


def test_a_folder_belongs_to_one_store_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    assert not is_taken(folder)
    with State(folder):
        assert is_taken(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(WrongUse, match=f"another store keeps its state in {folder}"), State(folder):
            pass
        assert is_taken(folder)
    assert not is_taken(folder)
    with State(folder):
        pass


def test_kill_9_gives_the_folder_back(tmp_path: Path) -> None:
    hold = "from headwater.store.server.state import State; from pathlib import Path; import sys\n"
    hold += f"State(Path({str(tmp_path)!r})).__enter__(); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_taken(tmp_path)
        process.kill()
        process.wait()
    assert not is_taken(tmp_path)


def test_what_is_no_folder_is_refused_by_name(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    for place in (in_the_way, in_the_way / "below"):
        said = rf"{place} cannot keep a store's state: .*; check --state"
        with pytest.raises(WrongUse, match=said), State(place):
            pass


def test_models_are_those_of_a_registry_in_the_folder(tmp_path: Path) -> None:
    with State(make_state(tmp_path)) as state:
        assert state.registry.current(NAME).digest == held_versions()[1].digest
        assert state.registry is state.registry
        assert state.models == tmp_path / "models"


def test_an_empty_state_has_no_models_and_makes_no_folder_for_them(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        assert state.registry.versions() == []
        with pytest.raises(ModelNotFound):
            state.registry.current(NAME)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_labels_lie_in_the_folder_or_where_the_url_says(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    with State(tmp_path / "here") as state:
        assert state.labels is state.labels
        assert (tmp_path / "here" / "labels.db").exists()
    with State(tmp_path / "there", labels=f"sqlite:///{tmp_path}/elsewhere.db") as state:
        assert state.labels.models() == []
    assert (tmp_path / "elsewhere.db").exists()
    assert not (tmp_path / "there" / "labels.db").exists()


def test_a_store_without_the_extra_for_labels_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "headwater.store.labels.database", None)
    with State(tmp_path) as state, pytest.raises(MissingExtra, match=r"pip install 'headwater\[labels\]'"):
        _ = state.labels


def test_errors_that_leave_the_machine_do_not_say_where_the_folder_lies(tmp_path: Path) -> None:
    state = State(tmp_path)
    hidden = state.hide(ModelNotFound(f"nothing in {tmp_path}/models; see {tmp_path}"))
    assert (type(hidden), str(hidden)) == (ModelNotFound, "nothing in STATE/models; see STATE")
    other = HeadwaterError("something else")
    assert state.hide(other) is other


def test_a_subfolder_is_made_once(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert state.subfolder("jobs") == state.subfolder("jobs") == tmp_path / "jobs"
    (tmp_path / "inbox").write_text("")
    with pytest.raises(HeadwaterError, match="cannot make"):
        state.subfolder("inbox")
