"""Label Studio's JSON: a task per sample. Annotations are of humans and imports, predictions of models.

`data.headwater` of a task holds the row as it was exported. A task that comes back with the same class is
that row; one with another class was annotated by a human.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

from headwater.data.index import sample_ids
from headwater.errors import LabelFileInvalid
from headwater.store.labels.exchange.sheet import SCHEMA, Pictures, Sheet, format_time, parse_time

_TASKS_AT_ONCE = 10_000
_FROM, _TO = "label", "image"
"""The names of the `Choices` and of the `Image` in the labelling interface."""

Row = dict[str, Any]


class _Value(msgspec.Struct):
    choices: list[str] = []


class _Result(msgspec.Struct):
    type: str = ""
    value: _Value = msgspec.field(default_factory=_Value)


class _Annotation(msgspec.Struct):
    result: list[_Result] = []
    was_cancelled: bool = False
    updated_at: str | None = None
    created_at: str | None = None


class _Prediction(msgspec.Struct):
    result: list[_Result] = []
    score: float | None = None
    model_version: str | None = None


class _Known(msgspec.Struct):
    """A row as we wrote it."""

    label: str
    source: str
    score: float | None = None
    margin: float | None = None
    model: str | None = None
    time: str | None = None


class _Data(msgspec.Struct):
    sample: str | int | None = None
    key: str | None = None
    headwater: _Known | None = None
    opinion: _Known | None = None


class _Task(msgspec.Struct):
    data: _Data
    annotations: list[_Annotation] = []
    predictions: list[_Prediction] = []


def write(file: BinaryIO, sheets: Iterable[Sheet], pictures: Pictures) -> int:
    """A task on each line; how many."""
    count = 0
    for sheet in sheets:
        keys = pictures.of(sheet.table["sample"].to_numpy())
        others = [] if sheet.opinions is None else sheet.opinions.table.to_pylist()
        said = {row["sample"]: row for row in others}
        for row, key in zip(sheet.table.to_pylist(), keys, strict=True):
            file.write(b",\n" if count else b"[\n")
            file.write(msgspec.json.encode(_task(row, said.get(row["sample"]), key, pictures.prefix)))
            count += 1
    file.write(b"\n]\n" if count else b"[]\n")
    return count


def _task(row: Row, opinion: Row | None, key: str | None, prefix: str) -> dict[str, Any]:
    # As text: a browser rounds integers of more than 53 bits.
    sample = str(row["sample"])
    data = {"image": prefix + (key or sample), "sample": sample, "headwater": _known(row)}
    data |= {} if key is None else {"key": key}
    if row["source"] == "model":
        return {"data": data, "predictions": [_prediction(row)]}
    task = {"data": data, "annotations": [{"result": _choice(row)}]}
    if opinion is not None:
        data["opinion"] = _known(opinion)
        task["predictions"] = [_prediction(opinion)]
    return task


def _known(row: Row) -> dict[str, Any]:
    facts = {name: value for name, value in row.items() if name != "sample" and value is not None}
    return {**facts, "time": format_time(row["time"])}


def _prediction(row: Row) -> dict[str, Any]:
    return {"model_version": row["model"], "score": row["score"], "result": _choice(row)}


def _choice(row: Row) -> list[dict[str, Any]]:
    value = {"choices": [row["label"]]}
    return [{"from_name": _FROM, "to_name": _TO, "type": "choices", "value": value}]


def read(path: Path) -> Iterator[Sheet]:
    """The rows; raises `LabelFileInvalid` with the line and field of what is wrong."""
    content = path.read_bytes()
    try:
        raw = msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        place = f"{path.name}{_position(content, error)}"
        raise LabelFileInvalid(f"{place} is no list of tasks: {error}") from error
    lines = _lines(content, raw)
    for start in range(0, len(raw), _TASKS_AT_ONCE):
        some = slice(start, start + _TASKS_AT_ONCE)
        yield _sheet(path, raw[some], lines[some])


def _position(content: bytes, error: msgspec.DecodeError) -> str:
    """Line and column of the byte that an error names, if it names one."""
    byte = re.search(r"\(byte (\d+)\)", str(error))
    if byte is None:
        return ""
    before = content[: int(byte[1])]
    return f" line {before.count(10) + 1}, column {len(before) - before.rfind(10)},"


def _lines(content: bytes, raw: list[msgspec.Raw]) -> list[int]:
    """The line on which each task begins. Between two tasks is nothing but a comma and blanks."""
    found, line, counted, end = [], 1, 0, 0
    for task in map(bytes, raw):
        begin = content.index(task, end)
        line += content.count(b"\n", counted, begin)
        found.append(line)
        counted, end = begin, begin + len(task)
    return found


def _sheet(path: Path, raw: list[msgspec.Raw], lines: list[int]) -> Sheet:
    tasks = [(line, *_rows(f"{path.name} line {line}", one)) for line, one in zip(lines, raw, strict=True)]
    given = [(line, row) for line, row, _ in tasks if row is not None]
    said = [(line, row) for line, _, row in tasks if row is not None]
    return _placed(path, given, opinions=_placed(path, said) if said else None)


def _placed(path: Path, rows: list[tuple[int, Row]], *, opinions: Sheet | None = None) -> Sheet:
    def place(row: int, column: str) -> str:
        return f"{path.name} line {rows[row][0]}, column {column!r}"

    table = pa.RecordBatch.from_pylist([row for _, row in rows], schema=SCHEMA)
    return Sheet(table, opinions, place).check()


def _rows(place: str, raw: msgspec.Raw) -> tuple[Row | None, Row | None]:
    """The row in force and the opinion that a task holds."""
    try:
        task = msgspec.json.decode(raw, type=_Task)
        sample = {"sample": _sample(task.data)}
        given, said = _annotated(task), _predicted(task)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise LabelFileInvalid(f"{place}: {error}") from error
    if given is None:
        return (None if said is None else {**sample, **said}), None
    return {**sample, **given}, (None if said is None else {**sample, **said})


def _sample(data: _Data) -> int:
    if data.sample is None and data.key is None:
        raise ValueError("neither `data.sample` nor `data.key` says which sample it is")
    found = int(sample_ids([data.key])[0]) if data.sample is None else int(data.sample)
    if not 0 <= found < 1 << 63:
        raise ValueError(f"`data.sample` is {found}, no id of 63 bits")
    return found


def _annotated(task: _Task) -> Row | None:
    """What the last annotation says that was not cancelled."""
    counted = [one for one in task.annotations if not one.was_cancelled and _chosen(one.result)]
    if not counted:
        return None
    label, known = _chosen(counted[-1].result), task.data.headwater
    if known is not None and known.label == label and known.source != "model":
        return _remembered(known)
    when = counted[-1].updated_at or counted[-1].created_at
    return {"label": label, "source": "human", "time": None if when is None else parse_time(when)}


def _predicted(task: _Task) -> Row | None:
    counted = [one for one in task.predictions if _chosen(one.result)]
    if not counted:
        return None
    last, label = counted[-1], _chosen(counted[-1].result)
    for known in (task.data.headwater, task.data.opinion):
        if known is not None and (known.label, known.model) == (label, last.model_version):
            return _remembered(known)
    return {"label": label, "source": "model", "model": last.model_version or None, "score": last.score}


def _remembered(known: _Known) -> Row:
    row = msgspec.structs.asdict(known)
    return {**row, "time": None if known.time is None else parse_time(known.time)}


def _chosen(results: list[_Result]) -> str | None:
    choices = [name for result in results if result.type == "choices" for name in result.value.choices]
    if len(choices) > 1:
        raise ValueError(f"{len(choices)} choices, such as {choices[:2]}; a sample has one class")
    return choices[0] if choices else None
