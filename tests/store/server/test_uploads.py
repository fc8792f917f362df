"""Shipments on their way: they go on where they stopped, also after a restart, and are what was announced."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.engine.budget import Busy
from headwater.errors import ModelError, ModelRefused
from headwater.models.version import digest_of
from headwater.store.server.uploads import IDLE_SECONDS, Upload, Uploads

BODY = bytes(range(256)) * 4


def announce(body: bytes = BODY, *, caller: str = "tuner", name: str = "birds", version: str = "a") -> Upload:
    return Upload(caller, name, version * 32, digest_of(body), len(body), None, b"{}")


class Clock:
    """The time of day, moved by hand."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.now = folder, 1e9

    def __call__(self) -> float:
        return self.now

    def touch(self) -> None:
        """What was just written was written now."""
        for path in self._folder.iterdir():
            os.utime(path, (self.now, self.now))


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path, most_bytes=4096)


def test_parts_in_order_make_the_whole(uploads: Uploads) -> None:
    upload = announce()
    assert uploads.begin(upload) == 0
    assert uploads.add(upload, 0, BODY[:100]) == (100, 100)
    assert uploads.add(upload, 100, BODY[100:]) == (len(BODY), len(BODY) - 100)
    assert uploads.read(upload) == BODY


def test_a_part_that_comes_again_counts_once(uploads: Uploads) -> None:
    upload = announce()
    uploads.begin(upload)
    uploads.add(upload, 0, BODY[:100])
    assert uploads.add(upload, 0, BODY[:100]) == (100, 0)
    assert uploads.add(upload, 50, BODY[50:150]) == (150, 50)
    assert uploads.add(upload, 400, BODY[400:]) == (150, 0), "a gap is not made"
    uploads.add(upload, 150, BODY[150:])
    assert uploads.read(upload) == BODY


@given(st.lists(st.tuples(st.integers(0, len(BODY)), st.integers(0, 300)), max_size=30))
def test_any_order_of_parts_leaves_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]]
) -> None:
    uploads, upload, have = Uploads(tmp_path_factory.mktemp("uploads"), most_bytes=4096), announce(), 0
    uploads.begin(upload)
    for offset, length in parts:
        data = BODY[offset : offset + length]
        if offset <= have:
            have = max(have, offset + len(data))
        assert uploads.add(upload, offset, data)[0] == have
    assert uploads._path(upload, ".body").read_bytes() == BODY[:have]


def test_it_goes_on_where_it_stopped_also_after_a_restart(uploads: Uploads, tmp_path: Path) -> None:
    upload = announce()
    uploads.begin(upload)
    uploads.add(upload, 0, BODY[:700])
    assert uploads.begin(upload) == 700
    again = Uploads(tmp_path, most_bytes=4096)
    assert again.find("tuner", upload.version, upload.digest) == upload
    assert again.begin(upload) == 700
    again.add(upload, 700, BODY[700:])
    assert again.read(upload) == BODY


def test_what_lacks_bytes_is_refused_and_may_go_on(uploads: Uploads) -> None:
    upload = announce()
    uploads.begin(upload)
    uploads.add(upload, 0, BODY[:-1])
    with pytest.raises(ModelRefused, match=r"1,023 of 1,024 bytes have come; send the rest"):
        uploads.read(upload)
    uploads.add(upload, len(BODY) - 1, BODY[-1:])
    assert uploads.read(upload) == BODY


def test_other_bytes_than_announced_are_refused_and_forgotten(uploads: Uploads, tmp_path: Path) -> None:
    upload = announce()
    uploads.begin(upload)
    uploads.add(upload, 0, BODY[::-1])
    with pytest.raises(ModelRefused, match=f"not {upload.digest}; send it again"):
        uploads.read(upload)
    assert uploads.find("tuner", upload.version, upload.digest) is None
    assert list(tmp_path.iterdir()) == []


def test_more_bytes_than_announced_are_refused(uploads: Uploads) -> None:
    upload = announce()
    uploads.begin(upload)
    with pytest.raises(ModelRefused, match=r"more than the 1,024 bytes that were announced"):
        uploads.add(upload, 0, BODY + b"x")
    assert uploads.begin(upload) == 0


def test_more_than_a_store_takes_is_refused_before_anything_is_sent(uploads: Uploads, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"4,097 bytes .* takes 4,096: raise model_bytes there"):
        uploads.begin(announce(bytes(4097)))
    assert list(tmp_path.iterdir()) == []


def test_one_at_a_time_for_a_caller_and_a_name(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    uploads = Uploads(tmp_path, most_bytes=4096, clock=clock)
    first, second = announce(), announce(BODY[::-1], version="b")
    uploads.begin(first)
    clock.touch()
    with pytest.raises(Busy, match="tuner is sending another version of 'birds'"):
        uploads.begin(second)
    for other in (announce(caller="other"), announce(name="cats", version="c")):
        assert uploads.begin(other) == 0
    clock.touch()
    clock.now += 11
    assert uploads.begin(second) == 0
    assert uploads.find("tuner", first.version, first.digest) is None


def test_another_length_or_start_begins_anew(uploads: Uploads) -> None:
    upload = announce()
    uploads.begin(upload)
    uploads.add(upload, 0, BODY[:700])
    assert uploads.begin(msgspec.structs.replace(upload, base="f" * 32)) == 0


def test_all_together_have_a_bound_and_the_idle_make_room(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    uploads = Uploads(tmp_path, most_bytes=len(BODY), clock=clock)
    for caller in ("a", "b"):
        uploads.begin(announce(caller=caller))
    clock.touch()
    with pytest.raises(Busy, match="fill its room"):
        uploads.begin(announce(caller="c"))
    clock.now += IDLE_SECONDS + 1
    assert uploads.begin(announce(caller="c")) == 0
    assert uploads.find("a", "a" * 32, digest_of(BODY)) is None


def test_a_start_cleans_up(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    uploads = Uploads(tmp_path, most_bytes=4096, clock=clock)
    old, new = announce(caller="old"), announce(caller="new")
    uploads.begin(old)
    clock.touch()
    clock.now += IDLE_SECONDS + 1
    uploads.begin(new)
    for path in (uploads._path(new, ".json"), uploads._path(new, ".body")):
        os.utime(path, (clock.now, clock.now))
    for junk in (".record.json.xyz", "torn.json", "lonely.body"):
        (tmp_path / junk).write_bytes(b"{")
    again = Uploads(tmp_path, most_bytes=4096, clock=clock)
    assert again.find("new", new.version, new.digest) == new
    assert again.find("old", old.version, old.digest) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{new.key}.body", f"{new.key}.json"]


def test_a_full_disk_is_told_and_leaves_a_prefix(uploads: Uploads) -> None:
    upload = announce()
    uploads.begin(upload)
    uploads.add(upload, 0, BODY[:500])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        with pytest.raises(ModelError, match="cannot keep what is sent: File too large; make room there"):
            uploads.add(upload, 500, BODY[500:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert uploads.begin(upload) == 500
    uploads.add(upload, 500, BODY[500:])
    assert uploads.read(upload) == BODY
