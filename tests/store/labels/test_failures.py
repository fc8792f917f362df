"""What is wrong with a database is said by name: fact, values, remedy, and an error of our own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from headwater.errors import LabelError, LabelRefused, Unreachable
from headwater.store.labels import open_labels
from headwater.store.labels.database import LabelDatabase, open_database
from labelled import NAMES, Kind, Templates, contents, human
from postgres import Postgres


def put(database: LabelDatabase, count: int = 1) -> None:
    database.adopt("photos", NAMES)
    database.write("photos", human(range(count), [0] * count))


def test_locked_by_another_writer(kind: Kind) -> None:
    with closing(kind.open()) as first:
        put(first)
        place = str(first._engine.url.render_as_string(hide_password=False))
        with closing(open_database(place, wait_seconds=0.2)) as second, first._writing() as connection:
            connection.exec_driver_sql("SELECT number FROM datasets" + _for_update(kind))
            with pytest.raises(LabelError, match="is locked by another process"):
                put(second)
        put(first)


def _for_update(kind: Kind) -> str:
    return "" if kind.name == "sqlite" else " FOR UPDATE"


def test_something_else_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("these are no pages of a database\n" * 100)
    with pytest.raises(LabelError, match="is damaged, or no label database"):
        open_labels(tmp_path / "text.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE bookmarks (url)")
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(LabelError, match="holds tables of something else, such as 'bookmarks'"):
        open_labels(tmp_path / "other.db")
    assert (tmp_path / "other.db").read_bytes()[100:] == before[100:]


def test_a_damaged_file(tmp_path: Path) -> None:
    place = tmp_path / "labels.db"
    with closing(open_labels(place)) as database:
        put(database, 5000)
    content = bytearray(place.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    place.write_bytes(content)
    with pytest.raises(LabelError, match="is damaged"):
        open_labels(place)


@pytest.mark.parametrize("place", ["missing/labels.db", ""])
def test_no_folder_or_a_folder(tmp_path: Path, place: str) -> None:
    with pytest.raises(LabelError, match="cannot be opened; check the path"):
        open_labels(tmp_path / place)


def mount(place: Path, *options: str) -> None:
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount(place, "-o", "size=1m")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_takes_back_the_whole_write(small_disk: Path) -> None:
    with closing(open_labels(small_disk / "labels.db")) as database:
        put(database, 10)
        before = contents(database)
        with pytest.raises(LabelError, match="has no room left, and nothing of this was written"):
            put(database, 100_000)
        assert contents(database) == before
        (small_disk / "labels.db-wal").stat()
    with closing(open_labels(small_disk / "labels.db")) as database:
        assert contents(database) == before


def test_a_read_only_disk(small_disk: Path) -> None:
    with closing(open_labels(small_disk / "labels.db")) as database:
        put(database)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(LabelError, match=r"cannot be (written|opened)"):
        open_labels(small_disk / "labels.db")


def test_a_database_that_may_not_be_written(tmp_path: Path) -> None:
    with closing(open_labels(tmp_path / "labels.db")) as database:
        put(database)
    url = f"sqlite:///file:{tmp_path}/labels.db?mode=ro&uri=true"
    with closing(open_labels(url, create=False)) as database:
        assert len(database.search("photos")) == 1
        with pytest.raises(LabelError, match="cannot be written; check the permissions"):
            put(database)


class TestPostgresql:
    def test_nobody_listens(self) -> None:
        with pytest.raises(Unreachable, match=r"postgresql\+psycopg://anna:\*\*\*@127\.0\.0\.1:1/labels"):
            open_labels("postgresql://anna:secret@127.0.0.1:1/labels")

    def test_no_such_database(self, postgres: Postgres) -> None:
        with pytest.raises(LabelError, match="does not exist; make it with `createdb`"):
            open_labels(postgres.url("nowhere"))

    def test_no_such_user(self, postgres: Postgres) -> None:
        with pytest.raises(LabelRefused, match="does not let this user in"):
            open_labels(postgres.url().replace("postgres@", "stranger@"))

    def test_a_user_who_may_not_write(self, label_templates: Templates) -> None:
        url = label_templates.postgresql_kind().make()
        label_templates.server.execute(
            "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"
        )
        with closing(open_labels(url)) as database:
            put(database)
            with database._writing() as connection:
                connection.exec_driver_sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        with closing(open_labels(url.replace("postgres@", "reader@"), create=False)) as database:
            assert len(database.search("photos")) == 1
            with pytest.raises(LabelError, match="cannot be written; check the permissions"):
                put(database)

    def test_a_server_that_drops_its_clients(self, label_templates: Templates) -> None:
        with closing(open_labels(label_templates.postgresql_kind().make())) as database:
            put(database)
            with pytest.raises(Unreachable, match="does not answer"), database._reading() as connection:
                connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
            put(database)
            assert len(database.search("photos")) == 1

    def test_one_that_drops_them_in_the_middle_of_a_write(self, label_templates: Templates) -> None:
        """While rows are copied to it, which psycopg does alone."""
        server = label_templates.server

        def cut(connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
            if statement == "TRUNCATE TABLE incoming_labels":
                pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
                server.execute(f"SELECT pg_terminate_backend({pid})")

        with closing(open_labels(label_templates.postgresql_kind().make())) as database:
            put(database)
            before = contents(database)
            sa.event.listen(database._engine, "after_cursor_execute", cut)
            with pytest.raises(Unreachable, match="does not answer"):
                put(database, 3)
            sa.event.remove(database._engine, "after_cursor_execute", cut)
            assert contents(database) == before
            put(database, 3)


WITHOUT = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None
from headwater.errors import MissingExtra
from headwater.store.labels import open_labels
try:
    open_labels(sys.argv[1])
except MissingExtra as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("place", "absent"),
    [
        ("labels.db", "sqlalchemy"),
        ("labels.db", "alembic"),
        ("postgresql://127.0.0.1:1/labels", "psycopg"),
    ],
)
def test_a_package_that_is_not_there(tmp_path: Path, place: str, absent: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT, place, absent]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
    assert done.stdout.startswith("labels")
    assert f"need {absent}" in done.stdout
    assert "pip install 'headwater[labels]'" in done.stdout
