"""Out of a database into each kind of file, and back into another database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.data.index import sample_ids
from headwater.errors import LabelError, WrongUse
from headwater.store.labels import LabelRows, Source
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.exchange import FORMATS, export_file, find_format, import_file
from headwater.store.labels.exchange.sheet import Pictures, format_time, parse_time
from headwater.store.labels.wanted import LabelQuery
from labelled import NAMES, Templates, announce, digest, human, imported, predicted


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite > sqlite", "postgresql > sqlite", "sqlite > postgresql"])
def two(
    request: pytest.FixtureRequest, label_templates: Templates, tmp_path: Path
) -> Iterator[tuple[LabelDatabase, LabelDatabase]]:
    """Two databases that know two versions; the numbers of the second differ from those of the first."""
    kinds = [label_templates.sqlite_kind(tmp_path), label_templates.postgresql_kind()]
    first, second = (next(kind for kind in kinds if kind.name == name) for name in request.param.split(" > "))
    with closing(first.open()) as one, closing(second.open()) as other:
        other.announce("f" * 32, name="unused")
        for database in (one, other):
            announce(database, 1)
            announce(database, 2)
        yield one, other


def fill(database: LabelDatabase) -> None:
    database.adopt("photos", [*NAMES, 'with "quotes", commas', "ünï=cödé"])
    first, second = (database.model(digest(number)).number for number in (1, 2))
    samples = np.arange(0, 60) * 153_722_867_280_912_930
    spread = np.random.default_rng(1).random(60).astype(np.float32)
    database.write("photos", predicted(samples, np.arange(60) % 6, first, scores=spread, margins=spread / 7))
    database.write("photos", human(samples[::4], [5] * 15))
    database.write("photos", imported(samples[1::5], [4] * 12))
    database.write("photos", predicted(samples[::2], [3] * 30, second, scores=0.1, margins=np.nan))


def told(database: LabelDatabase, dataset: str = "photos", *, opinions: bool = False) -> list[Any]:
    """All rows with names, but for the revision, which is each database's own."""
    there, versions = database.classes(dataset), {v.number: v.digest for v in database.models()}
    found: list[Any] = []
    ids = [sample for part in database.scan(dataset) for sample in part.samples.tolist()]
    rows = database.get(dataset, ids, opinions=opinions)
    for sample, label, score, margin, source, model, time, _ in zip(*rows.columns(), strict=True):
        facts = (there.names[label], repr(score), repr(margin), Source(source), versions.get(model), time)
        found.append((int(sample), *facts))
    return found


def test_rows_come_back(two: tuple[LabelDatabase, LabelDatabase], name: str, tmp_path: Path) -> None:
    one, other = two
    fill(one)
    path, form = tmp_path / f"labels{FORMATS[name].suffix}", FORMATS[name]
    assert export_file(one, "photos", path=path, form=form) == 60
    written = import_file(other, "photos", path=path, form=form, author="anna")
    assert told(other) == told(one)
    assert {row[4] for row in told(other)} == set(Source)
    (entry,) = other.log("photos")
    assert (entry.number, entry.kind, entry.note) == (written.revision, "import", path.name)
    assert written.wrote == 60
    assert (told(other, opinions=True) == told(one, opinions=True)) == (name == "labelstudio")
    before = path.read_bytes()
    export_file(other, "photos", path=path, form=form)
    assert path.read_bytes() == before


def test_the_same_file_again_changes_no_row(
    two: tuple[LabelDatabase, LabelDatabase], name: str, tmp_path: Path
) -> None:
    one, _ = two
    fill(one)
    path, form = tmp_path / "labels", FORMATS[name]
    export_file(one, "photos", path=path, form=form)
    before = told(one), told(one, opinions=True)
    import_file(one, "photos", path=path, form=form)
    assert (told(one), told(one, opinions=True)) == before


