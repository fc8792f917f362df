"""The reference page against the code: every table, column, method and kind of file."""

from __future__ import annotations

import re

import pytest
import sqlalchemy as sa

from headwater.store.labels import LabelRows
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.exchange import csvs
from headwater.store.labels.migrating import VERSIONS
from headwater.store.labels.reviewing import QUEUES
from headwater.store.labels.revisions import KINDS
from headwater.store.labels.schema import DOUBT, METADATA, VERSION_TABLE
from headwater.store.labels.wanted import LabelQuery
from pages import read_reference


@pytest.mark.parametrize("table", METADATA.sorted_tables, ids=lambda table: table.name)
def test_every_column_is_there(table: sa.Table) -> None:
    page = read_reference("labels")
    heading = re.search(rf"^### [^\n]*\b{table.name}\b[^\n]*$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert heading, table.name
    inherited = {"history": "labels"}.get(table.name, "")
    known = heading[1] + (page if f"columns of `{inherited}`" in heading[1].replace("\n", " ") else "")
    for column in table.columns:
        assert f"`{column.name}`" in known, f"{table.name}.{column.name}"
    for index in table.indexes:
        assert f"`{index.name}`" in page


def test_every_method_is_there() -> None:
    page = read_reference("labels")
    for name in vars(LabelDatabase):
        if not name.startswith("_"):
            assert re.search(rf"`{name}\(", page), name


def test_every_word_is_there() -> None:
    page = read_reference("labels")
    fields = [*LabelRows.__dataclass_fields__, *LabelQuery.__dataclass_fields__]
    for word in (*fields, *VERSIONS, *QUEUES, *KINDS, *csvs.COLUMNS, VERSION_TABLE):
        assert f"`{word}`" in page, word
    assert f"a margin below {DOUBT}" in page
