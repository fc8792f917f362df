"""What a store answers to requests for samples: the right bytes, errors by name, all given back."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from datasets import Photo, write_parquet
from headwater import errors
from headwater.data.fieldrows import decode_fields
from headwater.data.image import Limits
from headwater.data.sources import SourceOptions, open_source
from headwater.engine.budget import Budget, Cores, Gone, Turnstile
from headwater.errors import (
    DatasetError,
    DatasetNotFound,
    DatasetStale,
    HeadwaterError,
    SampleCorrupt,
    WrongUse,
)
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


def test_what_it_took_to_send_a_sample_is_noted(desk: Desk) -> None:
    index = desk.datasets["photos"].index
    assert desk.loads.of(index) is None
    answer(desk, ask(desk, [30, 2], heads=50))
    assert desk.loads.of(index) is None, "a head is no sample"
    answer(desk, ask(desk, [30, 2, 11]))
    load = desk.loads.of(index)
    assert load is not None
    assert load.bytes[[30, 2, 11]].tolist() == [len(file) for file in files(desk, [30, 2, 11])]
    assert (load.seconds[[30, 2, 11]] > 0).all()
    assert np.isnan(np.delete(load.bytes, [30, 2, 11])).all()


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
        rows = [decode_fields(row) for row in found.fields]
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
    assert "raise request_bytes there" in complaint(found, 0).text
    assert found.bytes == 0


def test_a_file_past_the_cap_fails_alone_and_is_not_read(photo_folder: Path) -> None:
    whole = make_desk(photo_folder)
    sizes = whole.datasets["photos"].index.sizes
    cap = int(np.sort(sizes)[17])
    desk = make_desk(photo_folder, limits=Limits(bytes=cap))
    found = answer(desk, ask(desk, np.arange(36)))
    assert set(found.errors) == set(np.flatnonzero(sizes > cap).tolist())
    assert {complaint(found, place).kind for place in found.errors} == {"SampleTooLarge"}
    assert all("raise bytes of [limits] there" in complaint(found, place).text for place in found.errors)
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


@pytest.mark.parametrize("name", ["train-{0..1}.parquet", "train-*.parquet", "train-0.parquet"])
def test_no_error_tells_where_the_data_lies(name: str, tmp_path: Path, photos: list[Photo]) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    for number in range(2):
        write_parquet(folder / f"train-{number}.parquet", photos[number::2])
    store = LocalStore(open_source(str(folder / name), options=SourceOptions()))
    error = DatasetError(f"row group 3 of {folder}/train-0.parquet cannot be read")
    said = messages.decode(Complaint, complain(error, store))
    assert said.text == "row group 3 of train-0.parquet cannot be read"


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


class TestUnevenRows:
    """Parquet: the index knows only the mean of a row group, so what a row has is seen when it was read."""

    SMALL, LARGE = 1000, 100_000

    def desk(self, folder: Path, large: list[int], **budget: Any) -> Desk:
        lengths = [self.LARGE if place in large else self.SMALL for place in range(40)]
        rows = [Photo(0, f"{place:04d}", "jpg", bytes([place]) * n) for place, n in enumerate(lengths)]
        write_parquet(folder / "train.parquet", rows, rows_per_group=40)
        return make_desk(folder, Budget(**({"cores": 1} | budget)))

    def test_one_past_the_cap_fails_alone(self, tmp_path: Path) -> None:
        desk = self.desk(tmp_path, [7], request_bytes=50_000)
        assert desk.datasets["photos"].index.sizes.max() < 50_000  # no index tells of it
        found = answer(desk, ask(desk, [5, 7, 9]))
        assert list(found.errors) == [1]
        assert complaint(found, 1).kind == "SampleTooLarge"
        assert not complaint(found, 1).retry
        assert [len(each) for each in found.payloads] == [1000, 0, 1000]
        assert desk.turnstile.held == 0

    def test_what_does_not_fit_into_a_reply_is_to_be_asked_for_again(self, tmp_path: Path) -> None:
        desk = self.desk(tmp_path, [3, 5, 6], request_bytes=150_000)
        found = answer(desk, ask(desk, [3, 4, 5, 6, 7]))
        assert [len(each) for each in found.payloads] == [100_000, 1000, 0, 0, 0]
        assert {(complaint(found, place).kind, complaint(found, place).retry) for place in found.errors} == {
            ("Busy", True)
        }
        assert [len(each) for each in answer(desk, ask(desk, [5, 6, 7])).payloads] == [100_000, 0, 0]
        samples = desk.ledger.snapshot()["headwater_samples_total"]
        assert isinstance(samples, dict)
        assert (samples["raw"], samples["failed"]) == (3, 0)

    def test_it_holds_what_it_read(self, tmp_path: Path) -> None:
        desk = self.desk(tmp_path, [3])
        reading = desk.read(ask(desk, [3, 4]), "somebody", lambda: False)
        next(reading)
        assert desk.turnstile.held == 101_000
        reading.close()  # type: ignore[attr-defined]
        assert desk.turnstile.held == 0

    def test_without_memory_it_waits_for_its_turn_again(self, tmp_path: Path) -> None:
        desk = self.desk(tmp_path, [3], memory=120_000, request_bytes=110_000)
        other = desk.turnstile.enter("other", memory=50_000, patience=0, gone=lambda: False)
        asked, gone = threading.Event(), [False]

        def is_gone() -> bool:
            """Asked whenever it has to wait."""
            if desk.turnstile.waiting:
                assert desk.turnstile.held == 50_000  # what was read was let go
                asked.set()
            return gone[0]

        def read() -> int:
            (batch,) = desk.read(ask(desk, [3]), "somebody", is_gone)
            return int(batch.nbytes)

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            assert asked.wait(30)
            other.leave()
            assert reading.result(30) > self.LARGE
        assert (desk.turnstile.held, desk.turnstile.active) == (0, 0)


class TestPages:
    """What is no sample is held to the same cores."""

    def page(self) -> tuple[pa.RecordBatch, bytes]:
        return pa.record_batch({"start": np.arange(1000)}), b"digest"

    def test_none_is_made_while_cores_are_owed(self, desk: Desk) -> None:
        desk.pacing._cores.spent(100.0)
        with pytest.raises(Gone, match="cores"):  # nobody waits ten seconds for it
            next(desk.send(self.page, ("somebody", "c"), size=10, gone=lambda: True))

    def test_what_it_waited_for_is_counted(self, desk: Desk) -> None:
        desk.pacing._cores.spent(1.2)  # 0.2 s of debt for two cores
        sending = desk.send(self.page, ("somebody", "c"), size=10, gone=lambda: False)
        assert next(sending)[1] == b"digest"
        assert (desk.turnstile.held, desk.turnstile.active) == (8000, 0)
        sending.close()  # type: ignore[attr-defined]
        stalls = desk.ledger.snapshot()["headwater_stall_seconds_total"]
        assert isinstance(stalls, dict)
        assert stalls["cores"] > 0.02
        assert stalls["send"] > 0


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
