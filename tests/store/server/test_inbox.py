"""Images that are kept: whole after any cut, once each, and with the ids that the sealed dataset has."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from datasets import make_photo
from fulldisk import files_no_larger_than
from headwater.errors import HeadwaterError
from headwater.store.server.inbox import Inbox, Kept
from headwater.store.server.shard import Arrival, GrowingShard

NOW = 1_700_000_000.0


def photos(count: int, seed: int = 0) -> list[Arrival]:
    rng = np.random.default_rng(seed)
    suffixes = ["jpg", "png", "webp"]
    return [
        Arrival(make_photo(rng, 12 + number, 16, suffixes[number % 3]), suffixes[number % 3])
        for number in range(count)
    ]


def make(folder: Path, **settings: int) -> Inbox:
    return Inbox(folder, clock=lambda: NOW, **settings)


def sealed(folder: Path) -> dict[int, bytes]:
    """By the ordinary way to open a dataset: id > file."""
    data = hw.open(folder)
    found = data.store.read(np.arange(len(data)))
    return {int(id): bytes(file) for id, file in zip(data.ids, found, strict=True)}


def expected(kept: list[Kept], arrivals: list[Arrival]) -> dict[int, bytes]:
    return {one.id: arrival.data for one, arrival in zip(kept, arrivals, strict=True)}


def test_ids_are_those_of_the_sealed_dataset(tmp_path: Path) -> None:
    inbox, arrivals = make(tmp_path / "a"), photos(9)
    kept = [*inbox.add(arrivals[:4]), *inbox.add(arrivals[4:])]
    assert not inbox.is_sealed
    assert inbox.unsealed_bytes > sum(len(one.data) for one in arrivals)
    assert inbox.seal() == 1
    assert inbox.unsealed_bytes == 0
    assert sealed(tmp_path / "a") == expected(kept, arrivals)
    data = hw.open(tmp_path / "a")
    assert {data.index.key(place) for place in range(len(data))} == {one.key for one in kept}


def test_any_program_can_read_a_sealed_shard(tmp_path: Path) -> None:
    inbox, arrivals = make(tmp_path), photos(3)
    inbox.add(arrivals)
    inbox.seal()
    (path,) = tmp_path.glob("*.tar")
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == [f"{one.digest}.{one.suffix}" for one in arrivals]
        assert [archive.extractfile(member).read() for member in members] == [one.data for one in arrivals]  # type: ignore[union-attr]
        assert {member.mtime for member in members} == {NOW}


def test_sealing_again_changes_nothing_and_more_can_come(tmp_path: Path) -> None:
    inbox, arrivals = make(tmp_path), photos(6)
    assert inbox.seal() == 0
    assert list(tmp_path.iterdir()) == []
    kept = inbox.add(arrivals[:3])
    assert [inbox.seal(), inbox.seal()] == [1, 0]
    kept += inbox.add(arrivals[3:])
    assert sealed(tmp_path) == expected(kept[:3], arrivals[:3]), "what is not sealed is not there"
    assert inbox.seal() == 1
    assert sealed(tmp_path) == expected(kept, arrivals)


def test_bytes_are_those_of_all_shards_sealed_or_not(tmp_path: Path) -> None:
    inbox, arrivals = make(tmp_path, shard_images=2), photos(7)
    for place, arrival in enumerate(arrivals):
        inbox.add([arrival])
        if place == 3:
            inbox.seal()
    for opened in (inbox, make(tmp_path, shard_images=2)):
        on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert 0 < opened.unsealed_bytes < opened.nbytes
        assert on_disk - 4 * 1024 <= opened.nbytes <= on_disk, "but for the ends of archives"
        opened.close()


def test_an_image_that_is_there_is_not_kept_again(tmp_path: Path) -> None:
    inbox, (one, other) = make(tmp_path), photos(2)
    first, second = inbox.add([one, one])
    assert first == second == inbox.add([other, one])[1]
    inbox.seal()
    assert inbox.add([one]) == [first], "it is in the shard before"
    inbox.close()
    again = make(tmp_path)
    assert again.add([one]) == [first], "another process knows it too"
    again.seal()
    assert len(sealed(tmp_path)) == 2


def test_shards_have_an_end(tmp_path: Path) -> None:
    arrivals = photos(10)
    inbox = make(tmp_path, shard_images=3)
    kept = [one for arrival in arrivals for one in inbox.add([arrival])]
    assert len({one.key.partition("/")[0] for one in kept}) == 4
    assert inbox.seal() == 4
    assert sealed(tmp_path) == expected(kept, arrivals)
    small = make(tmp_path / "small", shard_bytes=1)
    kept = [one for arrival in arrivals for one in small.add([arrival])]
    assert small.seal() == 10
    assert sealed(tmp_path / "small") == expected(kept, arrivals)


def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    arrivals = photos(5)
    kept = []
    for arrival in arrivals:
        inbox = make(tmp_path)
        kept += inbox.add([arrival])
        inbox.close()
    assert len(list(tmp_path.glob("*.tar.open"))) == 1
    inbox = make(tmp_path)
    assert inbox.unsealed_bytes > 0
    inbox.seal()
    assert sealed(tmp_path) == expected(kept, arrivals)


def test_a_file_cut_anywhere_has_all_that_was_whole_and_takes_more(tmp_path: Path) -> None:
    """Every length that a killed process can leave."""
    arrivals = photos(4)
    whole = GrowingShard(tmp_path / "whole.tar.open", clock=lambda: NOW)
    ends = [0]
    for arrival in arrivals:
        whole.append([arrival])
        ends.append(whole.nbytes)
    whole.close()
    content = whole.path.read_bytes()
    lengths = {*range(0, len(content), 97), *(end + step for end in ends for step in (-513, -1, 0, 1, 511))}
    for length in sorted(length for length in lengths if 0 <= length <= len(content)):
        path = tmp_path / "cut.tar.open"
        path.write_bytes(content[:length])
        shard = GrowingShard(path, clock=lambda: NOW)
        least = sum(end <= length for end in ends[1:])
        assert least <= len(shard) <= least + 1, "one more if only its padding is missing"
        more = photos(1, seed=9)
        shard.append(more)
        shard.finish()
        with tarfile.open(path) as archive:
            found = [archive.extractfile(member).read() for member in archive.getmembers()]  # type: ignore[union-attr]
        assert found == [one.data for one in [*arrivals[: len(shard) - 1], *more]]


@pytest.mark.parametrize("place", ["header", "data", "last byte"])
def test_bytes_that_never_reached_the_disk_are_known(tmp_path: Path, place: str) -> None:
    """After a power cut a file may have its length and not its content."""
    first, second = photos(2)
    shard = GrowingShard(tmp_path / "a.tar.open", clock=lambda: NOW)
    shard.append([first])
    end = shard.nbytes
    shard.append([second])
    shard.close()
    content = bytearray(shard.path.read_bytes())
    at = {"header": end + 3, "data": end + 512 + 20, "last byte": end + 512 + len(second.data) - 1}[place]
    content[at] ^= 0x40
    shard.path.write_bytes(content)
    again = GrowingShard(shard.path, clock=lambda: NOW)
    assert again.digests == [first.digest]
    assert shard.path.stat().st_size == end
    again.close()


def test_a_seal_that_was_cut_off_is_done_by_the_next(tmp_path: Path) -> None:
    arrivals = photos(4)
    inbox = make(tmp_path, shard_images=2)
    kept = inbox.add(arrivals[:2]) + inbox.add(arrivals[2:])
    inbox.close()
    (growing,) = tmp_path.glob("*.tar.open")
    shard = GrowingShard(growing, clock=lambda: NOW)
    shard.finish()  # and killed before it was renamed
    again = make(tmp_path)
    again.seal()
    assert sealed(tmp_path) == expected(kept, arrivals)


def test_a_full_disk_keeps_nothing_and_later_all(tmp_path: Path) -> None:
    inbox, arrivals = make(tmp_path), photos(4)
    kept = inbox.add(arrivals[:1])
    end = inbox.unsealed_bytes
    with files_no_larger_than(end + 700), pytest.raises(HeadwaterError, match="cannot keep images"):
        inbox.add(arrivals[1:])
    assert inbox.unsealed_bytes == end
    with files_no_larger_than(end), pytest.raises(HeadwaterError, match="cannot keep images"):
        inbox.seal()
    kept += inbox.add(arrivals[1:])
    assert inbox.seal() == 1
    assert sealed(tmp_path) == expected(kept, arrivals)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(HeadwaterError, match="cannot keep images"):
        make(tmp_path / "file" / "inbox")


def test_inboxes_of_two_stores_have_no_id_in_common(tmp_path: Path) -> None:
    arrivals = photos(3)
    first, second = (make(tmp_path / name).add(arrivals) for name in "ab")
    assert not {one.id for one in first} & {one.id for one in second}


def test_an_empty_shard_is_no_part_of_a_dataset(tmp_path: Path) -> None:
    inbox = make(tmp_path)
    inbox.add(photos(1))
    inbox.close()
    (path,) = tmp_path.glob("*.tar.open")
    path.write_bytes(path.read_bytes()[:300])
    assert make(tmp_path).seal() == 0
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(tmp_path)


def test_images_are_forgotten_wherever_they_lie(tmp_path: Path) -> None:
    inbox, arrivals = make(tmp_path, shard_images=3), photos(8)
    kept = inbox.add(arrivals[:3])
    inbox.seal()
    kept += [one for arrival in arrivals[3:] for one in inbox.add([arrival])]
    gone = [arrivals[place] for place in (1, 4, 7)]  # of a sealed shard, a full one, and the one that grows
    found = inbox.forget([arrival.digest for arrival in gone])
    assert sorted(found) == sorted(kept[place] for place in (1, 4, 7))
    assert inbox.forget([arrival.digest for arrival in gone]) == []
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not [arrival for arrival in gone if arrival.data in content or arrival.digest.encode() in content]
    assert inbox.nbytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    inbox.seal()
    left = [place for place in range(8) if place not in (1, 4, 7)]
    assert sealed(tmp_path) == expected([kept[place] for place in left], [arrivals[place] for place in left])
    inbox.add([arrivals[7]])  # sent again: it is a new one
    inbox.seal()
    assert arrivals[7].data in sealed(tmp_path).values()


def test_a_shard_whose_images_are_all_forgotten_goes(tmp_path: Path) -> None:
    inbox, arrivals = make(tmp_path), photos(2)
    inbox.add(arrivals)
    inbox.seal()
    assert len(inbox.forget([arrival.digest for arrival in arrivals])) == 2
    assert not list(tmp_path.glob("*.tar*"))
    assert inbox.nbytes == 0
