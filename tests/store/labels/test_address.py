from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import LabelError, WrongUse
from headwater.store.labels import address, default_place, open_labels


def test_a_file_is_sqlite(tmp_path: Path) -> None:
    url = address.parse(tmp_path / "a%b#c.db")
    assert (url.drivername, url.database) == ("sqlite", str(tmp_path / "a%b#c.db"))
    assert address.parse(f"sqlite:///{tmp_path}/x.db").database == f"{tmp_path}/x.db"


def test_postgresql_means_psycopg() -> None:
    for text in ("postgresql://anna@host/labels", "postgresql+psycopg://anna@host/labels"):
        assert address.parse(text).drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("mysql://host/labels", "no label database is kept in 'mysql'"),
        ("postgresql+asyncpg://host/labels", "no label database is kept in"),
        ("://", "cannot be read"),
        ("postgresql://host:port/labels", "cannot be read"),
        ("sqlite://", "so it is a file"),
        ("sqlite:///:memory:", "so it is a file"),
    ],
)
def test_a_wrong_address_says_what_is_right(text: str, reason: str) -> None:
    with pytest.raises(WrongUse, match=reason) as caught:
        address.parse(text)
    assert "name a file, sqlite:///FILE or postgresql+psycopg://" in str(caught.value)


@pytest.mark.parametrize("text", ["grpc://store-a:7077", "grpc+tls://store-a:7077/photos"])
def test_a_store_is_no_label_database_and_what_to_name_instead(text: str) -> None:
    with pytest.raises(
        WrongUse, match=r"address of a store, .*counts and exports.* STATE/labels\.db on its machine, or"
    ):
        address.parse(text)


def test_what_a_statement_sorts_does_not_stay_in_memory(tmp_path: Path) -> None:
    """`labels diff` sorts all rows of two versions, however many there are."""
    engine = address.make_engine(address.parse(tmp_path / "labels.db"), 1.0)
    with engine.connect() as connection:
        kind = connection.exec_driver_sql("PRAGMA temp_store").scalar()
    engine.dispose()
    assert kind == 1, "in a file"


def test_a_password_is_never_shown() -> None:
    name = address.name(address.parse("postgresql://anna:secret@host:5433/labels?sslmode=require"))
    assert name == "postgresql+psycopg://anna:***@host:5433/labels"


def test_the_default_lies_in_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWATER_LABELS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_place() == str(tmp_path / "headwater" / "labels.db")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_place() == str(tmp_path / "home" / ".local" / "share" / "headwater" / "labels.db")
    open_labels(default_place()).close()
    monkeypatch.setenv("HEADWATER_LABELS", "elsewhere.db")
    assert default_place() == "elsewhere.db"


def test_reading_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="there is no label database"):
        open_labels(tmp_path / "none.db", create=False)
    assert not list(tmp_path.iterdir())


def test_acknowledged_means_on_disk(tmp_path: Path) -> None:
    database = open_labels(tmp_path / "labels.db")
    with database._engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 30_000}
    database.close()
