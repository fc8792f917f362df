"""The loader's contract with a training loop."""

from __future__ import annotations

import functools
import gc
import operator
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from headwater import transforms as T
from headwater.errors import LoaderTimeout, WrongUse
from headwater.loader.collate import _column

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRANSFORM = T.Compose(
    [
        T.RandomResizedCrop(24),
        T.RandomHorizontalFlip(),
        T.ToDtype("float32", scale=True),
        T.Normalize(MEAN, STD),
    ]
)


@pytest.fixture
def data(photo_folder: Path) -> hw.Dataset:
    return hw.open(photo_folder)


def make(data: hw.Dataset, transform: Any = TRANSFORM, **options: Any) -> hw.DataLoader:
    return hw.DataLoader(data, transform, **({"batch_size": 7, "num_workers": 2} | options))


def test_a_batch_is_what_a_training_loop_expects(data: hw.Dataset) -> None:
    batch = next(iter(make(data, shuffle=True)))
    assert batch.inputs.shape == (7, 3, 24, 24)
    assert batch.inputs.dtype == torch.float32
    assert batch.inputs.is_contiguous()
    assert batch.targets.dtype == torch.int64
    assert torch.equal(batch.weights, torch.ones(7))
    assert len(batch) == 7
    inputs, targets = batch
    assert inputs is batch.inputs
    assert targets is batch.targets
    assert batch[0] is inputs


def test_labels_belong_to_their_samples(data: hw.Dataset) -> None:
    of = dict(zip(data.ids.tolist(), data.labels.tolist(), strict=True))
    for batch in make(data, shuffle=True):
        assert batch.targets.tolist() == [of[id] for id in batch.ids.tolist()]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_number_of_workers_changes_nothing(data: hw.Dataset, workers: int) -> None:
    expected = list(make(data, shuffle=True, num_workers=2))
    for got, wanted in zip(make(data, shuffle=True, num_workers=workers), expected, strict=True):
        assert torch.equal(got.inputs, wanted.inputs)
        assert torch.equal(got.ids, wanted.ids)


@pytest.mark.parametrize("lot", [1, 2, 64])
def test_a_sample_is_the_same_in_any_company(data: hw.Dataset, lot: int) -> None:
    """Batch size, lots and order do not touch pixels: they are keyed by the sample."""
    of = {int(id): image for batch in make(data) for id, image in zip(batch.ids, batch.inputs, strict=True)}
    for batch in make(data, shuffle=True, batch_size=lot):
        for id, image in zip(batch.ids.tolist(), batch.inputs, strict=True):
            assert torch.equal(image, of[id])


def test_epochs_differ_and_seeds_differ(data: hw.Dataset) -> None:
    loader = make(data, shuffle=True)
    first, second = ([batch.ids.tolist() for batch in loader] for _ in range(2))
    other = [batch.ids.tolist() for batch in make(data, shuffle=True, seed=1)]
    assert first != second
    assert first != other
    assert (
        sorted(functools.reduce(operator.iadd, first, []))
        == sorted(functools.reduce(operator.iadd, second, []))
        == sorted(data.ids.tolist())
    )


def test_without_shuffle_the_order_is_the_datasets(data: hw.Dataset) -> None:
    assert [int(id) for batch in make(data) for id in batch.ids] == data.ids.tolist()


def test_length_counts_steps(data: hw.Dataset) -> None:
    for drop_last in (False, True):
        loader = make(data, drop_last=drop_last)
        assert len(loader) == len(list(loader)) == (len(data) // 7 if drop_last else -(-len(data) // 7))


def test_normalising_while_landing_equals_the_steps(data: hw.Dataset) -> None:
    """The table that writes floats gives the bits of the steps run one after another on the batch."""
    crop = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
    plain = list(make(data, T.Compose(crop)))
    for got, raw in zip(make(data), plain, strict=True):
        assert raw.inputs.dtype == torch.uint8
        stepped = raw.inputs
        for step in TRANSFORM.batchwise.steps:
            stepped = step.apply_batch(stepped.clone(), np.empty((len(raw), 0)))  # type: ignore[attr-defined]
        assert torch.equal(got.inputs, stepped)


@pytest.mark.parametrize("size", [24, 160])
def test_small_and_large_images_land_alike(data: hw.Dataset, size: int) -> None:
    """Small images are looked up a lot at a time, large ones alone."""
    steps = [T.Resize((size, size)), T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)]
    landed = next(iter(make(data, T.Compose(steps))))
    alone = next(iter(make(data, T.Compose([*steps, lambda image: image]))))  # a callable: all per sample
    assert torch.equal(landed.inputs, alone.inputs)


def test_erasing_and_mixing_are_keyed(data: hw.Dataset) -> None:
    steps = [*TRANSFORM.steps, T.RandomErasing(p=1.0), T.MixUp(num_classes=3)]
    one, two = (list(make(data, steps, shuffle=True, num_workers=workers)) for workers in (0, 3))
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first.inputs, second.inputs)
        assert torch.equal(first.targets, second.targets)
        assert first.targets.shape == (len(first), 3)
        assert torch.allclose(first.targets.sum(1), torch.ones(len(first)))


