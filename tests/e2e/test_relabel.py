"""A real store relabels what it serves: over the wire, beside readers, and through any number of kills."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.errors import DatasetNotFound, ModelNotFound, Refused
from headwater.models.registry import Registry
from headwater.models.runtime import Engine, decide, make_head
from headwater.models.version import ModelVersion
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.jobs import JobClient
from headwater.store.client.link import Link
from headwater.store.client.models import models_of
from headwater.store.jobs.record import DONE, STOPPED, UNFINISHED
from headwater.store.labels import open_labels
from headwater.store.server.daemon import Daemon
from headwater.store.wire.jobmessages import JobFacts
from headwater.tune.relabel import Access, JobAtStore, Wish, relabel_at, stop_at
from postgres import Postgres
from relabelling import CLASSES, nudged, small_model, write_photos
from stores import StoreProcess, running_daemon, write_tokens

COUNT, BROKEN, SOME, MANY = 260, 2, 600, 2000


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), COUNT, broken=BROKEN)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a store that holds a model."""
    Registry(tmp_path / "state" / "models").put(small_model(), name="small", switch=True)
    return tmp_path / "state"


def truth(photos: Path, version_of: Path) -> dict[int, str]:
    """What the model in force says of each sample, by this process alone."""
    data = hw.open(photos)
    model = Registry(version_of / "models").get("small")
    sound = [place for place in range(len(data)) if "broken" not in data.index.key(place)]
    images = np.stack([crop(data[place].decode()) for place in sound])
    features = Engine(model).features(images).astype(np.float16)
    found = decide(make_head(model).run(features.astype(np.float32)))
    return {int(data.ids[place]): CLASSES[label] for place, label in zip(sound, found.labels, strict=True)}


def crop(image: np.ndarray) -> np.ndarray:
    top, left = (image.shape[0] - 8) // 2, (image.shape[1] - 8) // 2
    return image[top : top + 8, left : left + 8]


def labels_at(place: Path | str) -> dict[int, str]:
    with closing(open_labels(place)) as labels:
        names = labels.classes("photos").names
        return {
            int(id): names[label]
            for rows in labels.scan("photos")
            for id, label in zip(rows.samples, rows.labels, strict=True)
        }


def times_written(state: Path) -> set[int]:
    with closing(sqlite3.connect(state / "labels.db")) as database:
        return {count for (count,) in database.execute("SELECT count(*) FROM history GROUP BY sample")}


def push(state: Path, size: float, seed: int = 1) -> ModelVersion:
    registry = Registry(state / "models")
    return registry.put(nudged(registry.get("small"), size, seed), name="small", switch=True)


def job_of(found: list[JobAtStore]) -> JobFacts:
    (one,) = found
    assert one.error is None, one.error
    assert one.job is not None
    return one.job


def test_a_store_labels_and_labels_again(photos: Path, state: Path) -> None:
    with running_daemon({"photos": photos}, state=state) as daemon:
        check_unknown_versions(daemon, state)
        found = relabel_at([daemon.serving.address])
        job = job_of(found)
        assert job.state == DONE
        assert (job.counts["labelled"], job.counts["failed"]) == (COUNT, BROKEN)
        assert {one.key for one in job.failures} == {f"broken-{n}.jpg" for n in range(BROKEN)}
        assert labels_at(state / "labels.db") == truth(photos, state)
        raw = sum(path.stat().st_size for path in photos.iterdir())
        assert 0 < found[0].bytes_moved < raw / 50
        push(state, 0.02)
        again = job_of(relabel_at([f"{daemon.serving.address}/photos"], Wish(model="small")))
        assert again.counts["skipped"] > COUNT / 2
        assert labels_at(state / "labels.db") == truth(photos, state)
        metrics = daemon._ledger.snapshot()
        assert metrics["headwater_labels_total"]["skipped"] == again.counts["skipped"]
        assert metrics["headwater_labels_total"]["labelled"] == COUNT
        assert metrics["headwater_jobs"] == 0
        assert metrics["headwater_models_loaded_bytes"] > 0
        assert metrics["headwater_kept_bytes"] > COUNT * 24


