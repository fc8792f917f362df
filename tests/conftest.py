"""What every test may use: a private cache, small datasets in each layout, real S3 and PostgreSQL servers."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from datasets import Photo, make_photos, write_folder, write_parquets, write_tars
from labelled import KINDS, Kind, Templates, make_templates
from postgres import Postgres, run_postgres
from seaweed import S3Server, run_server

# Threads of torch that wait for each other spin; with as many processes of tests as cores, that takes the
# cores from those that they wait for. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A store that is garbage here must not be ended by a forked child: it would wait for threads that it lacks.
os.register_at_fork(after_in_child=gc.disable)


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Indexes go here, never into the user's own cache; nor is what the user has forgotten looked at."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWATER_CACHE", str(folder))
        patch.setenv("HEADWATER_FORGOTTEN", str(tmp_path_factory.mktemp("forgotten")))
        yield folder


@pytest.fixture
def tuning_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a fine-tuning that is under way lies; and one thread of torch: those of a team wait for each
    other, on a busy machine for long."""
    import torch

    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path / "cache"
    torch.set_num_threads(before)


class _Failures(logging.Handler):
    """Keeps what a planner logs when it fails."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("planning failed"):
            self.records.append(record)


@pytest.fixture(autouse=True)
def planner_failures() -> Iterator[list[logging.LogRecord]]:
    """A planner that fails lets its run go on, but no test: one that makes it fail clears the list."""
    handler, log = _Failures(), logging.getLogger("headwater")
    log.addHandler(handler)
    yield handler.records
    log.removeHandler(handler)
    assert not handler.records, "\n".join(map(logging.Formatter().format, handler.records))


@pytest.fixture(scope="session")
def photos() -> list[Photo]:
    return make_photos()


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory, photos: list[Photo]) -> Path:
    """Shared by all tests: copy it before changing anything in it."""
    return write_folder(tmp_path_factory.mktemp("folder"), photos)


@pytest.fixture(scope="session")
def photo_tars(tmp_path_factory: pytest.TempPathFactory, photos: list[Photo]) -> Path:
    return write_tars(tmp_path_factory.mktemp("tars"), photos)


@pytest.fixture(scope="session")
def photo_parquet(tmp_path_factory: pytest.TempPathFactory, photos: list[Photo]) -> Path:
    return write_parquets(tmp_path_factory.mktemp("parquet"), photos)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_server(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with run_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def label_templates(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return make_templates(tmp_path_factory.mktemp("labels"), postgres)


@pytest.fixture(params=KINDS)
def label_kind(request: pytest.FixtureRequest, label_templates: Templates, tmp_path: Path) -> Kind:
    """Both kinds of label database, for tests that run in the same way on each."""
    return label_templates.kind(request.param, tmp_path)


@pytest.fixture(scope="module", params=KINDS)
def shared_label_kind(
    request: pytest.FixtureRequest, label_templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Kind:
    """The same for what all tests of a module share; none of them may use `label_kind` then."""
    return label_templates.kind(request.param, tmp_path_factory.mktemp("labels"))