def test_some_rows_with_keys(two: tuple[LabelDatabase, LabelDatabase], name: str, tmp_path: Path) -> None:
    one, other = two
    one.adopt("photos", NAMES)
    keys = [f"ant/{number}.jpg" for number in range(6)]
    ids = sample_ids(keys)
    one.write("photos", human(ids, [0, 1, 2, 3, 0, 1]))
    known = dict(zip(ids.tolist(), keys, strict=True))
    pictures = Pictures(lambda samples: [known.get(int(sample)) for sample in samples], "s3://bucket/")
    path, form = tmp_path / "labels", FORMATS[name]
    query = LabelQuery(classes=("ant",))
    assert export_file(one, "photos", path=path, form=form, query=query, pictures=pictures) == 2
    content = path.read_bytes()
    assert b"ant/0.jpg" in content
    assert (b"s3://bucket/ant/0.jpg" in content) == (name == "labelstudio")
    import_file(other, "photos", path=path, form=form)
    assert other.search("photos").samples.tolist() == sorted(ids[[0, 4]].tolist())


def test_nothing_is_a_file_too(two: tuple[LabelDatabase, LabelDatabase], name: str, tmp_path: Path) -> None:
    one, other = two
    one.adopt("photos", NAMES)
    path, form = tmp_path / "labels", FORMATS[name]
    assert export_file(one, "photos", path=path, form=form) == 0
    assert import_file(other, "photos", path=path, form=form).wrote == 0


def test_a_file_that_cannot_be_read_or_written(
    two: tuple[LabelDatabase, LabelDatabase], name: str, tmp_path: Path
) -> None:
    one, _ = two
    one.adopt("photos", NAMES)
    with pytest.raises(LabelError, match=r"none cannot be read: \w+"):
        import_file(one, "photos", path=tmp_path / "none", form=FORMATS[name])
    with pytest.raises(LabelError, match="cannot be written: No such file"):
        export_file(one, "photos", path=tmp_path / "no" / "labels", form=FORMATS[name])


def test_formats_are_found_by_name() -> None:
    assert find_format(Path("a/labels.CSV")) is FORMATS["csv"]
    assert find_format(Path("labels.txt"), "parquet") is FORMATS["parquet"]
    with pytest.raises(WrongUse, match=r"'labels.txt' does not say its format; end it with .csv"):
        find_format(Path("labels.txt"))
    with pytest.raises(WrongUse, match="no format is called 'xml'; known: csv, parquet, labelstudio"):
        find_format(Path("labels.csv"), "xml")


NAMES_OF_CLASSES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
# SQLite keeps -0.0 as 0.0, and PostgreSQL as it is.
NUMBERS = st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False).map(
    lambda number: number + 0.0
)
ROWS = st.dictionaries(
    st.integers(0, (1 << 63) - 1),
    st.tuples(
        NAMES_OF_CLASSES,
        NUMBERS,
        NUMBERS,
        st.sampled_from(list(Source)),
        st.integers(1, 4_000_000_000_000),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_any_rows_come_back(
    two: tuple[LabelDatabase, LabelDatabase], name: str, tmp_path: Path, rows: dict[int, Any]
) -> None:
    one, other = two
    dataset = f"set {len(one.datasets())}"
    labels = one.adopt(dataset, [row[0] for row in rows.values()])
    model = one.model(digest(2)).number
    one.write(
        dataset,
        LabelRows.of(
            list(rows),
            labels,
            scores=[np.nan if row[1] is None else row[1] for row in rows.values()],
            margins=[np.nan if row[2] is None else row[2] for row in rows.values()],
            source=[row[3] for row in rows.values()],
            model=[model if row[3] is Source.MODEL else 0 for row in rows.values()],
            times=[row[4] for row in rows.values()],
        ),
    )
    path, form = tmp_path / "labels", FORMATS[name]
    export_file(one, dataset, path=path, form=form)
    import_file(other, dataset, path=path, form=form)
    assert told(other, dataset) == told(one, dataset)


@given(st.integers(0, 4_000_000_000_000))
def test_times_are_exact(milliseconds: int) -> None:
    assert parse_time(format_time(milliseconds)) == milliseconds


def test_times_without_a_zone_are_utc() -> None:
    assert parse_time("1970-01-01T00:00:01") == 1000
    assert parse_time("1970-01-01T01:00:01+01:00") == 1000
    assert format_time(1001) == "1970-01-01T00:00:01.001Z"