def check_unknown_versions(daemon: Daemon, state: Path) -> None:
    """A store with an unknown version cannot label; what it refuses leaves nothing behind."""
    for model in ("0" * 32, "deadbeef", "strange"):
        (one,) = relabel_at([daemon.serving.address], Wish(model=model))
        assert isinstance(one.error, ModelNotFound), one.error
        assert str(state) not in str(one.error)
    (one,) = relabel_at([daemon.serving.address], Wish(dataset="others"))
    assert isinstance(one.error, DatasetNotFound)
    with closing(open_labels(state / "labels.db")) as labels:
        assert (labels.datasets(), labels.models()) == ([], [])


def test_readers_get_what_they_would_get_without_the_job(photos: Path, state: Path) -> None:
    local = hw.open(photos)
    with running_daemon({"photos": photos}, state=state, cores=0.5) as daemon:
        relabel_at([daemon.serving.address], wait=False)
        remote = hw.open(f"{daemon.serving.address}/photos", link=Link(deadline_seconds=5))
        places = np.arange(0, 60)
        for _ in range(5):
            assert [bytes(one) for one in remote.store.read(places)] == [
                bytes(one) for one in local.store.read(places)
            ]
        remote.close()
        job = job_of(relabel_at([daemon.serving.address]))
        assert job.state == DONE
    assert labels_at(state / "labels.db") == truth(photos, state)


def test_asking_twice_is_one_job_and_it_can_be_stopped(photos: Path, state: Path) -> None:
    with running_daemon({"photos": photos}, state=state, cores=0.02) as daemon:
        first = job_of(relabel_at([daemon.serving.address], wait=False))
        second = job_of(relabel_at([daemon.serving.address], wait=False))
        assert first.id == second.id
        assert second.state in UNFINISHED
        (ended,) = stop_at([daemon.serving.address], Wish(), Access())
        assert ended.job is not None
        assert (ended.job.id, ended.job.state) == (first.id, STOPPED)
        assert stop_at([daemon.serving.address], Wish(), Access()) == []
    with running_daemon({"photos": photos}, state=state) as daemon:
        time.sleep(0.2)
        client = JobClient(Connection(Address.parse(daemon.serving.address), Secret(), Link()))
        assert [job.state for job in client.look()] == [STOPPED], "it does not go on by itself"
        client.close()
        assert job_of(relabel_at([daemon.serving.address])).state == DONE
    assert labels_at(state / "labels.db") == truth(photos, state)
    assert times_written(state) == {1}


def test_scopes_and_datasets_of_tokens(photos: Path, state: Path, tmp_path: Path) -> None:
    secrets = {name: f"{name}-{'x' * 24}" for name in ("reader", "watcher", "worker", "elsewhere")}
    tokens = write_tokens(
        tmp_path,
        reader={"secret": secrets["reader"], "scopes": ["read", "models", "labels", "admin"]},
        watcher={"secret": secrets["watcher"], "scopes": ["read", "models", "jobs", "admin"]},
        worker={"secret": secrets["worker"], "scopes": ["jobs", "labels"]},
        elsewhere={"secret": secrets["elsewhere"], "scopes": ["jobs", "labels"], "datasets": ["others"]},
    )
    audit = tmp_path / "audit.jsonl"
    with running_daemon({"photos": photos}, state=state, token_file=tokens, audit_log=audit) as daemon:
        address = f"{daemon.serving.address}/photos"
        for name, why in (("reader", "'jobs'"), ("watcher", "'labels'"), ("elsewhere", "dataset 'photos'")):
            (one,) = relabel_at([address], access=Access(secrets[name]))
            assert isinstance(one.error, Refused), name
            assert why in str(one.error)
        job = job_of(relabel_at([address], access=Access(secrets["worker"])))
        assert job.state == DONE
        client = JobClient(
            Connection(Address.parse(daemon.serving.address), Secret(secrets["elsewhere"]), Link())
        )
        assert client.look() == [], "jobs of datasets that a token is not good for are not shown"
        with pytest.raises(Refused, match="not good for dataset"):
            client.stop([job.id])
        client.close()
        daemon.tick()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    (started,) = [line for line in lines if line["action"] == "job_start" and line["outcome"] == "ok"]
    assert (started["caller"], started["of"]) == ("worker", "photos")


