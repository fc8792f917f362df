"""A loader with a selector: which samples an epoch visits, what they count, and how a run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import headwater as hw
from headwater import transforms as T
from headwater.errors import StateMismatch, WrongUse
from headwater.loader.reporting import Shown
from headwater.select.always import Always
from headwater.select.proxy import Proxy
from headwater.select.samples import Samples
from headwater.select.scoring import WIDTH, Gradients
from headwater.select.selection import Choice, Selection
from headwater.select.specs import make_selector
from headwater.select.uniform import Uniform

SEED = 5


@dataclass
class Heavy:
    """Takes the samples of the higher losses, which count as much as their rank; all before any is known."""

    name = "heavy"
    needs: tuple[str, ...] = ("loss",)
    explore: float = 0.0

    def choose(self, samples: Samples) -> Choice:
        if np.isnan(samples.loss).all():
            return Choice(np.arange(len(samples)), "all")
        order = np.argsort(samples.loss, kind="stable")
        places = np.sort(order[len(order) // 2 :])
        return Choice(places, "the upper half", weights=1.0 + np.arange(len(places)))


@pytest.fixture
def data(photo_folder: Path) -> hw.Dataset:
    return hw.open(photo_folder)


def make(data: hw.Dataset, select: Any, **options: Any) -> hw.DataLoader:
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": SEED, "num_workers": 0, **options}
    return hw.DataLoader(data, [T.Resize((8, 8))], select=select, **given)


def train(loader: hw.DataLoader) -> list[hw.Batch]:
    """An epoch in which the loss of a sample is a function of its id and the epoch."""
    seen = []
    for batch in loader:
        loader.report(batch, loss=loss_of(batch))
        seen.append(batch)
    return seen


def loss_of(batch: hw.Batch) -> torch.Tensor:
    return ((batch.ids * (7 + batch.epoch)) % 1009).float()


def ids_of(batches: Iterator[hw.Batch] | list[hw.Batch]) -> list[int]:
    return [int(id) for batch in batches for id in batch.ids]


def test_an_epoch_visits_what_was_selected_once_with_its_weights(data: hw.Dataset) -> None:
    loader = make(data, Heavy())
    train(loader)
    selection = loader.selection
    assert selection is not None
    assert selection.epoch == 1
    assert len(selection) < len(data)
    assert loader.signals.weight[selection.places].tolist() == pytest.approx(selection.weights.tolist())
    batches = train(loader)
    assert sorted(ids_of(batches)) == sorted(data.ids[selection.places].tolist())
    weights = {int(id): float(w) for batch in batches for id, w in zip(batch.ids, batch.weights, strict=True)}
    expected = dict(zip(data.ids[selection.places].tolist(), selection.weights.tolist(), strict=True))
    assert weights == expected
    assert np.mean(list(weights.values())) == pytest.approx(1)
    assert loader.stats().epochs == 2


def test_the_log_tells_how_many_were_selected_and_what_they_are_worth(
    data: hw.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make(data, Heavy())
    with caplog.at_level("INFO", "headwater"):
        train(loader)
        assert loader.selection is not None
    worth = loader.selection.weights.sum() ** 2 / (loader.selection.weights**2).sum()
    assert worth < len(loader.selection) - 1
    said = f"epoch 1: {len(loader.selection)} of {len(data)} samples (the upper half), worth {worth:.0f} of"
    assert said in caplog.text


def test_the_length_is_that_of_the_epoch_that_stands(data: hw.Dataset) -> None:
    loader = make(data, Heavy(), batch_size=2)
    whole = len(loader)
    assert whole == -(-len(data) // 2)
    assert len(train(loader)) == whole
    assert len(loader) == -(-(len(data) - len(data) // 2) // 2)
    assert len(train(loader)) < whole


def test_the_steps_of_a_run_are_those_that_were_and_those_that_are_known_to_come(
    data: hw.Dataset, tmp_path: Path
) -> None:
    loader = make(data, Heavy(), batch_size=2, epochs=4, signals=tmp_path)
    whole, half = len(loader), -(-(len(data) - len(data) // 2) // 2)
    assert loader.total_steps == 4 * whole
    taken = 0
    while loader.epoch < 4:
        taken += len(train(loader))
        assert loader.total_steps == whole + 3 * half
    assert taken == loader.total_steps
    resumed = make(data, Heavy(), batch_size=2, epochs=4, signals=tmp_path)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.total_steps == taken
    assert make(data, None, epochs=3).total_steps == 3 * len(make(data, None))
    with pytest.raises(WrongUse, match="pass epochs=N"):
        _ = make(data, Heavy()).total_steps


def test_a_schedule_of_steps_ends_with_the_run_whatever_is_selected(data: hw.Dataset) -> None:
    """As how-to/select.md has it."""
    loader = make(data, Heavy(), batch_size=2, epochs=4)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1.0, total_steps=loader.total_steps)
    rates = []
    while loader.epoch < 4:
        for batch in loader:
            optimiser.step()
            loader.report(batch, loss=loss_of(batch))
            schedule.last_epoch = round(loader.done * (schedule.total_steps - 1)) - 1
            schedule.step()
            rates.append(schedule.get_last_lr()[0])
    assert len(rates) == loader.total_steps < schedule.total_steps
    assert max(rates) > 0.9
    assert rates[-1] == pytest.approx(1.0 / 25 / 1e4)


def test_the_last_batch_of_an_epoch_still_teaches_the_next_selection(
    data: hw.Dataset, tmp_path: Path
) -> None:
    def load() -> hw.DataLoader:
        return make(data, Heavy(), epochs=4, signals=tmp_path)

    expected, curious = load(), load()
    train(expected)
    state, steps = {}, len(curious)
    for batch in curious:
        curious.report(batch, loss=loss_of(batch))
        assert 0 < curious.done <= 0.25
        assert len(curious) == steps
        assert curious.selection is not None
        state = curious.state_dict()
    resumed = load()
    resumed.load_state_dict(state)
    ids = ids_of(train(expected))
    assert ids_of(train(curious)) == ids
    assert ids_of(train(resumed)) == ids


def test_all_shuffles_visit_the_same_samples(data: hw.Dataset, photo_parquet: Path) -> None:
    rows = hw.open(photo_parquet)
    for shuffle in (False, True, "blocks"):
        for some in (data, rows):
            loader = make(some, Uniform(0.5), shuffle=shuffle)
            assert loader.selection is not None
            places = loader.selection.places
            found = ids_of(list(loader))
            assert sorted(found) == sorted(some.ids[places].tolist())
            if not shuffle:
                assert found == some.ids[places].tolist()


def test_a_part_of_a_dataset_is_selected_from(data: hw.Dataset) -> None:
    part = data.select(data.ids[3::2])
    loader = make(part, Heavy())
    assert sorted(ids_of(train(loader))) == sorted(part.ids.tolist())
    found = ids_of(train(loader))
    assert set(found) < set(part.ids.tolist())
    assert len(found) == len(part) - len(part) // 2


def test_a_name_a_selector_and_what_is_neither(data: hw.Dataset) -> None:
    assert ids_of(list(make(data, "uniform"))) == ids_of(list(make(data, Uniform())))
    with pytest.raises(WrongUse, match="no selector 'best'"):
        make(data, "best")
    with pytest.raises(WrongUse, match="epochs is 0"):
        make(data, "uniform", epochs=0)


def test_who_never_reports_is_told_so(data: hw.Dataset) -> None:
    loader = make(data, Heavy())
    with pytest.raises(WrongUse, match="learns from 'loss'"):
        list(loader)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_run_goes_on_with_the_same_samples_and_weights(
    data: hw.Dataset, tmp_path: Path, steps: int
) -> None:
    def load() -> hw.DataLoader:
        return make(data, Heavy(), signals=tmp_path, batch_size=3)

    first = load()
    train(first)
    running = iter(first)
    for batch in islice(running, steps):
        first.report(batch, loss=loss_of(batch))
    state = first.state_dict()
    rest = []
    for batch in running:
        first.report(batch, loss=loss_of(batch))
        rest.append(batch)
    second = load()
    second.load_state_dict(state)
    again = train(second)
    assert ids_of(again) == ids_of(rest)
    assert torch.equal(torch.cat([b.weights for b in again]), torch.cat([b.weights for b in rest]))
    assert ids_of(train(second)) == ids_of(train(first))  # the next epoch follows from the same table


def test_a_state_without_its_file_or_of_another_selector_is_refused(data: hw.Dataset, tmp_path: Path) -> None:
    first = make(data, Heavy(), signals=tmp_path)
    state = first.state_dict()
    with pytest.raises(StateMismatch, match="is not here"):
        make(data, Heavy(), signals=tmp_path / "elsewhere").load_state_dict(state)
    with pytest.raises(StateMismatch, match="select heavy"):
        make(data, "uniform", signals=tmp_path).load_state_dict(state)
    with pytest.raises(StateMismatch, match="select"):
        make(data, None).load_state_dict(state)
    with pytest.raises(StateMismatch, match="select"):
        make(data, Heavy()).load_state_dict(make(data, None).state_dict())


def test_a_folder_that_cannot_be_written_to_is_said(data: hw.Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateMismatch, match="make room, or pass signals"):
        make(data, Heavy(), signals=tmp_path / "file").state_dict()


def test_a_proxy_of_another_run_selects_the_first_epoch(data: hw.Dataset, tmp_path: Path) -> None:
    small = make(data, "uniform", signals=tmp_path)
    unsure = set(data.ids[::2].tolist())
    for batch in small:
        sure = torch.tensor([0.0 if int(one) in unsure else 8.0 for one in batch.ids])
        logits = torch.zeros(len(batch.ids), len(data.classes))
        logits[torch.arange(len(batch.ids)), batch.targets] = sure
        small.report(batch, loss=torch.ones(len(batch.ids)), logits=logits)
    known = tmp_path / f"{small.state_dict()['signals']}.arrow"
    for options in ({}, {"rank": 1, "world_size": 2}):
        loader = make(data, Proxy(share=0.3), signals=known, **options)
        assert loader.selection is not None
        chosen = data.ids[loader.selection.places].tolist()
        assert set(chosen) <= unsure
        assert loader.selection.epoch == 0
        assert 0 < len(chosen) < len(data) // 2
    alone = make(data, Proxy(share=0.3), signals=known)
    assert sorted(ids_of(list(alone))) == sorted(chosen)
    assert (tmp_path / f"{alone.state_dict()['signals']}.arrow").exists()
    with pytest.raises(StateMismatch, match=r"missing\.arrow cannot be used"):
        make(data, "proxy", signals=tmp_path / "missing.arrow")


def test_logits_tell_probabilities_margins_and_gradients(data: hw.Dataset) -> None:
    @dataclass
    class Curious(Heavy):
        needs: tuple[str, ...] = ("loss", "vectors")

    loader = make(data, Curious(), batch_size=5)
    classes = 7
    batch = next(iter(loader))
    logits = torch.randn(len(batch), classes, generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="none")
    loader.report(batch, loss=loss, logits=logits, model=3)
    at = data.index.position_of(batch.ids.numpy())
    chances = logits.softmax(1)
    own = chances[torch.arange(5), batch.targets]
    other = chances.clone()
    other[torch.arange(5), batch.targets] = 0
    assert np.allclose(loader.signals.probability[at], own, atol=1e-6)
    assert np.allclose(loader.signals.margin[at], own - other.amax(1), atol=1e-6)
    gradient = chances - torch.nn.functional.one_hot(batch.targets, classes)
    assert np.allclose(loader.signals.vectors[at], gradient, atol=1e-3)
    assert set(loader.signals.model[at].tolist()) == {3}


@pytest.mark.parametrize("classes", [10, 100])
def test_a_trainer_and_a_store_tell_samples_apart_by_the_same(classes: int) -> None:
    rng = np.random.default_rng(0)
    logits = (3 * rng.normal(size=(60, classes))).astype(np.float32)
    targets = rng.integers(0, classes, 60)
    shown = Shown.of(torch.zeros(60), torch.tensor(logits), torch.tensor(targets), vectors=True)
    found = shown.columns["vectors"]
    wanted = Gradients(classes).make(logits, targets)
    assert found.shape == wanted.shape == (60, min(classes, WIDTH))
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    assert np.abs(wanted).max() > 0.1


def test_stats_say_that_a_selector_has_ended(data: hw.Dataset, tmp_path: Path) -> None:
    loader = make(data, "medoids", signals=tmp_path)
    for batch in loader:
        logits = torch.randn(len(batch), 10, generator=torch.Generator().manual_seed(1))
        loader.report(batch, loss=loss_of(batch), logits=logits)
    assert loader.stats().selecting_ended == ""
    assert len(loader.selection or ()) < len(data)
    loader.signals.notes["ended"] = "it costs too much"
    assert loader.stats().to_dict()["selecting_ended"] == "it costs too much"
    assert sum(len(batch) for batch in train(loader)) < len(data), "the epoch that stands is as it was"
    assert sum(len(batch) for batch in train(loader)) == len(data)


@pytest.mark.parametrize("name", ["medoids", "craig", "k_center"])
def test_a_loader_looks_again_at_what_was_left_out(data: hw.Dataset, name: str) -> None:
    """Every sample has the same vector in all epochs: those that are chosen would always be the same."""
    loader = make(data, Always(make_selector(name, {"share": 0.2})))
    told = torch.randn(len(data), 10, generator=torch.Generator().manual_seed(1))
    for _ in range(40):
        for batch in loader:
            logits = told[torch.from_numpy(data.index.position_of(batch.ids.numpy()))]
            loader.report(batch, loss=loss_of(batch), logits=logits)
    assert np.count_nonzero(loader.signals.epoch > 0) > 24, "of 36, of which 9 are chosen each time"


def test_a_sample_without_a_label_has_a_vector_too() -> None:
    logits = torch.randn(2, 100, generator=torch.Generator().manual_seed(0))
    shown = Shown.of(torch.zeros(2), logits, torch.tensor([-1, 5]), vectors=True)
    lengths = np.linalg.norm(shown.columns["vectors"].astype(np.float32), axis=1)
    assert lengths[0] == pytest.approx(float(logits.softmax(1)[0].norm()), rel=1e-2)


def test_loads_are_noted_for_selectors(data: hw.Dataset) -> None:
    loader = make(data, Heavy())
    train(loader)
    assert loader.signals.bytes.tolist() == pytest.approx(data.sizes.tolist())
    assert (loader.signals.seconds > 0).all()
    assert set(loader.signals.read.tolist()) == {0}


@dataclass
class Afar:
    """Answers as it was told to."""

    answers: list[Selection | None]
    told: list[tuple[bool, bool]] = field(default_factory=list)
    name = "afar"
    state: ClassVar = {"run": "early"}

    def attach(self, ranks: Any) -> None:
        pass

    def resume(self, selection: Selection) -> None:
        self.answers.append(selection)

    def trained(self, seconds: float, *, whole: bool, visited: int, everything: int) -> None:
        self.told.append((seconds > 0, whole, visited))

    def select_epoch(self, samples: Samples) -> Selection | None:
        return self.answers.pop(0) if self.answers else None


def test_the_last_selection_stands_while_none_comes(data: hw.Dataset) -> None:
    places = np.array([1, 4, 6])
    weights = np.array([0.5, 1, 1.5], np.float32)
    loader = make(data, Afar([None, Selection("afar", 1, places, weights, "three")]))
    assert sorted(ids_of(list(loader))) == sorted(data.ids.tolist())
    for _ in range(2):
        assert sorted(ids_of(list(loader))) == sorted(data.ids[places].tolist())


def test_who_works_elsewhere_hears_what_stands_where_a_run_goes_on(data: hw.Dataset, tmp_path: Path) -> None:
    places, weights = np.array([1, 4, 6]), np.ones(3, np.float32)
    chosen = Selection("afar", 1, places, weights, "three", state={"run": "mine"})
    loader = make(data, Afar([None, chosen]), signals=tmp_path)
    list(loader)
    list(loader)
    afar = Afar([])
    make(data, afar, signals=tmp_path).load_state_dict(loader.state_dict())
    (found,) = afar.answers
    assert found is not None
    assert found.places.tolist() == places.tolist()
    assert found.state == {"run": "mine"}, "also of one that stands for another epoch"


def test_who_works_elsewhere_has_its_state_saved_before_it_has_selected(
    data: hw.Dataset, tmp_path: Path
) -> None:
    loader = make(data, Afar([]), signals=tmp_path)
    list(loader)
    afar = Afar([])
    make(data, afar, signals=tmp_path).load_state_dict(loader.state_dict())
    assert [one and one.state for one in afar.answers] == [{"run": "early"}]


def test_who_works_elsewhere_hears_how_long_epochs_take_and_which_are_whole(
    data: hw.Dataset, tmp_path: Path
) -> None:
    afar = Afar([])
    loader = make(data, afar, signals=tmp_path)
    assert not afar.told
    list(loader)
    for _ in loader:
        state = loader.state_dict()
        break
    loader.load_state_dict(state)
    list(loader)
    list(loader)
    assert afar.told == [(True, whole, len(data)) for whole in (True, False, False, True)]


def test_ranks_that_cannot_tell_each_other_are_refused_before_the_first_step(data: hw.Dataset) -> None:
    """Each would select alone, and come to something else."""
    for select in (Heavy(), Afar([])):
        loader = make(data, select, rank=0, world_size=2)
        with pytest.raises(WrongUse, match="has to do with all ranks; call"):
            iter(loader)
    assert list(make(data, "fresh", rank=0, world_size=2)), "it draws the same on every rank"


def test_a_stand_in_is_served_and_named(data: hw.Dataset) -> None:
    places = np.array([1, 4, 6])
    chosen = Selection("afar", 0, places, np.ones(3, np.float32), "three", stand_ins=np.array([-1, 9, -1]))
    loader = make(data, Afar([chosen]), shuffle=False)
    (batch,) = loader
    assert batch.ids.tolist() == data.ids[[1, 9, 6]].tolist()
    assert batch.targets.tolist() == data.labels[[1, 9, 6]].tolist()
