"""Reading through a cache: the same values, fewer bytes, and only forms that stay the same."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater import transforms as T
from headwater.data.codecs.packing import Packing
from headwater.data.index import Index
from headwater.data.pipeline import Pipeline
from headwater.engine.cache import Cache, CachedReader, SampleCache
from headwater.engine.cache.reader import Forms
from headwater.engine.chain import Chain
from headwater.engine.fetching import Costs, Fetched, Packed, Wanted
from headwater.engine.meter import Meter
from headwater.errors import SampleCorrupt, Unreachable
from headwater.plan.offload import Offload

COUNT, LENGTH, SHAPE = 60, 500, (4, 5, 3)
INDEX = Index.build([f"{number}.jpg" for number in range(COUNT)], np.full(COUNT, LENGTH))
STEADY = T.Compose([T.Resize(8), T.CenterCrop(8), T.RandomHorizontalFlip()])
DRAWN = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip()])
ROOMY = Cache(1 << 20)


class Source:
    """Files that name their position; images that name the epoch too where a step has drawn."""

    def __init__(
        self,
        ways: Sequence[Offload],
        steps: Pipeline = STEADY,
        *,
        fields: bool = False,
        bad: Collection[int] = (),
    ) -> None:
        self.ways, self.steps, self.fields, self.bad = tuple(ways), steps, fields, bad
        self.asked: list[tuple[int, Offload]] = []
        self.error: Exception | None = None
        self.abandoned = False

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return INDEX.sizes[positions]

    def key(self, position: int) -> str:
        return INDEX.key(position)

    def abandon(self) -> None:
        self.abandoned = True

    def fetch(self, wanted: Wanted) -> Fetched:
        if self.error is not None:
            raise self.error
        numbers = [0] * len(wanted.ids) if wanted.ways is None else wanted.ways.tolist()
        ways = [self.ways[number] for number in numbers]
        positions = wanted.positions.tolist()
        self.asked += zip(positions, ways, strict=True)
        payloads = [self._make(*pair, wanted.epoch) for pair in zip(positions, ways, strict=True)]
        failed = {place: SampleCorrupt("bad") for place, at in enumerate(positions) if at in self.bad}
        costs = Costs.nothing(len(ways))
        costs.bytes[:] = [len(payload) for payload in payloads]
        packed = {
            place: Packed(np.frombuffer(payload, np.uint8), Packing("none", SHAPE))
            for place, (payload, way) in enumerate(zip(payloads, ways, strict=True))
            if way.cut
        }
        return Fetched(
            [
                None if place in failed else self._open(place, payload, packed)
                for place, payload in enumerate(payloads)
            ],
            {"twice": [2 * at for at in positions], "text": [f"{at}" for at in positions]}
            if self.fields
            else {},
            failed,
            np.array([way.cut for way in ways], np.uint8),
            sum(map(len, payloads)),
            None if wanted.ways is None else costs,
            packed if wanted.packed else {},
        )

    def _make(self, position: int, way: Offload, epoch: int) -> bytes:
        text = f"{position}." if way.cut <= self.steps.steady_prefix else f"{position} in {epoch}."
        size = LENGTH if not way.cut else int(np.prod(SHAPE))
        return (text.encode() * size)[:size]

    def _open(self, place: int, payload: bytes, packed: dict[int, Packed]) -> Any:
        return packed[place].packing.open(payload, Chain(self.steps).limits) if place in packed else payload


class Rig:
    """A reader through a cache, and one without."""

    def __init__(
        self,
        settings: Cache = ROOMY,
        ways: Sequence[Offload] = (Offload(0),),
        steps: Pipeline = STEADY,
        **options: Any,
    ) -> None:
        self.steps, self.options, self.ways = steps, options, tuple(ways)
        self.meter = Meter()
        self.cache = SampleCache(settings, INDEX, Chain(steps))
        self.reader = CachedReader(self._make, ways, self.cache, self.meter)

    def _make(self, ways: Sequence[Offload]) -> Source:
        self.source = Source(ways, self.steps, **self.options)
        return self.source

    def fetch(self, positions: object, *, epoch: int = 0, ways: object = None) -> Fetched:
        """Checked against a reader without a cache."""
        where = np.asarray(positions)
        asked = None if ways is None else np.asarray(ways, np.uint8)
        wanted = Wanted(where, INDEX.ids[where], epoch, asked)
        found = self.reader.fetch(wanted)
        self._check(found, wanted)
        return found

    def _check(self, found: Fetched, wanted: Wanted) -> None:
        """Values are those of as many steps; and where steps have drawn, of this epoch."""
        done = np.zeros(len(wanted.ids), np.uint8) if found.done is None else found.done
        cuts = [Offload(int(cut)) for cut in done]
        ways = list(dict.fromkeys(cuts))
        numbers = np.array([ways.index(cut) for cut in cuts], np.uint8)
        expected = Source(ways, self.steps, **self.options).fetch(replace(wanted, ways=numbers))
        assert set(found.failed) == set(expected.failed)
        for ours, true in zip(found.values, expected.values, strict=True):
            if isinstance(true, np.ndarray):
                assert np.array_equal(ours, true)
            else:
                assert (ours if ours is None else bytes(ours)) == true
        lost = set(expected.failed)
        for name, column in expected.fields.items():
            assert [v for at, v in enumerate(found.fields[name]) if at not in lost] == [
                v for at, v in enumerate(column) if at not in lost
            ]


def test_a_hit_is_not_asked_for_and_moves_nothing() -> None:
    rig = Rig()
    first = rig.fetch([5, 7])
    assert first.bytes_moved == 2 * LENGTH
    again = rig.fetch([9, 7, 5, 3], epoch=1)
    assert again.bytes_moved == 2 * LENGTH
    assert again.held is not None
    assert again.held.tolist() == [False, True, True, False]
    assert again.costs is not None
    assert again.costs.bytes.tolist() == [LENGTH, 0, 0, LENGTH]
    assert [position for position, _ in rig.source.asked] == [5, 7, 9, 3]
    rig.fetch([3, 5])
    assert len(rig.source.asked) == 4
    stats = rig.meter.stats()
    assert (stats.cache_hits, stats.cache_misses) == (4, 4)


def test_nothing_wanted() -> None:
    assert list(Rig().fetch(np.array([], np.int64)).values) == []


@pytest.mark.parametrize("settings", ["memory", "disk"])
def test_further_fields_are_held_too(tmp_path: Path, settings: str) -> None:
    rig = Rig(ROOMY if settings == "memory" else Cache(0, 1 << 20, tmp_path), fields=True)
    rig.fetch([5, 7])
    found = rig.fetch([6, 5, 7], epoch=1)
    assert found.fields["twice"] == [12, 10, 14]
    assert found.fields["text"] == ["6", "5", "7"]


def test_a_sample_that_fails_is_not_held() -> None:
    rig = Rig(bad={7})
    found = rig.fetch([5, 7])
    assert set(found.failed) == {1}
    assert set(rig.fetch([7, 5]).failed) == {0}
    assert [position for position, _ in rig.source.asked] == [5, 7, 7]


def test_what_concerns_all_is_raised_and_hits_need_nobody() -> None:
    rig = Rig()
    rig.fetch([5])
    rig.source.error = Unreachable("gone")
    rig.fetch([5])
    with pytest.raises(Unreachable):
        rig.fetch([5, 6])
    assert not rig.cache.contains(np.array([6])).any()


FLIP = 5  # steps with the flip, of which the first four draw nothing
WAYS = (Offload(0), Offload(4, "none"), Offload(FLIP))


def test_of_which_ways_a_sample_may_be_held() -> None:
    """Those whose steps all draw nothing; that of the file is added where it is not there."""
    forms = Forms.of(WAYS, STEADY.steady_prefix)
    assert (forms.steady.tolist(), forms.file, forms.ways) == ([True, True, False], 0, WAYS)
    alone = Forms.of([Offload(FLIP)], STEADY.steady_prefix)
    assert (alone.steady.tolist(), alone.file) == ([False, True], 1)
    crop = Forms.of([Offload(0), Offload(1), Offload(2, "jpeg"), Offload(3)], DRAWN.steady_prefix)
    assert crop.steady.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("ways", "wanted", "asked"),
    [
        ([0, 1, 2], [True, True, True], [0, 1, 0]),
        ([2, 2, 2], [False, True, False], [2, 0, 2]),
        ([2, 1, 2], [False, True, False], [2, 1, 2]),
        (None, [True, True, True], None),
    ],
)
def test_what_is_to_be_held_is_asked_for_as_it_can_be(
    ways: list[int] | None, wanted: list[bool], asked: list[int] | None
) -> None:
    forms = Forms.of(WAYS, STEADY.steady_prefix)
    nothing = np.full((len(WAYS), 3), np.nan)
    found = forms.ask(None if ways is None else np.array(ways, np.uint8), np.array(wanted), nothing)
    assert (None if found is None else found.tolist()) == asked


NAN = np.nan


@pytest.mark.parametrize(
    ("asked", "lengths", "chosen"),
    [
        (0, (500, 60, 9), 1),  # the file was planned, pixels take less; the flip is of this epoch only
        (1, (500, 900, 9), 0),  # pixels were planned, the file takes less
        (1, (500, 500, 9), 1),  # they take as much
        (2, (500, 60, 9), 1),
        (2, (500, NAN, 9), 0),
        (1, (500, NAN, 9), 1),  # to find out costs nothing
        (0, (NAN, 60, 9), 0),
        (2, (NAN, NAN, NAN), 0),
    ],
)
def test_what_is_to_be_held_is_asked_for_in_its_cheapest_form(
    asked: int, lengths: tuple[float, ...], chosen: int
) -> None:
    forms = Forms.of(WAYS, STEADY.steady_prefix)
    table = np.array(lengths)[:, None]
    planned = np.array([asked], np.uint8)
    found = forms.ask(planned, np.array([True]), table)
    assert found is not None
    assert found.tolist() == [chosen]
    assert forms.ask(planned, np.array([False]), table) is planned


def test_a_form_that_turned_out_smaller_is_held_though_files_are_planned() -> None:
    rig = Rig(ways=WAYS)
    rig.fetch(np.arange(10), ways=np.ones(10))
    again = CachedReader(rig._make, WAYS, rig.cache, rig.meter)
    where = np.arange(20, 30)
    found = again.fetch(Wanted(where, INDEX.ids[where], 1, np.zeros(10, np.uint8)))
    assert {way.cut for _, way in rig.source.asked} == {4}, "what was learned is there in the next epoch"
    assert found.bytes_moved == 10 * np.prod(SHAPE)
    assert rig.cache.contains(where).all()


def test_a_form_that_turned_out_larger_is_not_held_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SHAPE", (20, 20, 3))
    rig = Rig(ways=[Offload(4, "none")])
    rig.fetch(np.arange(10))
    rig.fetch(np.arange(10, 20))
    assert [way.cut for _, way in rig.source.asked] == 10 * [4] + 10 * [0]
    held = rig.cache.holdings()
    assert held.samples == 20


def test_images_are_held_as_they_crossed_if_no_step_has_drawn() -> None:
    rig = Rig(ways=WAYS)
    rig.fetch([1, 2, 3], ways=[1, 1, 1])
    assert [way.cut for _, way in rig.source.asked] == [4, 4, 4]
    again = rig.fetch([1, 2, 3], epoch=1, ways=[2, 0, 1])
    assert again.bytes_moved == 0
    assert again.done is not None
    assert again.done.tolist() == [4, 4, 4]
    held = rig.cache.holdings().memory_bytes
    assert held < 3 * (np.prod(SHAPE) + 150)  # pixels, and not the file


def test_where_steps_have_drawn_the_file_is_held() -> None:
    rig = Rig(ways=(Offload(0), Offload(3)), steps=DRAWN)
    rig.fetch([1, 2], ways=[1, 1])
    assert [way.cut for _, way in rig.source.asked] == [0, 0]
    for epoch in (1, 2):
        assert rig.fetch([1, 2], epoch=epoch, ways=[1, 1]).bytes_moved == 0


def test_with_one_way_for_all_that_of_the_file_is_there_too() -> None:
    rig = Rig(ways=[Offload(3)], steps=DRAWN)
    assert rig.source.ways == (Offload(3), Offload(0))
    rig.fetch([1, 2])
    assert [way.cut for _, way in rig.source.asked] == [0, 0]
    assert rig.fetch([1, 2], epoch=1).bytes_moved == 0


def test_what_the_cache_does_not_want_comes_as_planned() -> None:
    rig = Rig(Cache(3 * (LENGTH + 80)), ways=(Offload(0), Offload(3)), steps=DRAWN)
    everything = np.arange(COUNT)
    for epoch in range(3):
        before = len(rig.source.asked)
        found = rig.fetch(everything, epoch=epoch, ways=np.ones(COUNT))
        cuts = [way.cut for _, way in rig.source.asked[before:]]
        assert cuts.count(0) == (3 if epoch == 0 else 0)
        assert cuts.count(3) == COUNT - 3
        assert found.held is not None
        assert found.held.sum() == (0 if epoch == 0 else 3)


def test_an_image_of_this_epoch_only_is_not_held_though_it_was_not_asked_for() -> None:
    """A store that does more than it was asked to is the client's affair; the cache looks again."""
    rig = Rig(ways=(Offload(0), Offload(3)), steps=DRAWN)
    rig.source.ways = (Offload(3), Offload(3))
    rig.fetch([1, 2], ways=[0, 0])
    assert not rig.cache.contains(np.array([1, 2])).any()


