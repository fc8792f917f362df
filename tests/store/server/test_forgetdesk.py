"""The action `forget` at a store: what goes, what stays, who may ask, and that it may be asked again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.data.forgetting import Audit, Plans
from headwater.errors import (
    DatasetError,
    DatasetNotFound,
    HeadwaterError,
    ModelRefused,
    Refused,
    WrongUse,
)
from headwater.models.registry import Registry
from headwater.store.client.address import Secret
from headwater.store.client.forgetting import ForgetClient, forget_client
from headwater.store.client.link import Link
from headwater.store.server.daemon import Daemon
from headwater.store.server.forgetdesk import ForgetPlan
from headwater.store.server.keeping import Opinion
from headwater.store.server.noting import facts_in
from headwater.store.server.shard import Arrival
from headwater.store.wire import messages
from headwater.store.wire.messages import Forget
from headwater.store.wire.modelmessages import ModelSeal
from headwater.tune.forget.traces import Marks, find_traces
from headwater.tune.relabel import Wish, relabel_at
from held import keep_selection
from relabelling import nudged, small_model, write_photos
from stores import running_daemon, write_tokens

COUNT, BROKEN = 30, 1


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos, one of them damaged, and a state with two versions of a model."""
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    write_photos(tmp_path / "photos", COUNT, broken=BROKEN)
    registry = Registry(tmp_path / "state" / "models")
    registry.put(small_model(), name="small", switch=True)
    registry.put(nudged(small_model(), 0.1), name="small", switch=True)
    return tmp_path


@contextmanager
def serving(place: Path, **settings: object) -> Iterator[tuple[Daemon, ForgetClient]]:
    settings = {"state": place / "state", "image_bytes": 1 << 20, **settings}
    with (
        running_daemon({"photos": place / "photos", "others": place / "photos"}, **settings) as daemon,
        forget_client(f"{daemon.serving.address}/photos", Secret(None), Link()) as client,
    ):
        yield daemon, client


def label_all(daemon: Daemon) -> None:
    (done,) = relabel_at([f"{daemon.serving.address}/photos"], Wish(model="small"))
    assert done.ok, done


def find(place: Path, key: str) -> tuple[int, Marks]:
    with closing(hw.open(place / "photos")) as data:
        (sample,) = (data[number] for number in range(len(data)) if data[number].key == key)
        return sample.id, Marks.of(sample.id, sample.key, bytes(sample.data))


def kept(place: Path) -> list[Path]:
    return [place / "state", place / "cache"]


def test_all_that_is_kept_of_a_sample_goes(place: Path) -> None:
    with serving(place) as (daemon, client):
        label_all(daemon)
        version = daemon._stores["photos"].index.version
        keep_selection(place / "state", version)
        before = daemon._stores["photos"].index
        for key in ("00007.jpg", "broken-0.jpg"):  # the record of the job names the damaged one
            id, marks = find(place, key)
            assert {trace.path.parts[len(place.parts)] for trace in find_traces(kept(place), marks)} == {
                "cache",
                "state",
            }
            done = client.forget("photos", [id])
            assert done.found["index"] == 1
            # The user's own cache is here that of the store: what `find` has put there is dropped with it.
            found = [trace for trace in find_traces(kept(place), marks) if "others" not in str(trace.path)]
            assert not found
        after = daemon._stores["photos"].index
        assert (len(before), len(after)) == (COUNT + BROKEN, COUNT + BROKEN - 2)
        assert after.version == done.version != done.before
        assert done.found["jobs"] == 1
        assert not list((place / "state" / "selections").glob("*.arrow"))
    with serving(place) as (daemon, client):
        assert daemon._stores["photos"].index.version == after.version, "also after a new start"
        assert len(daemon._stores["others"].index) == COUNT + BROKEN, "it is forgotten of one dataset"


@pytest.mark.slow
def test_to_ask_again_changes_nothing(place: Path) -> None:
    id, _ = find(place, "00007.jpg")
    with serving(place) as (_, client):
        first = client.forget("photos", [id])
        again = client.forget("photos", [id])
    assert (again.version, again.samples) == (first.version, first.samples)
    assert again.found["index"] == 0
    assert len(list(Audit(place / "state" / "forgotten").lines())) == 1