def test_a_rollback_ends_the_job_of_the_version_that_goes(photos: Path, state: Path) -> None:
    with running_daemon({"photos": photos}, state=state, cores=0.02) as daemon:
        address = daemon.serving.address
        newer = push(state, 3.0)
        job = job_of(relabel_at([address], wait=False))
        assert job.model == newer.digest
        with models_of(address) as models:
            back = models.rollback("small")
        assert back.stopped == [job.id]
        assert last_record(state, job.id)["state"] == STOPPED
        other = job_of(relabel_at([address], wait=False))
        assert (other.model, other.state in UNFINISHED) == (back.current, True)


def test_labels_that_lie_in_postgresql(photos: Path, state: Path, postgres: Postgres) -> None:
    url = postgres.make()
    with running_daemon({"photos": photos}, state=state, labels=url) as daemon:
        job = job_of(relabel_at([daemon.serving.address]))
        assert (job.state, job.counts["labelled"]) == (DONE, COUNT)
        push(state, 0.02)
        again = job_of(relabel_at([daemon.serving.address]))
        assert again.counts["skipped"] > COUNT / 2
    assert labels_at(url) == truth(photos, state)
    assert not (state / "labels.db").exists()


KILLS = pytest.mark.parametrize(
    "kills", [5, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["5", "50"]
)


@pytest.mark.slow
@KILLS
def test_killed_at_random_points_loses_and_doubles_nothing(state: Path, tmp_path: Path, kills: int) -> None:
    """SIGKILL of the store's process in the midst of its work; after each start it goes on by itself."""
    photos = write_photos(tmp_path / "many", MANY, broken=BROKEN)
    dice = random.Random(kills)
    versions, hit = 1, 0
    with StoreProcess({"photos": photos}, state=state, cores=0.5, feature_bytes=0) as store:
        job = job_of(relabel_at([store.address], wait=False))
        while hit < kills:
            time.sleep(dice.uniform(0.0, 1.0))
            store.kill()
            if last_record(state, job.id)["state"] == DONE:
                check(photos, state, versions)
                push(state, 3.0, seed=versions)
                versions += 1
                store.restart()
                job = job_of(relabel_at([store.address], wait=False))
            else:
                hit += 1
                store.restart()
        wait_for_end(state, job.id)
    check(photos, state, versions)
    counts = last_record(state, job.id)["counts"]
    assert sum(counts[name] for name in ("labelled", "unchanged", "changed", "skipped")) == MANY
    assert counts["failed"] == BROKEN


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [2, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["2", "50"]
)
def test_killed_while_it_skips_and_multiplies(state: Path, tmp_path: Path, kills: int) -> None:
    """Where features are kept a job is over in a moment: it is killed about when it begins."""
    photos, dice = write_photos(tmp_path / "some", SOME), random.Random(kills)
    count = dict.fromkeys(("skipped", "unchanged", "changed"), 0)
    versions, hit = 1, 0
    with StoreProcess({"photos": photos}, state=state, feature_bytes="1GiB") as store:
        assert job_of(relabel_at([store.address])).counts["labelled"] == SOME
        while hit < kills:
            assert versions < 20 * kills, "it is never hit"
            push(state, 0.1, seed=versions)
            versions += 1
            job = job_of(relabel_at([store.address], wait=False))
            time.sleep(dice.uniform(0.0, 0.05))
            store.kill()
            hit += last_record(state, job.id)["state"] != DONE
            store.restart()
            wait_for_end(state, job.id)
            counts = last_record(state, job.id)["counts"]
            assert sum(counts[name] for name in count) == SOME
            count = {name: count[name] + counts[name] for name in count}
    check(photos, state, versions)
    assert min(count["skipped"], count["unchanged"]) > 0, "it did not go both ways"


def wait_for_end(state: Path, id: str) -> None:
    end = time.monotonic() + 120
    while last_record(state, id)["state"] != DONE:
        assert time.monotonic() < end, "it did not come to its end"
        time.sleep(0.1)


def last_record(state: Path, id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / "jobs" / f"{id}.json").read_text())
    return found


def check(photos: Path, state: Path, versions: int) -> None:
    """Every sample has the label of the model in force, and was written once by each version."""
    assert labels_at(state / "labels.db") == truth(photos, state)
    assert times_written(state) == {versions}