def test_mixing_leaves_further_fields_alone(photo_tars: Path) -> None:
    steps = [*TRANSFORM.steps, T.CutMix(num_classes=3)]
    batch = next(iter(make(hw.open(photo_tars, fields=("json",)), steps)))
    assert batch.targets["label"].shape == (7, 3)
    assert len(batch.targets["json"]) == 7


def test_an_unknown_callable_runs_at_the_trainer(data: hw.Dataset) -> None:
    seen = []

    def invert(image: torch.Tensor) -> torch.Tensor:
        seen.append(threading.current_thread().name)
        return 255 - image

    loader = make(data, [T.Resize((16, 16)), invert, T.RandomCrop(12)])
    plain = make(data, [T.Resize((16, 16)), lambda image: image, T.RandomCrop(12)])
    for got, wanted in zip(loader, plain, strict=True):
        assert torch.equal(got.inputs, 255 - wanted.inputs)
    assert len(seen) == len(data)
    assert "callable" in str(loader.pipeline)
    assert loader.pipeline.longest_prefix == 2  # decode and resize


def test_images_of_unlike_size_are_refused_with_the_remedy(data: hw.Dataset) -> None:
    with pytest.raises(WrongUse, match=r"differ.*Resize.*collate_fn"):
        list(make(data, None))


def test_collate_fn_gets_tensors_and_targets(data: hw.Dataset) -> None:
    def keep(samples: list[tuple[torch.Tensor, Any]]) -> tuple[list[torch.Tensor], list[int]]:
        return [image for image, _ in samples], [int(target) for _, target in samples]

    batch = next(iter(make(data, None, collate_fn=keep)))
    assert [image.shape[0] for image in batch.inputs] == [3] * 7
    assert len({image.shape for image in batch.inputs}) > 1
    assert batch.targets == data.labels[:7].tolist()


def test_fields_come_with_the_targets(photo_tars: Path) -> None:
    data = hw.open(photo_tars, fields=("json",))
    batch = next(iter(make(data)))
    assert set(batch.targets) == {"label", "json"}
    assert len(batch.targets["json"]) == len(batch)


def test_two_loaders_on_one_dataset(data: hw.Dataset) -> None:
    train, held_out = data.split(0.8, 0.2, seed=3)
    training = make(train, shuffle=True)
    validating = make(held_out, [T.Resize((24, 24))], batch_size=4)
    for _ in training:
        assert sum(len(batch) for batch in validating) == len(held_out)
    assert not set(train.ids.tolist()) & set(held_out.ids.tolist())
    assert len(train) + len(held_out) == len(data)


def test_stats_add_up(data: hw.Dataset) -> None:
    loader = make(data)
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    assert stats.samples == 2 * len(data)
    assert stats.batches == 2 * len(loader)
    assert stats.epochs == 2
    assert stats.bytes_moved == stats.bytes_raw == 2 * int(data.sizes.sum())
    assert set(stats.wait_seconds) == {"read", "steps"}
    assert min(stats.work_seconds.values()) > 0


def test_report_keeps_the_last_loss(data: hw.Dataset) -> None:
    loader = make(data, shuffle=True)
    for epoch in range(2):
        for batch in loader:
            loader.report(batch, loss=batch.targets.float() + epoch)
    assert np.array_equal(loader.signals.loss, data.labels + 1)
    assert set(loader.signals.seen.tolist()) == {2}
    assert set(loader.signals.epoch.tolist()) == {1}
    with pytest.raises(WrongUse, match="reduction='none'"):
        loader.report(batch, loss=torch.tensor(1.0))


def test_a_slow_step_meets_the_timeout(data: hw.Dataset) -> None:
    stuck = threading.Event()
    loader = make(data, [T.Resize((8, 8)), lambda image: stuck.wait(20) or image], timeout=0.2)
    try:
        with pytest.raises(LoaderTimeout, match=r"within 0.2 s, waiting for steps"):
            next(iter(loader))
    finally:
        stuck.set()