@pytest.mark.slow
def test_what_a_killed_store_has_left_is_done_when_it_starts(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It had written down what to do, and no more; and it was allowed to delete files."""
    id, marks = find(place, "00007.jpg")
    folder = place / "state" / "forgotten"
    with serving(place) as (daemon, _):
        label_all(daemon)
    Plans(folder).keep("photos", plan_of(id, delete_files=True))
    draft = folder / "plans" / ".draft"
    draft.write_text(str(id))
    with serving(place) as (daemon, client):
        assert not daemon._stores["photos"].index.has(np.array([id])).any()
        assert "their files stay: start it with --may-delete" in caplog.text
        assert not draft.exists()
        with pytest.raises(Refused, match="may not delete files"):
            client.forget("photos", [id])
    assert (place / "photos" / "00007.jpg").exists()
    with serving(place, may_delete=True) as (_, client):
        assert "that is done" in caplog.text
        assert not (place / "photos" / "00007.jpg").exists(), "as the first request has said"
        assert client.forget("photos", [id]).found["labels"] == 0
    (line,) = Audit(folder).lines()
    assert (line["before"], line["by"], line["found"]["index"]) == ("v", "somebody", 1)
    assert not list((folder / "plans").iterdir())
    assert not find_traces(kept(place), marks)


def test_who_asked_for_files_to_be_deleted_can_take_that_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as where the disk turns out to be read-only: files go last, and do not keep the rest."""
    id, marks = find(place, "00007.jpg")
    path, unlink = place / "photos" / "00007.jpg", os.unlink

    def refuse(wanted: str | Path) -> None:
        if str(wanted) == str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(wanted))
        unlink(wanted)

    plans = place / "state" / "forgotten" / "plans"
    with serving(place, may_delete=True) as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda folder, mode: str(folder) != str(path.parent))
            with pytest.raises(DatasetError, match="it may not be written to"):
                client.forget("photos", [id], delete_files=True, dry_run=True)
        assert not plans.exists()
        monkeypatch.setattr(os, "unlink", refuse)
        with pytest.raises(DatasetError, match="or forget without deleting files"):
            client.forget("photos", [id], delete_files=True)
        assert {trace.path.parent.name for trace in find_traces(kept(place), marks)} == {"plans"}
        assert client.forget("photos", [id]).samples == COUNT
    assert path.exists()
    assert not list(plans.iterdir())


def plan_of(id: int, *, dataset: str = "photos", delete_files: bool = False) -> ForgetPlan:
    return ForgetPlan(dataset, (id,), ("00007.jpg",), (), "v", delete_files=delete_files, by="somebody")


