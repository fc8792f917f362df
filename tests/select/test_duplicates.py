"""Groups are those that a comparison of each with each finds; in large classes nearly so, and never more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from columns import seeds
from headwater.errors import WrongUse
from headwater.select import cosine, duplicates, hamming
from headwater.select.duplicates import ALIKE, CAP, group_hashes, group_vectors, renumber

Hashes = NDArray[np.uint64]
Ints = NDArray[np.int64]

VIEWS, WORDS = 6, 2
ONE = np.uint64(1)


def draw_hashes(rng: np.random.Generator, count: int) -> Hashes:
    """Of pictures that have nothing to do with each other; views differ from the whole in some bits."""
    whole = rng.integers(0, 1 << 64, (count, 1, WORDS), dtype=np.uint64)
    return np.concatenate((whole, flip(rng, np.repeat(whole, VIEWS - 1, axis=1), 8)), axis=1)


def flip(rng: np.random.Generator, hashes: Hashes, bits: int) -> Hashes:
    """The same with up to so many other bits in every word."""
    changed = hashes.copy()
    for _ in range(bits):
        changed ^= ONE << rng.integers(0, 64, hashes.shape, dtype=np.uint64)
    return changed


def planted(rng: np.random.Generator, count: int, copies: int) -> tuple[Hashes, Ints]:
    """Some hashes again, with up to three other bits in each word; and labels, some missing."""
    own = draw_hashes(rng, count)
    from_ = rng.integers(0, count, copies)
    hashes = np.concatenate((own, flip(rng, own[from_], int(rng.integers(0, 4)))))
    labels = rng.integers(-1, 3, count)
    return hashes, np.concatenate((labels, np.where(rng.random(copies) < 0.8, labels[from_], 0)))


def compare_all(hashes: Hashes, labels: Ints) -> Ints:
    """Groups by each against each, without a cap."""
    count = len(hashes)
    left, right = (side.ravel() for side in np.indices((count, count)))
    close = hamming.alike(hashes[left], hashes[right], most=ALIKE) & (labels[left] == labels[right])
    return lead(close.reshape(count, count))


def lead(close: NDArray[np.bool_]) -> Ints:
    """Groups one by one: each that is in none takes those alike that are in none; -1 for what is alone."""
    groups, number = np.full(len(close), -1), 0
    alone = np.ones(len(close), np.bool_)
    for place in range(len(close)):
        mates = np.flatnonzero(close[place] & alone)
        mates = mates[mates > place]
        if alone[place] and len(mates):
            groups[[place, *mates]], alone[[place, *mates]] = number, False
            number += 1
    return groups


def pairs_of(groups: NDArray[np.integer]) -> set[tuple[int, int]]:
    """Pairs of places in one group."""
    left, right = np.triu_indices(len(groups), 1)
    same = (groups[left] == groups[right]) & (groups[left] >= 0)
    return set(zip(left[same].tolist(), right[same].tolist(), strict=True))


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_hashes_are_grouped_as_by_comparing_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hashes, labels = planted(rng, int(rng.integers(1, 25)), int(rng.integers(0, 12)))
    groups = group_hashes(hashes, labels)
    assert groups.dtype == np.int32
    np.testing.assert_array_equal(groups, compare_all(hashes, labels))


def test_a_shifted_picture_is_found_by_one_of_its_views() -> None:
    hashes, labels = draw_hashes(np.random.default_rng(5), 2), np.zeros(2, np.int64)
    hashes[1, 0] = hashes[0, 0] ^ np.uint64(0xFFF)  # of both words, so they differ in 24 bits
    assert group_hashes(hashes, labels).tolist() == [-1, -1]
    assert group_hashes(hashes, labels, most=24).tolist() == [0, 0]
    for one, other in ((0, 1), (1, 0)):
        shifted = hashes.copy()
        shifted[one, 3] = hashes[other, 0]
        assert group_hashes(shifted, labels).tolist() == [0, 0]


def test_views_are_not_looked_at_where_whole_pictures_are_far_from_each_other() -> None:
    hashes, labels = draw_hashes(np.random.default_rng(5), 2), np.zeros(2, np.int64)
    hashes[1, 3] = hashes[0, 0]
    for differing, wanted in ((hamming.FAR, [0, 0]), (hamming.FAR + 1, [-1, -1])):
        hashes[1, 0] = hashes[0, 0] ^ np.uint64((1 << differing) - 1)
        assert group_hashes(hashes, labels).tolist() == wanted


def chain(length: int) -> Hashes:
    """Of pictures of which each is alike to those beside it, and to no others."""
    hashes = np.repeat(draw_hashes(np.random.default_rng(9), 1), length, axis=0)
    for number in range(length):
        hashes[number] ^= np.uint64((1 << 9 * number) - 1)  # nine more bits of both words of all views
    return hashes


@pytest.mark.parametrize(("length", "wanted"), [(2, [0, 0]), (3, [0, 0, -1]), (4, [0, 0, 1, 1])])
def test_a_chain_is_no_group(length: int, wanted: list[int]) -> None:
    assert group_hashes(chain(length), np.zeros(length, np.int64)).tolist() == wanted


def test_a_chain_beyond_all_rounds_leaves_the_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_ROUNDS", 1)
    assert group_hashes(chain(5), np.zeros(5, np.int64)).tolist() == [0, 0, -1, -1, -1]


def test_the_order_of_samples_changes_numbers_only() -> None:
    rng = np.random.default_rng(1)
    hashes, labels = planted(rng, 300, 120)
    order = rng.permutation(len(hashes))
    moved = group_hashes(hashes[order], labels[order])
    back = np.empty_like(moved)
    back[order] = moved
    assert pairs_of(back) == pairs_of(group_hashes(hashes, labels))
    np.testing.assert_array_equal(group_hashes(hashes, labels), group_hashes(hashes.copy(), labels.copy()))


def test_only_samples_of_one_label_are_alike() -> None:
    hashes = np.repeat(draw_hashes(np.random.default_rng(2), 1), 5, axis=0)
    assert group_hashes(hashes, np.array([3, 4, 3, -1, -1])).tolist() == [0, -1, 0, 1, 1]


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_and_one_sample_are_no_group(count: int) -> None:
    labels = np.zeros(count, np.int64)
    assert group_hashes(np.zeros((count, VIEWS, WORDS), np.uint64), labels).tolist() == [-1] * count
    assert group_vectors(np.ones((count, 4)), labels).tolist() == [-1] * count


def test_classes_of_many_sizes_and_chunks_are_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hamming, "_CHUNK", 16)
    monkeypatch.setattr(hamming, "_BATCH", 5)
    rng = np.random.default_rng(3)
    hashes, _ = planted(rng, 90, 40)
    labels = np.concatenate((np.arange(90) ** 2 // 900, np.zeros(40, np.int64)))
    labels[90:] = labels[rng.integers(0, 90, 40)]
    np.testing.assert_array_equal(group_hashes(hashes, labels), compare_all(hashes, labels))


def test_equal_hashes_without_end_are_groups_of_the_cap() -> None:
    count = 100_000
    hashes = np.repeat(draw_hashes(np.random.default_rng(4), 1), count + 1, axis=0)
    groups = group_hashes(hashes, np.zeros(count + 1, np.int64))
    np.testing.assert_array_equal(groups[:count], np.arange(count) // CAP)
    assert groups[count] == (-1 if count % CAP == 0 else count // CAP)


@pytest.mark.parametrize("whole", [hamming.WHOLE, 100])
def test_hashes_that_are_all_nearly_equal_are_grouped_too(
    whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hamming, "WHOLE", whole)
    rng = np.random.default_rng(5)
    hashes = flip(rng, np.zeros((3000, VIEWS, WORDS), np.uint64), 2)
    groups = group_hashes(hashes, np.zeros(len(hashes), np.int64), cap=len(hashes))
    assert (groups == 0).mean() > 0.999


@pytest.mark.parametrize("seed", range(3))
def test_in_large_classes_close_ones_are_found_and_no_others(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    hashes, labels = planted(rng, 3000, 400)
    labels = np.where(labels < 0, 0, labels)
    wanted = group_hashes(hashes, labels, cap=100)
    monkeypatch.setattr(hamming, "WHOLE", 600)
    found = group_hashes(hashes, labels, cap=100)
    assert pairs_of(found) <= pairs_of(wanted)
    assert len(pairs_of(found)) >= 0.99 * len(pairs_of(wanted)) > 200


@pytest.mark.parametrize(("size", "cap", "wanted"), [(5, 2, [0, 0, 1, 1, -1]), (4, 3, [0, 0, 0, -1])])
def test_a_group_past_the_cap_is_divided(size: int, cap: int, wanted: list[int]) -> None:
    hashes = np.repeat(draw_hashes(np.random.default_rng(6), 1), size, axis=0)
    labels = np.zeros(size, np.int64)
    assert group_hashes(hashes, labels, cap=cap).tolist() == wanted
    assert group_vectors(np.ones((size, 2)), labels, cap=cap).tolist() == wanted


def test_numbers_follow_the_first_members() -> None:
    own = draw_hashes(np.random.default_rng(7), 4)
    hashes = own[[3, 1, 0, 1, 2, 0, 3, 3]]
    assert group_hashes(hashes, np.zeros(8, np.int64)).tolist() == [0, 1, 2, 1, -1, 2, 0, 0]


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_vectors_are_grouped_as_by_comparing_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(int(rng.integers(1, 20)), 8))
    again = own[rng.integers(0, len(own), 9)] * 7 + rng.normal(0, 0.3, (9, 8))
    vectors = np.concatenate((own, again)).astype(rng.choice([np.float16, np.float32]))
    labels = rng.integers(-1, 2, len(vectors))
    units = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1)[:, None]
    angles = units @ units.T
    least = 0.95 if np.abs(angles - 0.95).min() > 1e-4 else 0.951
    close = (angles >= least) & (labels[:, None] == labels)
    np.testing.assert_array_equal(group_vectors(vectors, labels, least=least), lead(close))


def test_a_vector_without_direction_is_like_no_other() -> None:
    vectors = np.array([[0, 0], [0, 0], [np.nan, 1], [np.nan, 1], [np.inf, 0], [np.inf, 0], [1, 2], [2, 4]])
    assert group_vectors(vectors, np.zeros(8, np.int64)).tolist() == [-1] * 6 + [0, 0]


def test_chunks_of_vectors_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cosine, "_ROWS", 8)
    rng = np.random.default_rng(8)
    own = rng.normal(size=(60, 16))
    vectors, labels = np.concatenate((own, own[::-1])), np.repeat([1, 0, 1], 40)
    wanted = (labels == labels[::-1]).nonzero()[0]
    groups = group_vectors(vectors, labels)
    assert (groups >= 0).nonzero()[0].tolist() == wanted.tolist()
    assert (groups == groups[::-1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_in_large_classes_vectors_that_are_alike_are_found_and_no_others(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cosine, "WHOLE", 400)
    monkeypatch.setattr(cosine, "_PART", 100)
    rng = np.random.default_rng(seed)
    own = np.abs(rng.normal(size=(1500, 64)))  # as features are: none below 0
    noise = rng.normal(0, 0.15, own[:300].shape)
    vectors = np.concatenate((own, own[:300] + noise))
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    close = np.triu(units @ units.T >= 0.95, 1)
    found = pairs_of(group_vectors(vectors, np.zeros(len(vectors), np.int64), seed=seed))
    wanted = set(zip(*(side.tolist() for side in np.nonzero(close)), strict=True))
    assert found <= pairs_of(lead(close | close.T))
    assert len(found & wanted) >= 0.95 * len(wanted) > 250
    assert found == pairs_of(group_vectors(vectors, np.zeros(len(vectors), np.int64), seed=seed))


@settings(deadline=None, max_examples=30)
@given(seeds)
def test_with_ids_groups_are_the_same_in_any_order(seed: int) -> None:
    """Also of chains, in which another leader makes other groups."""
    rng = np.random.default_rng(seed)
    hashes = draw_hashes(rng, 40)
    hashes[10:20], hashes[20:30] = hashes[:10], hashes[:10]
    hashes[10:20] ^= np.uint64((1 << 6) - 1)  # 12 of 128 bits; 24 are too many
    hashes[20:30] ^= np.uint64(((1 << 6) - 1) << 6)
    vectors = hashes[:, 0].view(np.uint8).astype(np.float32)
    labels, ids = np.arange(40) % 2, rng.permutation(1000)[:40]
    order = rng.permutation(40)
    for group, rows in ((group_hashes, hashes), (group_vectors, vectors)):
        found = group(rows, labels, ids=ids)  # type: ignore[operator]
        other = group(rows[order], labels[order], ids=ids[order])  # type: ignore[operator]
        assert pairs_of(found[order]) == pairs_of(other)
        firsts = [int(np.flatnonzero(other == number)[0]) for number in range(other.max(initial=-1) + 1)]
        assert firsts == sorted(firsts)
    assert pairs_of(group_hashes(hashes, labels, ids=np.arange(40))) == pairs_of(group_hashes(hashes, labels))


def test_without_ids_another_leader_makes_other_groups() -> None:
    """Two are alike to a third and not to each other: one group or two, as the third comes first or not."""
    middle = draw_hashes(np.random.default_rng(1), 1)
    chain = np.concatenate((middle ^ np.uint64(63), middle, middle ^ np.uint64(63 << 6)))
    labels = np.zeros(3, np.int64)
    assert group_hashes(chain, labels).tolist() == [0, 0, -1]
    assert group_hashes(chain[[1, 0, 2]], labels).tolist() == [0, 0, 0]
    assert group_hashes(chain, labels, ids=np.array([5, 1, 7])).tolist() == [0, 0, 0]


def test_groups_are_numbered_anew_and_one_that_lost_its_members_is_none() -> None:
    given = np.array([4, -1, 2, 2, 9, 4, 7, 7], np.int32)
    assert renumber(given).tolist() == [0, -1, 1, 1, -1, 0, 2, 2]
    assert renumber(given[:0]).tolist() == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: group_hashes(np.zeros((3, 6), np.uint64), np.zeros(3, np.int64)), "give uint64 of"),
        (lambda: group_hashes(np.zeros((3, 6, 2), np.int64), np.zeros(3, np.int64)), "give uint64 of"),
        (lambda: group_hashes(np.zeros((3, 6, 2), np.uint64), np.zeros(2, np.int64)), "one for each"),
        (lambda: group_hashes(np.zeros((3, 6, 2), np.uint64), np.zeros(3, np.int64), cap=1), "at least 2"),
        (lambda: group_vectors(np.zeros((3, 6)), np.zeros(3, np.int64), least=0), "above 0 to 1"),
        (lambda: group_vectors(np.zeros((3, 6)), np.zeros(3, np.int64), cap=0), "at least 2"),
    ],
)
def test_what_cannot_be_grouped_is_refused(call, words: str) -> None:
    with pytest.raises(WrongUse, match=words):
        call()
