"""Selection beside the data from a training loop: what is fed is used an epoch later, and what goes wrong."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import headwater as hw
from exports import MEAN, STD
from headwater import transforms as T
from headwater.errors import Refused, Unreachable, WrongUse
from headwater.loader import beside as module
from headwater.loader.beside import Beside
from headwater.measure.signalfile import read_signals
from headwater.plan.prune import SettledMask
from headwater.select.always import Always
from headwater.select.fresh import Fresh
from headwater.select.infobatch import InfoBatch
from headwater.select.samples import Samples
from headwater.select.selection import Selection
from headwater.store.client.errand import Abandoned
from headwater.store.client.selecting import Selected
from headwater.store.server.decoding import Asker
from headwater.store.wire.jobmessages import SelectionWish
from nets import SIZE, plain
from stores import running_daemon, write_tokens
from tunings import COLOURS, write_colours

STEPS = T.Compose([T.CenterCrop(SIZE), T.Normalize(MEAN, STD)])
COUNT = 3 * 50
SECONDS = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("colours") / "all", COUNT // 3, size=SIZE)


@pytest.fixture
def colours(folder: Path) -> Iterator[hw.Dataset]:
    with closing(hw.open(folder)) as data:
        yield data


def make_model() -> nn.Module:
    return plain(classes=len(COLOURS))


def look(epoch: int, colours: hw.Dataset, **facts: object) -> Samples:
    return Samples.of(colours.ids, colours.labels.astype(np.int64), epoch=epoch, seed=3, **facts)


class Canned:
    """Stands where stores would, and answers what it is given, when it is told to."""

    def __init__(self, colours: hw.Dataset) -> None:
        self.go = threading.Event()
        self.wishes: list[SelectionWish] = []
        self.error: Exception | None = None
        self._ids = colours.ids

    def run(self, model: str, wish: SelectionWish, *, over: Callable[[], bool] = lambda: False) -> Selected:
        self.wishes.append(wish)
        assert self.go.wait(SECONDS)
        if self.error is not None:
            raise self.error
        some = self._ids[:: 2 + wish.epoch][::-1]
        return Selected(
            some, np.ones(len(some), np.float32), len(self._ids), f"for {wish.epoch}", seconds=1.0
        )


@pytest.fixture
def canned(colours: hw.Dataset) -> Iterator[tuple[Beside, Canned]]:
    beside = Beside("infobatch", colours, STEPS, precision="fp32")
    stores = Canned(colours)
    beside.__dict__["_selects"] = stores
    yield beside, stores
    stores.go.set()
    beside.close()


def finish(beside: Beside) -> None:
    assert beside.rounds[-1].done.wait(SECONDS)


def test_a_loop_visits_what_was_selected_by_what_it_fed(colours: hw.Dataset) -> None:
    model = make_model()
    with closing(Beside(Always(InfoBatch(ratio=0.9)), colours, STEPS, run="mine")) as beside:
        loader = hw.DataLoader(
            colours, STEPS, batch_size=16, shuffle=True, seed=3, num_workers=0, select=beside, epochs=40
        )
        sizes = []
        for _ in range(4):
            seen = [id for batch in loader for id in batch.ids.tolist()]
            sizes.append(len(seen))
            assert len(set(seen)) == len(seen)
            beside.feed(model)
            finish(beside)
        assert sizes[:2] == [COUNT, COUNT], "the first selection was fed after the first epoch"
        assert max(sizes[2:]) < COUNT
        assert [one.epoch for one in beside.rounds] == [2, 3, 4, 5]
        assert [one.chosen for one in beside.rounds[:2]] == sizes[2:]
        first = beside.rounds[0]
        assert first.error is None
        assert first.fed is not None
        assert (first.fed.precision, first.scored_seconds > 0) == ("int8", True)
        assert loader.selection is not None
        assert loader.selection.selector == beside.name == "infobatch beside the data"
        assert loader.selection.weights.mean() == pytest.approx(1)
        fed = beside.rounds[2].fed
        assert fed is not None
        assert loader.selection.state == {"model": fed.version, "run": "mine"}, "it is saved along"
        assert loader.signals.notes["selection"]["state"] == loader.selection.state


def test_until_there_is_a_selection_epochs_visit_fresh_shares_as_large(colours: hw.Dataset) -> None:
    with closing(Beside("medoids", colours, STEPS, share=0.2, precision="fp32", run="mine")) as beside:
        beside.__dict__["_selects"] = stores = Canned(colours)
        assert beside.select_epoch(look(0, colours)) is None, "the first one visits everything"
        shares = [beside.select_epoch(look(epoch, colours)) for epoch in (1, 2, 3)]
        visited = [place for one in shares if one is not None for place in one.places.tolist()]
        assert len(visited) == len(set(visited)) == 3 * COUNT // 5
        assert shares[0] is not None
        assert (shares[0].selector, shares[0].state) == (beside.name, beside.state)
        beside.trained(1.0, whole=True, visited=COUNT // 5, everything=COUNT)
        stores.go.set()
        beside.feed(make_model())
        finish(beside)
        found = beside.select_epoch(look(4, colours))
        assert found is not None
        assert found.reason == "for 4"


def test_a_model_that_was_made_slim_is_the_proxy_from_then_on(colours: hw.Dataset) -> None:
    model = make_model()
    example = torch.zeros(1, 3, SIZE, SIZE)
    rule = SettledMask(deadline=1e-9, every=1)
    bird = hw.EarlyBird(model, ratio=0.5, steps=10, rule=rule, round_to=1, example=example)
    with closing(Beside(Always(InfoBatch(ratio=0.9)), colours, STEPS, run="mine")) as beside:
        loader = hw.DataLoader(colours, STEPS, batch_size=16, num_workers=0, select=beside, epochs=40)
        sizes, proxies = [], []
        for epoch in range(4):
            sizes.append(len([id for batch in loader for id in batch.ids.tolist()]))
            if epoch == 1:
                assert bird.observe(lr=0.1)
                bird.slim(None, [torch.rand(32, 3, SIZE, SIZE) * 4 - 2])
            beside.feed(model)
            finish(beside)
            fed = beside.rounds[-1].fed
            assert fed is not None, beside.rounds[-1].error
            proxies.append(beside._registry.version(fed.version).nbytes)
        assert [one.error for one in beside.rounds] == [None] * 4
        assert max(proxies[1:]) < 0.6 * proxies[0]
        assert beside.rounds[1].fed is not None
        assert loader.selection is not None
        assert sizes[3] < COUNT


def test_what_was_fed_is_used_in_the_epoch_after_the_one_that_was_begun(
    canned: tuple[Beside, Canned], colours: hw.Dataset
) -> None:
    beside, stores = canned
    stores.go.set()
    assert beside.select_epoch(look(0, colours)) is None
    beside.feed(make_model())
    finish(beside)
    (wish,) = stores.wishes
    assert (wish.epoch, wish.seed, wish.selector) == (1, 3, "infobatch")
    assert beside.select_epoch(look(0, colours)) is None, "that epoch had begun"
    found = beside.select_epoch(look(1, colours, stalled=0.25, epochs=3))
    assert found is not None
    assert (found.epoch, found.reason) == (1, "for 1")
    np.testing.assert_array_equal(found.places, np.arange(0, COUNT, 3), "in the order of the data")
    assert beside.select_epoch(look(2, colours)) is None, "there is no other"
    beside.feed(make_model())
    finish(beside)
    assert (stores.wishes[-1].epoch, stores.wishes[-1].ends, wish.ends) == (3, False, False)
    beside.select_epoch(look(3, colours, epochs=5, stalled=0.5))
    beside.feed(make_model())
    finish(beside)
    last = stores.wishes[-1]
    assert (last.epoch, last.epochs, last.stalled, last.ends) == (4, 5, 0.5, True)


def test_of_every_so_many_calls_one_counts(colours: hw.Dataset) -> None:
    with closing(Beside("fresh", colours, STEPS, share=0.4, every=3, precision="fp32")) as beside:
        beside.__dict__["_selects"] = stores = Canned(colours)
        stores.go.set()
        for epoch in range(7):
            beside.select_epoch(look(epoch, colours))
            beside.feed(make_model())
            finish(beside)
        assert [one.epoch for one in beside.rounds] == [1, 4, 7]
        assert [wish.parameters for wish in stores.wishes] == 3 * [{"share": 0.4}]


def test_nothing_is_selected_for_epochs_that_will_not_be(
    canned: tuple[Beside, Canned], colours: hw.Dataset
) -> None:
    beside, stores = canned
    stores.go.set()
    for epoch in range(5):  # the loader asks for the epoch that comes before the loop feeds
        beside.select_epoch(look(epoch, colours, epochs=4))
        beside.feed(make_model())
        finish(beside)
    assert [(wish.epoch, wish.ends) for wish in stores.wishes] == [(1, False), (2, False), (3, True)]
    assert len(beside.rounds) == 3


def test_training_goes_on_while_stores_select_and_waits_no_longer_than_an_epoch_takes(
    canned: tuple[Beside, Canned], colours: hw.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    beside, stores = canned
    beside.select_epoch(look(0, colours))
    beside.feed(make_model())  # returns at once, though stores take for ever
    beside.trained(0.05, whole=True, visited=COUNT, everything=COUNT)
    begun = time.monotonic()
    assert beside.select_epoch(look(1, colours)) is None
    assert time.monotonic() - begun < 30
    assert "a selection is late, the last one stands" in caplog.text
    assert beside.rounds[0].waited_seconds > 0
    stores.go.set()
    finish(beside)
    found = beside.select_epoch(look(2, colours))
    assert found is not None
    assert (found.epoch, found.reason) == (2, "for 1"), "late is better than never"


def test_a_late_round_is_waited_for_once_and_holds_back_none(
    canned: tuple[Beside, Canned], colours: hw.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    beside, stores = canned
    beside.select_epoch(look(0, colours))
    beside.feed(make_model())
    beside.trained(0.05, whole=True, visited=COUNT, everything=COUNT)
    for epoch in (1, 2, 3):
        assert beside.select_epoch(look(epoch, colours)) is None
        beside.feed(make_model())
        assert beside.rounds[-1].passed_over, "it does not stand in line"
    first = beside.rounds[0]
    assert (first.late, caplog.text.count("a selection is late")) == (True, 1)
    assert 0.05 <= first.waited_seconds < 2 * 0.05 + 1, "for the time of one epoch, not of three"
    stores.go.set()
    assert first.done.wait(SECONDS)
    beside.feed(make_model())
    finish(beside)
    found = beside.select_epoch(look(4, colours))
    assert found is not None
    assert found.reason == "for 4", "the newest, though the late one has come too"
    assert [wish.epoch for wish in stores.wishes] == [1, 4], "what was passed over is not made up for"


def test_a_slow_store_costs_no_epoch_and_is_asked_anew_when_it_is_done(folder: Path, tmp_path: Path) -> None:
    """Somebody else has its only place for models: it is late for as long as they please."""
    others = Asker("others", "others", "predict", lambda: False)
    with (
        running_daemon({"colours": folder}, state=tmp_path / "state", cores=1) as daemon,
        closing(hw.open(f"{daemon.serving.address}/colours")) as data,
        closing(Beside(InfoBatch(ratio=0.9), data, STEPS, precision="fp32")) as beside,
    ):
        loader = hw.DataLoader(data, STEPS, batch_size=16, shuffle=True, select=beside, epochs=40)
        with daemon._studios.engines.turn(0.0, others, memory=0):
            for _ in range(4):
                assert len([id for batch in loader for id in batch.ids.tolist()]) == COUNT
                beside.feed(make_model())
        first = beside.rounds[0]
        assert [one.passed_over for one in beside.rounds] == [False, True, True, True]
        assert first.late
        assert first.done.wait(SECONDS)
        beside.feed(make_model())
        finish(beside)
        sizes = [len([id for batch in loader for id in batch.ids.tolist()]) for _ in range(3)]
        chosen = first.chosen, beside.rounds[-1].chosen
        assert 0 < chosen[0] < COUNT
        assert sizes == [COUNT, *(chosen[1], chosen[1])]


def test_a_store_that_dies_costs_a_round(
    canned: tuple[Beside, Canned], colours: hw.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    beside, stores = canned
    stores.go.set()
    beside.select_epoch(look(0, colours))
    stores.error = Unreachable("stor-a does not answer")
    beside.feed(make_model())
    finish(beside)
    for epoch in (1, 2):
        assert beside.select_epoch(look(epoch, colours)) is None
    assert (
        caplog.text.count("a round of selection was lost, the last one stands: stor-a does not answer") == 1
    )
    stores.error = None
    beside.feed(make_model())
    finish(beside)
    assert beside.select_epoch(look(3, colours)) is not None


def test_what_would_go_wrong_again_is_raised(canned: tuple[Beside, Canned], colours: hw.Dataset) -> None:
    beside, stores = canned
    stores.go.set()
    stores.error = Refused("token 'reader' lacks scope 'jobs'")
    beside.feed(make_model())
    finish(beside)
    with pytest.raises(Refused, match="lacks scope 'jobs'"):
        beside.select_epoch(look(0, colours))
    stores.error = None
    beside.feed(make_model())
    finish(beside)
    assert beside.select_epoch(look(1, colours)) is not None, "somebody has seen to it"


class Endless:
    """Stores that answer, and whose job comes to no end unless nobody wants it any more."""

    def __init__(self, colours: hw.Dataset) -> None:
        self.stopped, self.after = 0, Canned(colours)
        self.after.go.set()

    def run(self, model: str, wish: SelectionWish, *, over: Callable[[], bool] = lambda: False) -> Selected:
        if self.stopped:
            return self.after.run(model, wish, over=over)
        while not over():
            time.sleep(0.01)
        self.stopped += 1
        raise Abandoned("nobody waits for this selection any more")


def test_a_round_that_comes_to_no_end_is_given_up_and_the_next_one_begins(
    colours: hw.Dataset, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Beside("infobatch", colours, STEPS, precision="fp32")) as beside:
        beside.__dict__["_selects"] = stores = Endless(colours)
        beside.select_epoch(look(0, colours))
        beside.feed(make_model())
        beside.trained(0.01, whole=True, visited=COUNT, everything=COUNT)
        assert beside.select_epoch(look(1, colours)) is None
        beside.feed(make_model())
        assert (beside.rounds[0].given_up, stores.stopped) == (False, 0), "a late one may still come"
        monkeypatch.setattr(module, "_FIRST_WAIT", 0.0)
        assert time.monotonic() - beside.rounds[0].begun > module._GIVEN_UP * 0.01
        beside.feed(make_model())
        assert beside.rounds[0].done.wait(SECONDS)
        assert (beside.rounds[0].given_up, stores.stopped) == (True, 1)
        assert beside.select_epoch(look(2, colours)) is None, "it costs rounds, and no epoch"
        beside.feed(make_model())
        finish(beside)
        found = beside.select_epoch(look(3, colours))
    assert [one.passed_over for one in beside.rounds] == [False, True, True, False]
    assert found is not None
    assert found.reason == "for 3"
    assert caplog.text.count("is given up; another will be begun") == 1


def follow(
    beside: Beside, colours: hw.Dataset, run: range, seconds: Callable[[int], float], **facts: object
) -> list[int]:
    """What epochs visit, if they take so long and training waits 50 s before each; in a loader's order."""
    sizes = []
    found = beside.select_epoch(look(run.start, colours, **facts))
    for epoch in run:
        beside._worth.spend(waited=50.0)
        sizes.append(COUNT if found is None else len(found))
        beside.trained(seconds(epoch), whole=True, visited=sizes[-1], everything=COUNT)
        found = beside.select_epoch(look(epoch + 1, colours, **facts)) or found
        if beside.dropped:
            break
        beside.feed(make_model())
        finish(beside)
    return sizes


