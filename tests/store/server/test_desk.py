"""What a store answers to requests for samples: the right bytes, errors by name, all given back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headwater import errors
from headwater.data.image import Limits
from headwater.data.sources import SourceOptions, open_source
from headwater.engine.budget import Budget, Cores, Gone, Turnstile
from headwater.errors import DatasetNotFound, DatasetStale, HeadwaterError, SampleCorrupt, WrongUse
from headwater.store.local import LocalStore
from headwater.store.server.desk import Desk, complain
from headwater.store.server.ledger import Ledger
from headwater.store.server.pacing import Pacing
from headwater.store.server.prefix import Prefix
from headwater.store.server.workers import Workers
from headwater.store.wire import messages, payloads
from headwater.store.wire.messages import Complaint, ReadRequest
from headwater.store.wire.payloads import Parcel


def make_desk(
    folder: Path, budget: Budget | None = None, limits: Limits | None = None, **source: Any
) -> Desk:
    """No worker starts before a request asks for steps."""
    options = SourceOptions(**source)
    store = LocalStore(open_source(str(folder), options=options), options.fields)
    budget = budget or Budget(cores=2)
    ledger, cores = Ledger(), Cores(budget.cores)
    prefix = Prefix(Workers(1, limits=Limits()), cores, ledger)
    turnstile = Turnstile(budget.requests, budget.memory)
    return Desk({"photos": store}, budget, turnstile, Pacing(cores), prefix, ledger, limits or Limits())


@pytest.fixture
def desk(photo_folder: Path) -> Iterator[Desk]:
    made = make_desk(photo_folder)
    yield made
    assert (made.turnstile.held, made.turnstile.active) == (0, 0)


def ask(desk: Desk, places: Any, **more: Any) -> ReadRequest:
    index = desk.datasets["photos"].index
    ids = index.ids[np.asarray(places, np.int64)]
    return ReadRequest("photos", index.version, "c", ids.astype("<i8").tobytes(), **more)


def answer(desk: Desk, request: ReadRequest, *, gone: bool = False) -> Parcel:
    (batch,) = desk.read(request, "somebody", lambda: gone)
    return payloads.unpack(batch, np.frombuffer(request.ids, "<i8"), cut=bool(request.cuts))


def complaint(parcel: Parcel, place: int) -> Complaint:
    found: Complaint = messages.decode(Complaint, parcel.errors[place])
    return found


def files(desk: Desk, places: list[int]) -> list[bytes]:
    return [bytes(file) for file in desk.datasets["photos"].read(np.array(places))]


def test_files_in_the_order_of_the_request(desk: Desk) -> None:
    found = answer(desk, ask(desk, [30, 2, 11]))
    assert [bytes(each) for each in found.payloads] == files(desk, [30, 2, 11])
    assert not found.errors
    sent = desk.ledger.snapshot()["headwater_bytes_sent_total"]
    assert isinstance(sent, dict)
    assert sent["raw"] == found.bytes


@pytest.mark.parametrize("length", [1, 50, 1 << 40])
def test_heads(desk: Desk, length: int) -> None:
    found = answer(desk, ask(desk, [30, 2], heads=length))
    assert [bytes(each) for each in found.payloads] == [file[:length] for file in files(desk, [30, 2])]


def test_fields_only_for_who_asks(photo_tars: Path) -> None:
    desk = make_desk(photo_tars, fields=("cls", "json"))
    assert answer(desk, ask(desk, [3, 4])).fields is None
    for heads in (0, 1):
        found = answer(desk, ask(desk, [3, 4], fields=True, heads=heads))
        assert found.fields is not None
        rows = [payloads.decode_fields(row) for row in found.fields]
        wanted = desk.datasets["photos"].read_fields(np.array([3, 4]))
        assert rows == [{name: wanted[name][place] for name in ("cls", "json")} for place in range(2)]


def test_no_such_dataset_or_another_version(desk: Desk) -> None:
    good = ask(desk, [1])
    with pytest.raises(DatasetNotFound, match=r"'\.\./photos'"):
        answer(desk, msgspec.structs.replace(good, dataset="../photos"))
    with pytest.raises(DatasetStale, match="open it again"):
        answer(desk, msgspec.structs.replace(good, version="other"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ids": b""}, "at least one sample"),
        ({"ids": bytes(7)}, "7 bytes of ids"),
        ({"ids": bytes(16)}, "stands twice"),
        ({"ids": bytes(8)}, "has no sample with id 0"),
        ({"ids": b"\xff" * 8}, "has no sample with id -1"),
        ({"ids": np.arange(4, dtype="<i8").tobytes()}, "this store answers 3"),
        ({"cuts": b"\x01"}, "1 cuts and 0 codecs"),
        ({"codecs": b"\x00"}, "0 cuts and 1 codecs"),
        ({"cuts": b"\x01\x01", "codecs": b"\x00\x00"}, "1 ids with 2 cuts"),
    ],
)
def test_requests_that_cannot_be(photo_folder: Path, change: dict[str, bytes], text: str) -> None:
    desk = make_desk(photo_folder, Budget(cores=1, request_samples=3))
    with pytest.raises(WrongUse, match=text):
        answer(desk, msgspec.structs.replace(ask(desk, [1]), **change))
    assert desk.turnstile.held == 0


def test_more_bytes_than_the_store_answers_at_once(photo_folder: Path) -> None:
    desk = make_desk(photo_folder, Budget(cores=1, request_bytes=2000))
    sizes = desk.datasets["photos"].index.sizes
    with pytest.raises(WrongUse, match="this store answers 2,000"):
        answer(desk, ask(desk, np.arange(36)))
    assert answer(desk, ask(desk, np.arange(36), heads=20)).bytes == 36 * 20
    large = int(np.argmax(sizes))
    assert sizes[large] > 2000
    found = answer(desk, ask(desk, [large]))
    assert complaint(found, 0).kind == "SampleTooLarge"
    assert found.bytes == 0


def test_a_file_past_the_cap_fails_alone_and_is_not_read(photo_folder: Path) -> None:
    whole = make_desk(photo_folder)
    sizes = whole.datasets["photos"].index.sizes
    cap = int(np.sort(sizes)[17])
    desk = make_desk(photo_folder, limits=Limits(bytes=cap))
    found = answer(desk, ask(desk, np.arange(36)))
    assert set(found.errors) == set(np.flatnonzero(sizes > cap).tolist())
    assert {complaint(found, place).kind for place in found.errors} == {"SampleTooLarge"}
    for place in np.flatnonzero(sizes <= cap).tolist():
        assert bytes(found.payloads[place]) == files(whole, [place])[0]


def test_a_missing_file_fails_alone_and_does_not_tell_where_it_lay(
    photo_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(photo_folder, tmp_path / "private"))
    desk = make_desk(folder)
    key = desk.datasets["photos"].index.key(4)
    (folder / key).unlink()
    found = answer(desk, ask(desk, [3, 4, 5]))
    assert list(found.errors) == [1]
    assert [bytes(found.payloads[place]) for place in (0, 2)] == [files(desk, [3])[0], files(desk, [5])[0]]
    said = complaint(found, 1)
    assert issubclass(getattr(errors, said.kind), HeadwaterError)
    assert str(tmp_path) not in said.text
    assert "private" not in said.text
    samples = desk.ledger.snapshot()["headwater_samples_total"]
    assert isinstance(samples, dict)
    assert (samples["raw"], samples["failed"]) == (2, 1)


def test_whoever_hangs_up_gives_everything_back(desk: Desk) -> None:
    reading = desk.read(ask(desk, [1, 2]), "somebody", lambda: False)
    assert isinstance(next(reading), pa.RecordBatch)
    assert desk.turnstile.held > 0
    assert desk.turnstile.active == 0  # the reply is made: the next one may work while it is sent
    reading.close()  # type: ignore[attr-defined]
    assert desk.turnstile.held == 0


def test_who_has_gone_does_not_wait(photo_folder: Path) -> None:
    desk = make_desk(photo_folder, Budget(cores=1, requests=1))
    with desk.turnstile.enter("other", memory=1, patience=0, gone=lambda: False), pytest.raises(Gone):
        answer(desk, ask(desk, [1]), gone=True)
    assert len(answer(desk, ask(desk, [1])).ids) == 1


def test_errors_as_they_are_sent() -> None:
    said = messages.decode(Complaint, complain(SampleCorrupt("cut short", id=3, key="k", stage="s")))
    assert said == Complaint("SampleCorrupt", "cut short")
    said = messages.decode(Complaint, complain(WrongUse("x" * 9000)))
    assert len(said.text) <= 4096


def test_errors_that_are_not_ours_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    said = messages.decode(Complaint, complain(RuntimeError("password is hunter2")))
    assert (said.kind, said.retry) == ("HeadwaterError", True)
    assert "hunter2" not in said.text
    assert "hunter2" in caplog.text
