"""Files with something wrong in them: the line and the column are named, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import LabelFileInvalid
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.exchange import FORMATS, csvs, export_file, import_file, seen
from labelled import NAMES, Kind, announce, contents, digest, human, imported, predicted


@pytest.fixture
def db(kind: Kind) -> Iterator[LabelDatabase]:
    with closing(kind.open()) as database:
        announce(database, 1)
        database.adopt("photos", NAMES)
        database.write("photos", human([1], [0]))
        yield database


def refused(db: LabelDatabase, path: Path, name: str) -> str:
    """What is said of the file; the database must be as it was, the log and the classes too."""
    before = contents(db), db.log()
    with pytest.raises(LabelFileInvalid) as caught:
        import_file(db, "photos", path=path, form=FORMATS[name])
    assert (contents(db), db.log()) == before
    return str(caught.value)


GOOD = "sample,label,score,source,model,time\n5,bee,0.5,human,,\n6,new class,,import,,\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "labels.csv line 1: columns `label`, and `sample` or `key`, are needed"),
        ("sample,lable\n", "labels.csv line 1: no column is called 'lable'; known: sample, key, label"),
        ("sample,label,label\n", "labels.csv line 1: column 'label' is there twice"),
        ("sample,score\n", "labels.csv line 1: columns `label`"),
        (GOOD + "7,bee\n", "labels.csv line 4: 2 fields, the header has 6"),
        (GOOD + "7,bee,high,human,,\n", "labels.csv line 4, column 'score': 'high' is not a number"),
        (GOOD + "7,bee,nan,human,,\n", "labels.csv line 4, column 'score': nan; a number is finite"),
        (GOOD + "7,bee,1e99,human,,\n", "labels.csv line 4, column 'score': inf; a number is finite"),
        (GOOD + "7,bee,1_0,human,,\n", "labels.csv line 4, column 'score': '1_0' is not a number"),
        (GOOD + "-7,bee,,human,,\n", "labels.csv line 4, column 'sample': '-7' is not an id of 63 bits"),
        (GOOD + f"{1 << 63},bee,,human,,\n", "column 'sample': '9223372036854775808' is not an id"),
        (GOOD + "7.0,bee,,human,,\n", "labels.csv line 4, column 'sample': '7.0' is not an id of 63 bits"),
        (GOOD + ",bee,,human,,\n", "labels.csv line 4, column 'sample': None; which sample is not said"),
        (GOOD + "7,,,human,,\n", "labels.csv line 4, column 'label': None; a class is missing"),
        (GOOD + "7,a\tb,,human,,\n", "labels.csv line 4, column 'label': a class's name is 1 to 200"),
        (GOOD + "7,bee,,robot,,\n", "column 'source': 'robot'; a source is one of human, model, import"),
        (GOOD + "7,bee,,model,,\n", "column 'model': None; a model's label names its version"),
        (GOOD + "7,bee,,human,aa,\n", "column 'model': 'aa'; only a model's label names a version"),
        (GOOD + "7,bee,,model,abcdef01,\n", "labels.csv line 4, column 'model': this database was not told"),
        (GOOD + "7,bee,,human,,noon\n", "labels.csv line 4, column 'time': 'noon' is not a time in ISO 8601"),
        (GOOD + "5,bee,,human,,\n", "labels.csv line 4, column 'sample': sample 5 was there before"),
        (GOOD + '7,"bee,,human,,\n', "labels.csv line 4: unexpected end of data"),
        ("key,sample,label\na.jpg,5,bee\n", "labels.csv line 2, column 'key': its id is"),
    ],
)  # fmt: skip
def test_csv(db: LabelDatabase, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    assert said in refused(db, path, "csv")


def test_csv_that_is_no_text(db: LabelDatabase, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(GOOD.encode() + b"7,caf\xe9,,human,,\n")
    assert "line 4, column 'label': 'caf\\udce9' is not text in UTF-8" in refused(db, path, "csv")


def test_csv_of_others(db: LabelDatabase, tmp_path: Path) -> None:
    """A byte order mark, other line ends, columns in another order, keys instead of ids."""
    path = tmp_path / "labels.csv"
    path.write_bytes("\ufefflabel,key\r\ncow,a/b.jpg\r\n".encode())
    assert import_file(db, "photos", path=path, form=FORMATS["csv"]).wrote == 1
    assert db.counts("photos")["cow"]
    assert len(db.search("photos")) == 2


def test_a_sample_twice_far_apart(db: LabelDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvs, "_ROWS_AT_ONCE", 10)
    path = tmp_path / "labels.csv"
    rows = [f"{number},bee\n" for number in range(100)]
    path.write_text("sample,label\n" + "".join(rows) + "3,bee\n")
    assert "line 102, column 'sample': sample 3 was there before" in refused(db, path, "csv")


@given(st.lists(st.lists(st.integers(0, 30), max_size=8), max_size=12))
def test_repeated_ids_are_found(parts: list[list[int]]) -> None:
    looked, there = seen.Seen(), set()
    for part in parts:
        again = looked.repeated(np.array(part, np.int64)).tolist()
        for sample, found in zip(part, again, strict=True):
            assert found == (sample in there)
            there.add(sample)


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"sample": [5], "name": ["bee"]}, "no column is called 'name'; known: sample, key, label"),
        ({"label": ["bee"]}, "columns `label`, and `sample` or `key`, are needed"),
        ({"sample": [5], "label": ["bee"], "score": ["high"]}, "column 'score': holds string"),
        ({"sample": [0.5], "label": ["bee"]}, "column 'sample': holds double, which is no int64"),
        ({"sample": [5, None], "label": ["bee", "bee"]}, "row 2, column 'sample': None; which sample"),
        ({"sample": [5, -6], "label": ["bee", "bee"]}, "row 2, column 'sample': -6; an id is not negative"),
        ({"key": ["a", None], "label": ["bee", "bee"]}, "row 2, column 'sample': None; which sample"),
        ({"sample": [5], "key": ["a"], "label": ["bee"]}, "row 1, column 'key': its id is"),
        ({"sample": [5, 6], "label": ["bee", None]}, "row 2, column 'label': None; a class is missing"),
        ({"sample": [5, 5], "label": ["bee", "bee"]}, "row 2, column 'sample': sample 5 was there before"),
        (
            {"sample": [5, 6], "label": ["bee", "x"], "source": ["human", None]},
            "row 2, column 'source': None; a source is one of",
        ),
    ],
)
def test_parquet(db: LabelDatabase, tmp_path: Path, columns: Any, said: str) -> None:
    assert said in refused(db, parquet(tmp_path / "labels.parquet", **columns), "parquet")


def test_parquet_of_others(db: LabelDatabase, tmp_path: Path) -> None:
    columns = {"key": ["a.jpg"], "label": pa.array(["cow"]).dictionary_encode()}
    times = pa.array([1_000_000], pa.timestamp("us"))
    path = parquet(tmp_path / "labels.parquet", **columns, score=[0.25], time=times)
    assert import_file(db, "photos", path=path, form=FORMATS["parquet"]).wrote == 1
    row = db.search("photos").take(np.array([1]))
    assert (row.scores.tolist(), row.times.tolist(), row.sources.tolist()) == ([0.25], [1000], [2])


def task(**data: Any) -> dict[str, Any]:
    return {"data": {"sample": "5", **data}}


def chosen(*names: str) -> list[dict[str, Any]]:
    return [{"type": "choices", "value": {"choices": list(names)}}]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ('[{"data": {}},\n}', "labels.json line 2, column 1, is no list of tasks"),
        ('{"data": {}}', "labels.json is no list of tasks: Expected `array`"),
        ([{"id": 1}], "labels.json line 2: Object missing required field `data`"),
        ([task(), {"data": {"image": "x"}}], "line 3: neither `data.sample` nor `data.key` says"),
        ([task(sample="five")], "line 2: invalid literal"),
        ([task(sample=-5)], "line 2: `data.sample` is -5, no id of 63 bits"),
        ([task(sample=0.5)], "line 2: Expected `int | str | null`, got `float` - at `$.data.sample`"),
        ([task() | {"annotations": [{"result": chosen("a", "b")}]}], "line 2: 2 choices, such as"),
        ([task() | {"annotations": [{"result": 3}]}], "at `$.annotations[0].result`"),
        ([task() | {"predictions": [{"result": chosen("bee")}]}], "line 2, column 'model': None"),
        (
            [task() | {"predictions": [{"result": chosen("bee"), "model_version": "v1"}]}],
            "line 2, column 'model': this database was not told of model version v1",
        ),
        (
            [task() | {"annotations": [{"result": chosen("bee"), "updated_at": "noon"}]}],
            "line 2: Invalid isoformat string",
        ),
        ([task() | {"annotations": [{"result": chosen("bee")}]}] * 2, "line 3, column 'sample': sample 5"),
    ],
)
def test_label_studio(db: LabelDatabase, tmp_path: Path, tasks: Any, said: str) -> None:
    path = tmp_path / "labels.json"
    lines = tasks if isinstance(tasks, str) else "[\n" + ",\n".join(map(json.dumps, tasks)) + "\n]"
    path.write_text(lines)
    assert said in refused(db, path, "labelstudio")


def test_what_a_person_did_in_label_studio(db: LabelDatabase, tmp_path: Path) -> None:
    """A correction, a confirmation, a skip, and a new task, as Label Studio exports them."""
    model = db.announce("abcdef0123", name="net").number
    db.write("photos", predicted([10, 11, 12], [0, 0, 0], model))
    db.write("photos", imported([13], [2]))
    path = tmp_path / "labels.json"
    export_file(db, "photos", path=path, form=FORMATS["labelstudio"])
    tasks = {entry["data"]["sample"]: entry for entry in json.loads(path.read_text())}
    moment = {"created_at": "2026-01-02T03:04:05.678901Z", "completed_by": {"id": 1}, "id": 77}
    tasks["10"]["annotations"] = [{"result": chosen("bee"), **moment}]
    tasks["11"]["annotations"] = [{"result": chosen("ant"), **moment}]
    tasks["12"]["annotations"] = [{"result": chosen("dog"), "was_cancelled": True}]
    shape = {"type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["nose"]}}
    new = {"data": {"key": "new.jpg"}, "annotations": [{"result": [shape, *chosen("cow")]}], "id": 9}
    path.write_text(json.dumps([*tasks.values(), new, {"data": {"sample": 99}}], indent=1))
    import_file(db, "photos", path=path, form=FORMATS["labelstudio"])
    rows = db.search("photos")
    names = db.classes("photos").names
    found = {
        int(s): (names[label], int(source))
        for s, label, source in zip(rows.samples, rows.labels, rows.sources, strict=True)
    }
    new_id = next(sample for sample in found if sample > 100)
    assert found == {
        1: ("ant", 0), 10: ("bee", 0), 11: ("ant", 0), 12: ("ant", 1), 13: ("cat", 2), new_id: ("cow", 0),
    }  # fmt: skip
    assert rows.times[rows.samples == 10].tolist() == [1767323045678]
    assert db.get("photos", [10, 11], opinions=True).labels.tolist() == [0, 0]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_spoilt_files_are_taken_whole_or_not_at_all(
    db: LabelDatabase, tmp_path: Path, name: str, data: Any
) -> None:
    """Bytes of a sound file changed or cut off: an error of ours and no change, or some rows."""
    path = tmp_path / "labels"
    export_file(db, "photos", path=path, form=FORMATS[name])
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    before = contents(db)
    try:
        import_file(db, "spoilt", path=path, form=FORMATS[name])
    except LabelFileInvalid:
        assert contents(db) == before
    assert db.model(digest(1))