def test_selecting_that_costs_more_than_it_saves_ends(
    canned: tuple[Beside, Canned], colours: hw.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    beside, stores = canned
    stores.go.set()
    sizes = follow(beside, colours, range(20), lambda epoch: 1.0 if epoch else 90.0)
    assert sizes == [COUNT, COUNT, 38, 38, 25, 22], "the first one selected for has nothing beside it"
    assert [one.passed_over for one in beside.rounds] == [False, True, False, False, False]
    found = beside.select_epoch(look(6, colours))
    assert found is not None
    assert found.reason.startswith("everything: selecting costs 50")
    assert beside.dropped == found.reason.removeprefix("everything: ")
    assert len(found) == COUNT
    assert (found.weights == 1).all()
    assert caplog.text.count("it ends, and epochs visit everything") == 1
    beside.feed(make_model())
    assert len(stores.wishes) == 4, "nothing more is fed"


def test_no_round_is_given_up_to_judge_by_where_too_few_epochs_are_left(
    canned: tuple[Beside, Canned], colours: hw.Dataset
) -> None:
    beside, stores = canned
    stores.go.set()
    follow(beside, colours, range(5), lambda epoch: 1.0, epochs=6)
    assert len(beside.rounds) > 2
    assert not any(one.passed_over for one in beside.rounds)


def test_a_selector_that_is_always_wanted_does_not_end(colours: hw.Dataset) -> None:
    with closing(Beside(Always(Fresh(share=0.4)), colours, STEPS, precision="fp32")) as beside:
        beside.__dict__["_selects"] = stores = Canned(colours)
        stores.go.set()
        found = []
        for epoch in range(6):
            found.append(beside.select_epoch(look(epoch, colours)))
            beside._worth.spend(waited=50.0)
            visited = COUNT if found[-1] is None else len(found[-1])
            beside.trained(1.0, whole=True, visited=visited, everything=COUNT)
            beside.feed(make_model())
            finish(beside)
        assert not beside.dropped, "though it does not pay"
        assert not any(one.passed_over for one in beside.rounds), "nobody wants to know whether it does"
        assert [None if one is None else len(one) for one in found] == [None, 50, 38, 30, 25, 22]
        assert beside.name == "fresh beside the data"
        assert {(wish.selector, wish.parameters["share"]) for wish in stores.wishes} == {("fresh", 0.4)}


@pytest.mark.parametrize("name", ["", "own"])
def test_a_run_that_goes_on_knows_that_it_selects_and_by_which_name(colours: hw.Dataset, name: str) -> None:
    stood = Selection("s", 3, np.arange(50), np.ones(50, np.float32), "r", state={"model": "m", "run": "was"})
    with closing(Beside("infobatch", colours, STEPS, precision="fp32", run=name)) as beside:
        beside.__dict__["_selects"] = stores = Canned(colours)
        stores.go.set()
        beside.resume(stood)
        for epoch in range(4, 9):
            beside.select_epoch(look(epoch, colours))
            beside._worth.spend(fed=1.0)
            beside.trained(50.0, whole=True, visited=50, everything=COUNT)
            beside.feed(make_model())
            finish(beside)
        assert not beside.dropped, "an epoch on everything would take 150 s"
        assert {wish.run for wish in stores.wishes} == {name or "was"}


def test_a_run_that_goes_on_knows_that_selecting_has_ended(colours: hw.Dataset) -> None:
    with closing(Beside("infobatch", colours, STEPS, precision="fp32")) as beside:
        state = {**beside.state, "dropped": "it costs too much"}
        beside.resume(Selection("s", 3, np.arange(COUNT), np.ones(COUNT, np.float32), "r", state=state))
        beside.feed(make_model())
        found = beside.select_epoch(look(4, colours))
    assert not beside.rounds
    assert found is not None
    assert (len(found), found.reason) == (COUNT, "everything: it costs too much")
    assert found.state == state, "the next one to go on knows it too"


def test_where_the_trunk_is_frozen_samples_differ_by_the_last_layers_gradient(
    canned: tuple[Beside, Canned], colours: hw.Dataset
) -> None:
    beside, stores = canned
    stores.go.set()
    model = make_model()
    beside.feed(model)
    finish(beside)
    model[:-1].requires_grad_(False)
    beside.feed(Wrapper(model))
    finish(beside)
    model[0].requires_grad_(True)
    beside.feed(model)
    finish(beside)
    assert [wish.vectors for wish in stores.wishes] == ["logits", "weights", "logits"]


@pytest.mark.parametrize("vectors", ["logits", "weights"])
def test_what_tells_samples_apart_can_be_said(colours: hw.Dataset, vectors: str) -> None:
    with closing(Beside("medoids", colours, STEPS, precision="fp32", vectors=vectors)) as beside:
        beside.__dict__["_selects"] = stores = Canned(colours)
        stores.go.set()
        beside.feed(make_model().requires_grad_(vectors == "logits"))
        finish(beside)
        assert stores.wishes[0].vectors == vectors


def test_a_frozen_trunk_selects_by_weights_in_a_run(colours: hw.Dataset) -> None:
    model = make_model().requires_grad_(False)
    chosen = []
    for vectors in (None, "weights", "logits"):
        with closing(
            Beside("medoids", colours, STEPS, share=0.2, precision="fp32", vectors=vectors)
        ) as beside:
            beside.select_epoch(look(0, colours))
            beside.feed(model)
            finish(beside)
            found = beside.select_epoch(look(1, colours))
            assert found is not None
            chosen.append(found.places.tolist())
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.fixture
def spots(tmp_path: Path) -> Path:
    """Pictures of which no crop is like another."""
    rng = np.random.default_rng(5)
    for name in COLOURS:
        (tmp_path / "spots" / name).mkdir(parents=True)
        for number in range(20):
            some = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).resize((3 * SIZE, 3 * SIZE))
            some.save(tmp_path / "spots" / name / f"{number}.png")
    return tmp_path / "spots"