def test_an_entry_that_was_altered_on_disk_is_fetched_again(tmp_path: Path) -> None:
    rig = Rig(Cache(0, 1 << 20, tmp_path))
    rig.fetch([1, 2, 3])
    (path,) = tmp_path.rglob("data")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = rig.fetch([1, 2, 3], epoch=1)
    assert found.bytes_moved == LENGTH
    assert rig.fetch([1, 2, 3], epoch=2).bytes_moved == 0


def test_an_entry_that_makes_no_sense_is_fetched_again() -> None:
    rig = Rig()
    rig.cache.admit(np.array([1]), [b"\x05\x00\x00\x00no head"], ["files"])
    assert rig.fetch([1]).bytes_moved == LENGTH


def test_the_rest_is_the_other_readers() -> None:
    rig = Rig()
    assert rig.reader.sizes(np.array([3])).tolist() == [LENGTH]
    assert rig.reader.key(3) == "3.jpg"
    rig.reader.abandon()
    assert rig.source.abandoned


def test_many_threads_get_what_they_ask_for(tmp_path: Path) -> None:
    rig = Rig(Cache(10 * (LENGTH + 80), 20 * (LENGTH + 80), tmp_path), WAYS, fields=True)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for epoch in range(30):
                rig.fetch(rng.integers(0, COUNT, 8), epoch=epoch, ways=rng.integers(0, 3, 8))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    stats = rig.meter.stats()
    assert stats.cache_hits + stats.cache_misses == 6 * 30 * 8
    assert stats.cache_hits > 200
