from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from headwater.errors import Incompatible, LabelError
from headwater.store.labels import address, open_labels
from headwater.store.labels.migrating import VERSIONS
from headwater.store.labels.schema import METADATA, VERSION_TABLE
from labelled import NAMES, end_of, human, in_process
from postgres import Postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables."""
    if request.param == "sqlite":
        return str(tmp_path / "labels.db")
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.make()


def test_the_steps_make_the_tables_that_the_program_uses(empty: str) -> None:
    with closing(open_labels(empty)) as database, database._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, METADATA) == []
        indices = sa.inspect(connection).get_indexes("labels")
        assert sorted(str(index["name"]) for index in indices) == ["labels_by_class", "labels_by_margin"]
        for index in indices:
            (condition,) = (text for name, text in index["dialect_options"].items() if name.endswith("where"))
            assert "layer = 0" in str(condition)


def test_the_program_knows_all_steps() -> None:
    config = Config()
    config.set_main_option("script_location", "headwater.store.labels:migrations")
    steps = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(steps)) == VERSIONS


def test_the_last_step_can_be_taken_back(empty: str) -> None:
    with closing(open_labels(empty)) as database, address.for_writing(database._engine).begin() as connection:
        config = Config()
        config.set_main_option("script_location", "headwater.store.labels:migrations")
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        left = set(sa.inspect(connection).get_table_names())
        assert left == {VERSION_TABLE}


def test_opening_again_changes_nothing(empty: str) -> None:
    with closing(open_labels(empty)) as database:
        database.adopt("photos", NAMES)
        database.write("photos", human([1], [2]))
    with closing(open_labels(empty, create=False)) as database:
        assert database.search("photos").labels.tolist() == [2]


def test_a_database_of_a_newer_program_is_refused_by_name(empty: str) -> None:
    with closing(open_labels(empty)) as database, database._writing() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '0099'")
    with pytest.raises(Incompatible, match=r"tables of version 0099, this program knows up to 0001"):
        open_labels(empty)


def test_reading_makes_no_tables(empty: str, tmp_path: Path) -> None:
    if "://" not in empty:
        Path(empty).touch()
    with pytest.raises(LabelError, match="holds nothing yet"):
        open_labels(empty, create=False)
    engine = sa.create_engine(address.parse(empty))
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


def test_a_table_of_another_with_our_name_is_left_alone(postgres: Postgres) -> None:
    url = postgres.make()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE labels (a text)")
        connection.exec_driver_sql("CREATE TABLE invoices (a text)")
    engine.dispose()
    with pytest.raises(LabelError, match="holds tables of something else, such as 'labels'"):
        open_labels(url)


def test_many_processes_open_an_empty_database_at_once(empty: str) -> None:
    def work(database: object) -> None:
        return None

    children = [in_process(empty, work) for _ in range(6)]
    assert [end_of(child) for child in children] == [0] * 6
    with closing(open_labels(empty, create=False)) as database:
        assert database.datasets() == []