def test_what_is_ahead_is_bounded_in_bytes(data: hw.Dataset) -> None:
    """With room for little more than one batch, a slow loop finds no more than that made."""
    batch_bytes = 4 * 4 * 3 * 64 * 64
    made: list[int] = []

    def count(image: torch.Tensor) -> torch.Tensor:
        made.append(1)
        return image.float()

    bound = batch_bytes + 2 * int(data.sizes.max()) * 4
    loader = make(data, [T.Resize((64, 64)), count], batch_size=4, prefetch_bytes=bound, prefetch_factor=50)
    for taken, _ in enumerate(loader, start=1):
        for worker in threading.enumerate():
            if worker.name.startswith("headwater"):
                worker.join(0.01)
        assert sum(made) <= 4 * (taken + 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_closed_loader_says_so(data: hw.Dataset, workers: int) -> None:
    loader = make(data, num_workers=workers)
    batches = iter(loader)
    next(batches)
    loader.close()
    for take in (lambda: list(batches), lambda: list(loader)):
        with pytest.raises(WrongUse, match="was closed"):
            take()


def test_threads_go_when_the_loader_does(data: hw.Dataset) -> None:
    loader = make(data)
    batches = iter(loader)
    next(batches)
    mine = [thread for thread in threading.enumerate() if thread.name.startswith("headwater")]
    assert mine
    del loader, batches
    gc.collect()
    for thread in mine:
        thread.join(5)
    assert not any(thread.is_alive() for thread in mine)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"shuffle": "yes"}, "shuffle is 'yes'"),
        ({"on_error": "ignore"}, "on_error is 'ignore'; it may be raise, skip, substitute"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"rank": 1}, "give both or neither"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"device": "cuda"}, "no CUDA device"),
    ],
)
def test_wrong_arguments_are_named(data: hw.Dataset, options: dict[str, Any], words: str) -> None:
    if options.get("device") and torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(WrongUse, match=words):
        make(data, **options)


def test_something_that_is_not_a_dataset_is_refused() -> None:
    with pytest.raises(WrongUse, match=r"hw\.open"):
        hw.DataLoader([1, 2, 3], None)  # type: ignore[arg-type]


def test_an_empty_subset_is_refused(data: hw.Dataset) -> None:
    with pytest.raises(WrongUse, match="empty"):
        make(data.filter(labels=[]))


def test_to_and_pin_keep_the_batch(data: hw.Dataset) -> None:
    batch = next(iter(make(data)))
    moved = batch.to("cpu")
    assert torch.equal(moved.inputs, batch.inputs)
    assert moved.ids is batch.ids


def test_block_shuffle_visits_every_sample(photo_parquet: Path) -> None:
    data = hw.open(photo_parquet)
    loader = make(data, shuffle="blocks")
    one, two = ([int(id) for batch in loader for id in batch.ids] for _ in range(2))
    assert sorted(one) == sorted(two) == sorted(data.ids.tolist())
    assert one != two


def test_block_shuffle_of_a_subset_visits_every_sample_and_resumes(photo_parquet: Path) -> None:
    whole = hw.open(photo_parquet)
    for part in (*whole.split(0.5, 0.5), whole.filter(labels=[0]), whole.select(whole.ids[::-1])):
        loader = make(part, shuffle="blocks", batch_size=3)
        batches = iter(loader)
        taken = next(batches).ids.tolist()
        resumed = make(part, shuffle="blocks", batch_size=3)
        resumed.load_state_dict(loader.state_dict())
        taken += [int(id) for batch in resumed for id in batch.ids]
        assert sorted(taken) == sorted(part.ids.tolist())


def test_fields_with_gaps_and_arrays_of_unlike_kind() -> None:
    assert _column([1, None, 3]) == [1, None, 3]
    assert _column(["a", "b"]) == ["a", "b"]
    assert _column([1, 2.5]).tolist() == [1.0, 2.5]
    assert _column([True, False]).dtype == torch.bool
    swapped = [np.array([1, 2], ">i4"), np.array([3, 4], ">i4")]
    assert _column(list(swapped)).tolist() == [[1, 2], [3, 4]]
    ragged: list[object] = [np.zeros(2), np.zeros(3)]
    assert _column(ragged) is ragged


def test_batch_steps_after_a_collate_fn_that_makes_no_tensor(data: hw.Dataset) -> None:
    steps = [T.Resize((8, 8)), T.Normalize(MEAN, STD)]
    loader = make(data, steps, collate_fn=lambda samples: ([image for image, _ in samples], []))
    with pytest.raises(WrongUse, match="collate_fn returned a list; normalize acts on a tensor"):
        next(iter(loader))


def test_torch_keeps_its_threads(data: hw.Dataset) -> None:
    """The loader's threads use one core each in torch; nobody else is changed."""
    before = torch.get_num_threads()
    for _ in range(5):
        list(make(data, num_workers=4, batch_size=2))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (torch.get_num_threads(), found) == (before, [before])


def test_a_seed_of_numpy_is_a_seed(data: hw.Dataset) -> None:
    loaders = make(data, shuffle=True, seed=np.int64(3)), make(data, shuffle=True, seed=3)
    assert loaders[0].state_dict() == loaders[1].state_dict()
    assert torch.equal(next(iter(loaders[0])).ids, next(iter(loaders[1])).ids)


def test_a_full_shuffle_that_rereads_blocks_is_warned_of(
    photo_parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = hw.open(photo_parquet)
    monkeypatch.setattr(data.store.source, "cached_bytes", 1000)
    with pytest.warns(UserWarning, match="shuffle='blocks' reads it once"):
        make(data, shuffle=True)
    make(data, shuffle="blocks")