def losses_of(model: nn.Module, data: hw.Dataset, steps: T.Compose, epoch: int) -> dict[int, float]:
    """As a loop has them in an epoch."""
    loader = hw.DataLoader(data, steps, batch_size=20, seed=3, num_workers=0)
    loader.set_epoch(epoch)
    found = {}
    with torch.no_grad():
        for batch in loader:
            losses = nn.functional.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
            found |= dict(zip(batch.ids.tolist(), losses.tolist(), strict=True))
    return found


@pytest.mark.parametrize("at_a_store", [True, False])
def test_samples_are_scored_as_the_loader_will_crop_them(
    spots: Path, tmp_path: Path, at_a_store: bool
) -> None:
    steps = T.Compose([T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)])
    model, state = make_model().eval(), tmp_path / "state"
    with torch.no_grad():
        model[-1].weight *= 20
    with (
        running_daemon({"spots": spots}, state=state) as daemon,
        closing(hw.open(f"{daemon.serving.address}/spots" if at_a_store else spots)) as data,
        closing(Beside(InfoBatch(ratio=0.9), data, steps, precision="fp32", run="mine")) as beside,
    ):
        loader = hw.DataLoader(data, steps, batch_size=20, seed=3, num_workers=0, select=beside, epochs=9)
        list(loader)
        beside.feed(model)
        finish(beside)
        assert beside.rounds[0].error is None
        assert beside.rounds[0].epoch == 2
        kept = state if at_a_store else Path(beside._folder.name)
        (table,) = (kept / "selections" / "runs").glob("*/*.arrow")
        found = read_signals(table, data.index).loss
        trained, other = (np.array(list(losses_of(model, data, steps, epoch).values())) for epoch in (2, 1))
    np.testing.assert_allclose(found, trained, atol=0.02, rtol=0.02)
    assert np.abs(found - other).mean() > 0.2, "in other epochs they are cropped otherwise"


