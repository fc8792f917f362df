"""Steps at the store: exact, as far as its cores and memory allow, and the file itself where they do not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from headwater import transforms as T
from headwater.data import codecs
from headwater.data.image import Limits
from headwater.data.pipeline import Pipeline
from headwater.engine.budget import Cores, Gone, Turn, Turnstile
from headwater.engine.chain import Chain
from headwater.errors import SampleCorrupt, WrongUse
from headwater.store.server.ledger import Ledger
from headwater.store.server.prefix import Made, Prefix
from headwater.store.server.workers import Workers, _digest
from headwater.store.wire.catalogue import combined, digests
from headwater.store.wire.messages import ReadRequest
from headwater.store.wire.payloads import Parcel
from pictures import jpeg, photo

PIPELINE = T.Compose([T.RandomCrop(24), T.RandomHorizontalFlip()]).samplewise  # needs no torch
FILES = [jpeg(photo(40 + 3 * number, 90 - 2 * number, seed=number)) for number in range(20)]
IDS = np.arange(20, dtype=np.int64) * 1009 + 7


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(1, limits=Limits(), arena_bytes=16 << 20)
    made.start()
    yield made
    made.close()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def prefix(workers: Workers, ledger: Ledger) -> Prefix:
    return Prefix(workers, Cores(64), ledger)


@pytest.fixture
def turn() -> Iterator[Turn]:
    with Turnstile(1, 1 << 30).enter("c", memory=1, patience=0, gone=lambda: False) as entered:
        yield entered


def request(cut: int | Sequence[int], pipeline: Pipeline = PIPELINE, **changes: Any) -> ReadRequest:
    cuts = bytes([cut] * 20 if isinstance(cut, int) else cut)
    said = {
        "ids": IDS.tobytes(),
        "epoch": 3,
        "seed": 5,
        "cuts": cuts,
        "codecs": bytes(20),
        "names": ["none"],
        "steps": pipeline.spec(),
        "digest": combined(pipeline, digests()),
    }
    return ReadRequest("photos", "v", "c", **(said | changes))


def run(prefix: Prefix, asked: ReadRequest, turn: Turn, files: Sequence[Any] = FILES) -> Made:
    return prefix.run(asked, IDS, files, turn)


@dataclass
class Lot:
    ids: Any
    epoch: int
    images: dict[int, Any] = field(default_factory=dict)
    rows: dict[int, Any] = field(default_factory=dict)

    def emit(self, place: int, image: Any) -> None:
        self.images[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        raise error

    def note(self, place: int, size: tuple[int, int], rows: Sequence[Any]) -> None:
        self.rows[place] = (size, rows)


def referee(cut: int, pipeline: Pipeline = PIPELINE) -> Lot:
    lot = Lot(IDS, 3)
    Chain(pipeline.cut(cut)[0], 5).run(FILES, lot)
    return lot


def assert_cut(made: Made, place: int, cut: int, codec: str = "none") -> None:
    wanted = referee(cut)
    image, (size, rows) = wanted.images[place], wanted.rows[place]
    facts = made.facts[place].tolist()
    assert facts == (cut, facts[1], *image.shape, *size, 0)
    assert np.array_equal(codecs.decode(codec, made.payloads[place], image.shape), image)
    assert made.drawn[place] == np.array([v for row in rows for v in row], "<f8").tobytes()


def assert_raw(made: Made, place: int) -> None:
    assert made.payloads[place] is FILES[place]
    assert made.facts[place].tolist() == (0,) * 8
    assert made.drawn[place] == b""


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("cut", range(1, len(PIPELINE) + 1))
def test_every_cut_and_codec(cut: int, codec: str, prefix: Prefix, turn: Turn) -> None:
    made = run(prefix, request(cut, names=[codec]), turn)
    for place in range(20):
        assert_cut(made, place, cut, codec)
    assert not made.failed


def test_each_sample_has_its_own(prefix: Prefix, turn: Turn) -> None:
    cuts = [place % (len(PIPELINE) + 1) for place in range(20)]
    chosen = bytes(place % 2 for place in range(20))
    made = run(prefix, request(cuts, names=["zstd", "none"], codecs=chosen), turn)
    for place, cut in enumerate(cuts):
        if cut:
            assert_cut(made, place, cut, ("zstd", "none")[place % 2])
            assert made.facts["codec"][place] == place % 2
        else:
            assert_raw(made, place)


class TestPushBack:
    def exhausted(self, workers: Workers, ledger: Ledger) -> Prefix:
        cores = Cores(1.0)
        cores.spent(100.0)
        return Prefix(workers, cores, ledger)

    def test_without_cores_the_files_go_out(self, workers: Workers, ledger: Ledger, turn: Turn) -> None:
        made = run(self.exhausted(workers, ledger), request(2), turn)
        for place in range(20):
            assert_raw(made, place)
        assert not made.failed

    def test_and_it_is_said_and_counted(self, workers: Workers, ledger: Ledger, turn: Turn) -> None:
        prefix, asked = self.exhausted(workers, ledger), request([2] * 12 + [0] * 8)
        made = run(prefix, asked, turn)
        sizes = np.array([len(file) for file in FILES])
        prefix.count(Parcel(IDS, made.payloads, {}, None, made.facts, made.drawn), asked, sizes, sizes)
        counted = ledger.snapshot()["headwater_samples_total"]
        assert isinstance(counted, dict)
        assert (counted["pushed_back"], counted["raw"], counted["cut"]) == (12, 8, 0)

    def test_without_memory_what_grows_goes_out_as_a_file(self, prefix: Prefix) -> None:
        most = 1000
        with Turnstile(1, most).enter("c", memory=most, patience=0, gone=lambda: False) as full:
            made = run(prefix, request(1), full)  # decoded, each is larger than its file
        for place in range(20):
            assert_raw(made, place)

    def test_without_workers(self, ledger: Ledger, turn: Turn, caplog: pytest.LogCaptureFixture) -> None:
        closed = Workers(1, limits=Limits())
        closed.catalogue = digests()
        closed.close()
        prefix = Prefix(closed, Cores(64), ledger)
        for _ in range(3):
            made = run(prefix, request(2), turn)
            for place in range(20):
                assert_raw(made, place)
        assert caplog.text.count("samples go out as they are") == 1

    def test_behind_a_hung_worker_all_that_is_left_goes_out(self, ledger: Ledger, turn: Turn) -> None:
        hung = Workers(1, limits=Limits())
        hung.catalogue = digests()
        child = hung._idle.get()  # somebody has it
        begin = time.monotonic()
        made = run(Prefix(hung, Cores(64), ledger), request(2), turn)
        assert time.monotonic() - begin < 1.9  # one wait, and not one for each of two chunks
        hung._idle.put(child)
        hung.close()
        for place in range(20):
            assert_raw(made, place)


def test_nothing_is_made_for_who_hung_up(prefix: Prefix, turn: Turn) -> None:
    answers = iter([False, True])
    with pytest.raises(Gone):
        prefix.run(request(2), IDS, FILES, turn, gone=lambda: next(answers))
    assert next(answers, None) is None


def test_what_is_counted(prefix: Prefix, ledger: Ledger, turn: Turn) -> None:
    asked = request([3] * 10 + [0] * 10, names=["zstd"])
    made = run(prefix, asked, turn)
    lengths = np.array([len(payload) for payload in made.payloads])
    sizes = np.array([len(file) for file in FILES])
    prefix.count(Parcel(IDS, made.payloads, {}, None, made.facts, made.drawn), asked, lengths, sizes)
    counted: Any = ledger.snapshot()
    pixels = 24 * 24 * 3
    assert counted["headwater_samples_total"]["cut"] == 10
    assert counted["headwater_samples_total"]["raw"] == 10
    assert counted["headwater_bytes_sent_total"]["zstd"] == lengths[:10].sum()
    assert counted["headwater_bytes_sent_total"]["raw"] == sizes[10:].sum()
    assert counted["headwater_bytes_avoided_total"]["cut"] == max(0, sizes[:10].sum() - 10 * pixels)
    assert counted["headwater_bytes_avoided_total"]["codec"] == 10 * pixels - lengths[:10].sum()


def test_a_step_that_is_not_exact_stays_with_all_after_it(prefix: Prefix, turn: Turn) -> None:
    blurred = T.Compose([T.RandomCrop(24), T.GaussianBlur(3), T.RandomHorizontalFlip()]).samplewise
    made = run(prefix, request(4, blurred), turn)
    assert made.facts["done"].tolist() == [2] * 20
    assert_cut(made, 7, 2)


class TestAnotherStore:
    """One that was replaced since the greeting, and runs a step otherwise or not at all."""

    def test_steps_that_it_runs_otherwise_stay(self, prefix: Prefix, turn: Turn) -> None:
        for digest in ("", combined(PIPELINE, {**digests(), "random_box": "other"})):
            made = run(prefix, request(3, digest=digest), turn)
            for place in range(20):
                assert_raw(made, place)

    def test_steps_before_one_that_it_lacks_are_run(self, ledger: Ledger, turn: Turn) -> None:
        fewer = Workers(1, limits=Limits(), arena_bytes=16 << 20)
        fewer.catalogue = {"decode": digests()["decode"]}
        prefix = Prefix(fewer, Cores(64), ledger)
        try:
            assert run(prefix, request(3), turn).facts["done"].tolist() == [0] * 20
            made = run(prefix, request(1, PIPELINE.cut(1)[0]), turn)
        finally:
            fewer.close()
        assert_cut(made, 0, 1)

    def test_a_codec_that_it_lacks_means_files(self, prefix: Prefix, turn: Turn) -> None:
        made = run(prefix, request(3, names=["none", "jpeg"]), turn)
        for place in range(20):
            assert_raw(made, place)


@pytest.mark.parametrize(
    "step",
    [
        {"name": "no such step"},
        {"name": "random_box", "size": "large"},
        {},
        {"name": ["decode"]},
    ],
    ids=str,
)
def test_steps_that_cannot_be(step: dict[str, Any], prefix: Prefix, turn: Turn) -> None:
    with pytest.raises(WrongUse):
        run(prefix, request(2, steps=[{"name": "decode"}, step]), turn)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"codecs": bytes([1] * 20)}, "codec 1 of 1"),
        ({"names": []}, "codec 0 of 0"),
    ],
)
def test_codecs_that_cannot_be(change: dict[str, Any], text: str, prefix: Prefix, turn: Turn) -> None:
    with pytest.raises(WrongUse, match=text):
        run(prefix, request(2, **change), turn)


def test_a_damaged_file_goes_out_as_it_is(prefix: Prefix, turn: Turn) -> None:
    """The trainer finds what is wrong with it, and names the sample as it would with local data."""
    files: list[Any] = list(FILES)
    files[3], files[8] = FILES[3][:100], None  # the second could not be read at all
    made = run(prefix, request(3), turn, files)
    assert (made.payloads[3], made.payloads[8]) == (files[3], None)
    assert made.facts["done"].tolist() == [0 if place in (3, 8) else 3 for place in range(20)]
    assert not made.failed


def test_a_quarantined_sample_fails_and_its_file_does_not_go_out(
    prefix: Prefix, workers: Workers, turn: Turn
) -> None:
    workers._quarantine[int(IDS[4])] = _digest(np.frombuffer(FILES[4], np.uint8))
    try:
        made = run(prefix, request(3), turn)
    finally:
        workers.release()
    assert list(made.failed) == [4]
    assert isinstance(made.failed[4], SampleCorrupt)
    assert made.payloads[4] is None
    assert_cut(made, 5, 3)
    assert_cut(run(prefix, request(3), turn), 4, 3)