@pytest.mark.slow
def test_what_was_begun_of_a_dataset_waits_until_that_is_served(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    id, _ = find(place, "00007.jpg")
    folder = place / "state" / "forgotten"
    Plans(folder).keep("more", plan_of(id, dataset="more"))
    with serving(place) as (daemon, _):
        assert "samples of 'more' were being forgotten; serve it to finish that" in caplog.text
        assert daemon._stores["photos"].index.has(np.array([id])).all(), "it is forgotten of one dataset"
    with running_daemon({"more": place / "photos"}, state=place / "state") as daemon:
        assert not daemon._stores["more"].index.has(np.array([id])).any()
    assert not list((folder / "plans").iterdir())


def test_a_store_that_cannot_tell_what_it_was_forgetting_does_not_start(place: Path) -> None:
    plans = place / "state" / "forgotten" / "plans"
    plans.mkdir(parents=True)
    (plans / "0123").write_bytes(b"{")
    with (
        pytest.raises(DatasetError, match="says what was being forgotten, and cannot be read"),
        serving(place),
    ):
        pass


def test_a_copy_in_the_inbox_goes_with_its_labels(place: Path) -> None:
    data = (place / "photos" / "00007.jpg").read_bytes()
    other = (place / "photos" / "00008.jpg").read_bytes()
    id, marks = find(place, "00007.jpg")
    with serving(place) as (daemon, client):
        version = Registry(place / "state" / "models").current("small")
        numbers = np.ones(2, np.float32)
        opinion = Opinion(version, np.zeros(2, np.int32), numbers, numbers)
        arrivals = [Arrival(data, "jpg"), Arrival(other, "jpg")]
        (mine, theirs) = daemon._keeper.keep("photos", arrivals, opinion)
        daemon._keeper.seal("photos")
        assert len(daemon._stores["photos-inbox"].index) == 2
        assert client.forget("photos", [id]).found["inbox"] == 1
        left = daemon._stores["photos-inbox"].index
        assert left.ids.tolist() == [theirs.id]
        assert daemon._state is not None
        assert daemon._state.labels.count_rows("photos-inbox", [mine.id]) == 0
        assert daemon._state.labels.count_rows("photos-inbox", [theirs.id]) > 0
        assert not find_traces(kept(place), marks)
        one = Opinion(version, opinion.labels[:1], numbers[:1], numbers[:1])
        daemon._keeper.keep("photos", [Arrival(data, "jpg")], one)
        daemon._keeper.seal("photos")
        (again,) = np.setdiff1d(daemon._stores["photos-inbox"].index.ids, left.ids)
        done = client.forget("photos-inbox", [int(again)])
        assert (done.found["inbox"], done.samples) == (1, 1)
        assert data not in b"".join(path.read_bytes() for path in (place / "state" / "inbox").rglob("*.tar*"))


def test_looking_changes_nothing(place: Path) -> None:
    id, _ = find(place, "00007.jpg")
    with serving(place) as (daemon, client):
        label_all(daemon)
        digest = Registry(place / "state" / "models").current("small").digest
        found = client.forget("photos", [id, 5], dry_run=True, models=[digest])
        assert found.found == {"index": 1, "labels": found.found["labels"]}
        assert (found.before == found.version, found.labelled) == (True, COUNT)
        assert len(daemon._stores["photos"].index) == COUNT + BROKEN
    assert not (place / "state" / "forgotten" / "lists").exists()


@pytest.mark.slow
def test_what_cannot_be_is_refused(place: Path) -> None:
    id, _ = find(place, "00007.jpg")
    with serving(place) as (daemon, client):
        everything = daemon._stores["photos"].index.ids.tolist()
        with pytest.raises(WrongUse, match="these are all samples of 'photos'; serve it no more instead"):
            client.forget("photos", everything)
        with pytest.raises(DatasetNotFound, match="no dataset is called 'nowhere' here"):
            client.forget("nowhere", [id])
        with pytest.raises(Refused, match="may not delete files; start it with --may-delete"):
            client.forget("photos", [id], delete_files=True)
        assert len(daemon._stores["photos"].index) == COUNT + BROKEN
    with (
        serving(place, state=None, image_bytes=0) as (_, client),
        pytest.raises(WrongUse, match="keeps no list of forgotten samples; start it with --state FOLDER"),
    ):
        client.forget("photos", [id])


@pytest.mark.slow
def test_who_may(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scopes = {"owner": ["read", "forget"], "worker": ["read", "jobs", "labels", "models"]}
    tokens = write_tokens(
        place,
        **{name: {"secret": f"{name}-{'x' * 20}", "scopes": some} for name, some in scopes.items()},
        elsewhere={"secret": f"elsewhere-{'x' * 20}", "scopes": ["read", "forget"], "datasets": ["others"]},
    )
    id, _ = find(place, "00007.jpg")
    told = {"worker": "lacks scope 'forget'", "elsewhere": "not good for dataset 'photos'"}
    with running_daemon({"photos": place / "photos"}, state=place / "state", token_file=tokens) as daemon:
        for name, text in told.items():
            secret = Secret(f"{name}-{'x' * 20}")
            address = f"{daemon.serving.address}/photos"
            with forget_client(address, secret, Link()) as client, pytest.raises(Refused, match=text):
                client.forget("photos", [id])
        secret = Secret(f"owner-{'x' * 20}")
        with forget_client(f"{daemon.serving.address}/photos", secret, Link()) as client:
            assert client.forget("photos", [id]).found["index"] == 1
            with pytest.raises(Refused, match="lacks scope 'models'"):
                client.seal(["0" * 32])


def test_versions_are_sealed_at_a_store(place: Path) -> None:
    registry = Registry(place / "state" / "models")
    old, new = registry.history("small")[0], registry.current("small").digest
    with serving(place) as (_, client):
        with pytest.raises(ModelRefused, match="is in force as 'small'"):
            client.seal([old, new])
        assert client.seal([old]) == [old]
        assert client.seal([old]) == []
    assert registry.sealed() == {old}


def test_the_audit_log_of_a_store_names_no_sample() -> None:
    body = messages.encode(Forget("photos", np.array([7, 8], "<i8").tobytes(), delete_files=True))
    facts = {"of": "photos", "samples": 2, "delete_files": True, "dry_run": False}
    assert facts_in("forget", body) == facts
    assert facts_in("model_seal", messages.encode(ModelSeal(["0" * 32]))) == {"versions": "0" * 32}


@pytest.mark.slow
@pytest.mark.parametrize("ids", [b"", b"x" * 7, bytes(16), bytes(8 * 5000)])
def test_ids_that_are_none_are_refused(place: Path, ids: bytes) -> None:
    with serving(place) as (_, client), pytest.raises(HeadwaterError):
        client._act("forget", Forget("photos", ids), messages.ForgottenThere)