def test_what_cannot_be_is_said_at_once(colours: hw.Dataset) -> None:
    for wrong, said in (
        (lambda: Beside("dance", colours, STEPS), "no selector 'dance'"),
        (
            lambda: Beside(InfoBatch(), colours, STEPS, share=0.5),
            "share is 0.5, and the selector has its own",
        ),
        (lambda: Beside("infobatch", colours, STEPS, share=0.5), "has no parameter 'share'"),
        (lambda: Beside("fresh", colours, STEPS, every=0), "every is 0"),
        (lambda: Beside("fresh", colours, STEPS, precision="int4"), "precision 'int4'"),
        (lambda: Beside("fresh", colours, STEPS, vectors="pixels"), "vectors of 'pixels'"),
        (
            lambda: Beside("fresh", colours.split(0.5, 0.5)[0], STEPS),
            "serve this part as a dataset of its own",
        ),
    ):
        with pytest.raises(WrongUse, match=said):
            wrong()


class Wrapper(nn.Module):
    """As DistributedDataParallel wraps a model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module(x)
        return found


def test_a_wrapped_model_is_unwrapped_and_its_weights_are_copied(
    canned: tuple[Beside, Canned], colours: hw.Dataset
) -> None:
    beside, stores = canned
    model = make_model()
    beside.feed(Wrapper(model))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.fill_(float("nan"))
    stores.go.set()
    finish(beside)
    assert beside.rounds[0].error is None


def test_it_lets_go_of_what_it_has(colours: hw.Dataset) -> None:
    beside = Beside("fresh", colours, STEPS)
    place = Path(beside._folder.name)
    assert place.exists()
    del beside
    gc.collect()
    assert not place.exists()


def test_a_token_that_may_not_is_told_when_training_begins_to_wait(folder: Path, tmp_path: Path) -> None:
    secret = "x" * 24
    tokens = write_tokens(tmp_path, reader={"secret": secret, "scopes": ["read"]})
    with (
        running_daemon({"colours": folder}, state=tmp_path / "state", token_file=tokens) as daemon,
        closing(hw.open(f"{daemon.serving.address}/colours", token=secret)) as data,
        closing(Beside("fresh", data, STEPS, precision="fp32")) as beside,
    ):
        beside.feed(make_model())
        finish(beside)
        with pytest.raises(Refused, match="lacks scope 'models'"):
            beside.select_epoch(look(0, data))
