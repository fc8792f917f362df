"""Actions about jobs: who may do what, what is told, and what a job waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import (
    DatasetNotFound,
    DatasetStale,
    HeadwaterError,
    ModelNotFound,
    Refused,
    WrongUse,
)
from headwater.models.registry import Registry
from headwater.store.jobs.record import DONE, STOPPED, UNFINISHED
from headwater.store.server.guard import Caller
from headwater.store.server.jobdesk import JobDesk
from headwater.store.server.noting import facts_in
from headwater.store.server.selected import SelectionDesk
from headwater.store.server.state import State
from headwater.store.server.studios import Studios
from headwater.store.wire import messages
from headwater.store.wire.jobmessages import JobFacts, JobList, JobQuery, JobStart, JobStop, SelectionWish
from headwater.store.wire.messages import Message, SelectionRequest
from relabelling import small_model, write_photos
from workshops import Workshop, open_workshop

WORKER = Caller("worker", "ipv4:127.0.0.1:5", frozenset({"jobs", "labels"}))
WATCHER = Caller("watcher", "ipv4:127.0.0.1:5", frozenset({"jobs"}))
ELSEWHERE = Caller("elsewhere", "ipv4:127.0.0.1:5", WORKER.scopes, frozenset({"others"}))
WISH = JobStart("relabel", "photos", "small", "key")
COUNT = 40


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("jobs")
    Registry(folder / "state" / "models").put(small_model(), name="small", switch=True)
    with open_workshop(write_photos(folder / "photos", COUNT), folder / "state") as made:
        yield made


@pytest.fixture(scope="module")
def desk(shop: Workshop) -> Iterator[JobDesk]:
    with JobDesk(shop.state, shop.desk, shop.studios) as made:
        yield made


def act(desk: JobDesk, action: str, wish: Message, caller: Caller = WORKER) -> bytes:
    return desk.answers[action](messages.encode(wish), caller)


def start(desk: JobDesk, wish: JobStart = WISH, caller: Caller = WORKER) -> JobFacts:
    found: JobFacts = messages.decode(JobFacts, act(desk, "job_start", wish, caller))
    return found


def listed(desk: JobDesk, *ids: str, caller: Caller = WORKER) -> list[JobFacts]:
    found: JobList = messages.decode(JobList, act(desk, "jobs", JobQuery(list(ids)), caller))
    return found.jobs


def until(desk: JobDesk, id: str, holds: Callable[[JobFacts], object]) -> JobFacts:
    end = time.monotonic() + 30
    while True:
        (job,) = listed(desk, id)
        if holds(job):
            return job
        assert time.monotonic() < end, job
        time.sleep(0.01)


def test_a_job_from_its_start_to_its_end(desk: JobDesk, shop: Workshop) -> None:
    job = start(desk)
    assert (job.kind, job.dataset, job.total) == ("relabel", "photos", COUNT)
    assert job.model == shop.state.registry.current("small").digest
    done = until(desk, job.id, lambda job: job.state == DONE)
    assert (done.done, done.counts["labelled"]) == (COUNT, COUNT)
    assert start(desk).id == job.id, "the same wish, sent again"
    assert start(desk, JobStart("relabel", "photos", "", "another key")).id != job.id
    counted = shop.desk.ledger.snapshot()["headwater_labels_total"]
    assert isinstance(counted, dict)
    assert counted["labelled"] == COUNT


def test_tokens_of_other_datasets_see_and_change_nothing(desk: JobDesk) -> None:
    job = start(desk)
    assert listed(desk, caller=ELSEWHERE) == []
    for action, wish in (("job_start", WISH), ("job_stop", JobStop([job.id]))):
        with pytest.raises(Refused, match="not good for dataset 'photos'"):
            act(desk, action, wish, ELSEWHERE)


def test_who_may_not_write_labels_may_look_and_stop_but_not_relabel(desk: JobDesk) -> None:
    job = start(desk)
    with pytest.raises(Refused, match="token 'watcher' lacks scope 'labels'"):
        start(desk, JobStart("relabel", "photos", "small", "a key of his own"), WATCHER)
    assert job.id in [seen.id for seen in listed(desk, caller=WATCHER)]
    assert messages.decode(JobList, act(desk, "job_stop", JobStop(["none"]), WATCHER)).jobs == []


def test_a_version_that_is_withdrawn_labels_no_further(shop: Workshop, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "state" / "models")
    versions = [registry.put(small_model(seed), name="small", switch=True) for seed in range(2)]
    away = "postgresql+psycopg://nobody@127.0.0.1:1/labels"
    with (
        State(tmp_path / "state", labels=away) as state,
        JobDesk(state, shop.desk, shop.studios) as desk,
    ):
        jobs = [start(desk, JobStart("relabel", "photos", v.digest, v.digest[:9])) for v in versions]
        assert desk.unfinished == 2
        assert desk.withdraw("0" * 32) == []
        assert desk.withdraw(versions[1].digest) == [jobs[1].id]
        assert desk.withdraw(versions[1].digest) == [], "it is over"
        assert [job.state in UNFINISHED for job in listed(desk)] == [True, False]


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        (JobStart("relabel", "others", "small", "k"), DatasetNotFound),
        (JobStart("relabel", "photos", "0" * 32, "k"), ModelNotFound),
        (JobStart("relabel", "photos", "strange", "k"), ModelNotFound),
        (JobStart("dance", "photos", "small", "k"), WrongUse),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    desk: JobDesk, shop: Workshop, wish: JobStart, error: type[Exception]
) -> None:
    before = listed(desk)
    with pytest.raises(error) as caught:
        start(desk, wish)
    assert str(shop.state.folder) not in str(caught.value)
    assert [job.id for job in listed(desk)] == [job.id for job in before]


def test_a_message_that_is_none(desk: JobDesk) -> None:
    for action in desk.answers:
        with pytest.raises(HeadwaterError, match="a message that is no"):
            desk.answers[action](b"\xc1", WORKER)


def test_stopping_passes_over_what_is_not_there(desk: JobDesk) -> None:
    found: JobList = messages.decode(JobList, act(desk, "job_stop", JobStop(["none"])))
    assert found.jobs == []


def test_without_a_state_there_are_no_jobs(shop: Workshop) -> None:
    studios = Studios(None, shop.desk, shop.cores, feature_bytes=0)
    with JobDesk(None, shop.desk, studios) as bare:
        assert bare.unfinished == 0
        assert bare.withdraw("0" * 32) == []
        for action, wish in (("jobs", JobQuery()), ("job_start", WISH), ("job_stop", JobStop(["a"]))):
            with pytest.raises(WrongUse, match="--state"):
                act(bare, action, wish)


def test_a_label_database_that_is_away_is_waited_for(shop: Workshop, tmp_path: Path) -> None:
    Registry(tmp_path / "state" / "models").put(small_model(), name="small", switch=True)
    away = "postgresql+psycopg://nobody@127.0.0.1:1/labels"
    with (
        State(tmp_path / "state", labels=away) as state,
        JobDesk(state, shop.desk, shop.studios) as desk,
    ):
        job = start(desk)
        told = until(desk, job.id, lambda job: job.error)
        assert told.state in UNFINISHED
        assert "does not answer" in told.error
        assert "127.0.0.1:1" not in told.error, "where it lies is nobody's business"
        assert desk.unfinished == 1
        act(desk, "job_stop", JobStop([job.id]))
        assert listed(desk)[0].state == STOPPED


def test_the_audit_log_is_told_what_was_asked() -> None:
    assert facts_in("job_start", messages.encode(WISH)) == {
        "job": "relabel",
        "model": "small",
        "of": "photos",
    }
    assert facts_in("job_stop", messages.encode(JobStop(["a", "b"]))) == {"jobs": "a,b"}


def test_who_may_not_push_models_cannot_have_one_made(desk: JobDesk) -> None:
    wish = JobStart("quantise", "photos", "small", "a key", bound=0.9)
    with pytest.raises(Refused, match="token 'worker' lacks scope 'models'"):
        start(desk, wish)
    maker = Caller("maker", "ipv4:127.0.0.1:5", frozenset({"jobs", "models"}))
    job = until(desk, start(desk, wish, maker).id, lambda job: job.state == DONE)
    assert (job.kind, job.done, job.total, job.result) == ("quantise", COUNT, COUNT, "")
    assert job.said == "fp32: 20 images are left to compare on, at least 32 are needed"


SELECTS = JobStart("select", "photos", "small", "round 1", selection=SelectionWish("uniform", {"share": 0.5}))
READER = Caller("reader", "ipv4:127.0.0.1:5", frozenset({"jobs", "read"}))


def test_a_selection_takes_the_scopes_of_jobs_and_of_reading(desk: JobDesk) -> None:
    for scopes, lacking in ((("jobs", "labels", "models", "admin"), "read"), (("read",), "jobs")):
        caller = Caller("half", "ipv4:127.0.0.1:5", frozenset(scopes))
        with pytest.raises(Refused, match=f"token 'half' lacks scope '{lacking}'"):
            start(desk, SELECTS, caller)
    elsewhere = Caller("elsewhere", "ipv4:127.0.0.1:5", READER.scopes, frozenset({"others"}))
    with pytest.raises(Refused, match="not good for dataset 'photos'"):
        start(desk, SELECTS, elsewhere)


def test_a_selection_from_its_start_to_its_pages(desk: JobDesk, shop: Workshop) -> None:
    """These photos have no labels, so all of them are selected."""
    job = start(desk, SELECTS, READER)
    done = until(desk, job.id, lambda job: job.state == DONE)
    assert (done.kind, done.done, done.counts["unlabelled"], done.counts["chosen"]) == (
        "select",
        *3 * [COUNT],
    )
    version = shop.store.index.version
    pages = SelectionDesk(shop.desk, desk.selection)

    def read(request: SelectionRequest) -> Any:
        ((batch, _),) = pages.read(pages.find(request), request, "me", lambda: False)
        return batch

    found = []
    for place in (0, 30):
        request = SelectionRequest("photos", version, "me", job.id, place, 30)
        found += read(request).column("id").to_pylist()
    assert found == shop.store.index.ids.tolist()
    assert len(read(SelectionRequest("photos", version, "me", job.id, 99))) == 0
    with pytest.raises(WrongUse, match="no selection of job 'none'"):
        read(SelectionRequest("photos", version, "me", "none"))
    with pytest.raises(DatasetStale):
        read(SelectionRequest("photos", "0" * 32, "me", job.id))
    with pytest.raises(DatasetNotFound):
        read(SelectionRequest("others", version, "me", job.id))
    counted = shop.desk.ledger.snapshot()
    assert counted["headwater_selected_total"]["chosen"] == COUNT  # type: ignore[index]
    assert counted["headwater_bytes_sent_total"]["selection"] == 12 * COUNT  # type: ignore[index]


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (None, "told by which selector"),
        (SelectionWish("dance"), "there is no selector 'dance'; choose from"),
        (SelectionWish("uniform", {"size": 1}), "selector 'uniform' has no parameter 'size'"),
        (SelectionWish("uniform", {"share": 7.0}), "share is 7.0"),
        (SelectionWish("uniform", vectors="layers"), "vectors of 'layers'"),
    ],
)
def test_a_selection_that_cannot_be_is_refused_at_once(
    desk: JobDesk, wish: SelectionWish | None, said: str
) -> None:
    before = listed(desk)
    with pytest.raises(WrongUse, match=said):
        start(desk, JobStart("select", "photos", "small", "k", selection=wish), READER)
    assert [job.id for job in listed(desk)] == [job.id for job in before]


def test_without_a_state_there_are_no_selections(shop: Workshop) -> None:
    studios = Studios(None, shop.desk, shop.cores, feature_bytes=0)
    with JobDesk(None, shop.desk, studios) as bare, pytest.raises(WrongUse, match="--state"):
        bare.selection("0" * 16)
