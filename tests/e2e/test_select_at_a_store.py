"""Real stores select among their own samples: over the wire, as shards, as replicas, and when killed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headwater as hw
from exports import MEAN, STD, as_they_are, fitted
from headwater import transforms as T
from headwater.errors import HeadwaterError, Refused, StoreLost, WrongUse
from headwater.loader.beside import Beside
from headwater.models.quantise import quantise
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.select import Always, Fresh
from headwater.select.scoring import rank_correlation, score
from headwater.select.selecting import make_selection
from headwater.select.specs import make_selector
from headwater.store.client.connection import Connection
from headwater.store.client.errand import Abandoned
from headwater.store.client.jobs import JobClient
from headwater.store.client.link import Link
from headwater.store.client.remote import RemoteStore
from headwater.store.client.selecting import Selected
from headwater.store.jobs.record import RELABEL, STOPPED, UNFINISHED
from headwater.store.pushing import bring_over
from headwater.store.selecting import selects_at
from headwater.store.wire.jobmessages import SelectionWish
from nets import CLASSES as COLOURS
from nets import SIZE, plain
from relabelling import nudged
from sieves import NAMES, columns, proxy, samples, write_labelled
from stores import StoreProcess, running_daemon, write_tokens
from tunings import write_colours

COUNT, BROKEN = 60, 2
WISH = SelectionWish("infobatch", {"ratio": 0.6}, seed=7, epoch=2)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labelled(tmp_path_factory.mktemp("photos"), COUNT, broken=BROKEN)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a store that holds a proxy."""
    Registry(tmp_path / "state" / "models").put(proxy(), name="small", switch=True)
    return tmp_path / "state"


def select_at(address: str | list[str], wish: SelectionWish = WISH, **more: Any) -> Selected:
    opened = {name: more.pop(name) for name in ("token", "link") if name in more}
    with closing(hw.open(address, **opened)) as data:
        return selects_at(data.store, **{name: more.pop(name) for name in ("bring",) if name in more}).run(
            "small", wish, **more
        )


def sound(data: hw.Dataset) -> list[int]:
    return [place for place in range(len(data)) if "broken" not in data.index.key(place)]


def here(photos: Path, wish: SelectionWish) -> set[int]:
    """What the selector chooses by this process alone, and the files that cannot be scored."""
    data = hw.open(photos)
    places = np.array(sound(data))
    images = np.stack([crop(data[place].decode()) for place in places])
    features = Engine(proxy()).features(images).astype(np.float16)
    selector = make_selector(wish.selector, wish.parameters)
    known = columns(proxy(), features, data.labels[places])
    chosen = make_selection(
        selector,
        samples(data.ids[places], data.labels[places], known, seed=wish.seed, epoch=wish.epoch),
    )
    rest = np.setdiff1d(np.arange(len(data)), places)
    return {int(id) for id in data.ids[np.concatenate((places[chosen.places], rest))]}


def crop(image: np.ndarray) -> np.ndarray:
    top, left = (image.shape[0] - 8) // 2, (image.shape[1] - 8) // 2
    return image[top : top + 8, left : left + 8]


def test_a_store_selects_what_the_selector_selects_here(photos: Path, state: Path) -> None:
    with running_daemon({"photos": photos}, state=state) as daemon:
        address = f"{daemon.serving.address}/photos"
        for wish in (WISH, SelectionWish("biggest_losers", seed=1, epoch=1), SelectionWish("fresh", epoch=5)):
            found = select_at(address, wish)
            assert set(found.ids.tolist()) == here(photos, wish), wish
            assert found.samples == 3 * COUNT + BROKEN
            assert found.counts["scored"] == 3 * COUNT
            assert found.counts["failed"] == BROKEN
            assert len(found.ids) == found.counts["chosen"] < found.samples
            assert found.weights.mean() == pytest.approx(1)
            raw = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
            assert 12 * len(found.ids) < found.bytes_moved < raw / 20
            assert found.seconds > 0
        failed = daemon._jobs.jobs.list()[0].failures
        assert {one.key.rpartition("/")[2] for one in failed} == {f"broken-{n}.jpg" for n in range(BROKEN)}
        metrics = daemon._ledger.snapshot()
        assert metrics["headwater_selected_total"]["scored"] == 9 * COUNT  # type: ignore[index]
        assert metrics["headwater_bytes_sent_total"]["selection"] > 0  # type: ignore[index]


def test_a_store_knows_what_its_samples_take_on_the_plan_in_force(photos: Path, state: Path) -> None:
    """After an epoch of crops, bytes are those of the crops and not of the files."""
    with (
        running_daemon({"photos": photos}, state=state) as daemon,
        closing(hw.open(f"{daemon.serving.address}/photos")) as data,
    ):
        steps = [T.CenterCrop(8)]
        for _ in hw.DataLoader(data, steps, batch_size=16, offload=hw.Offload(3), on_error="skip"):
            pass
        load = daemon._jobs._desk.loads.of(data.index)
        assert load is not None
        places = sound(data)
        assert set(load.bytes[places].tolist()) == {8 * 8 * 3}
        assert (load.seconds[places] > 0).all()


def test_a_large_selection_comes_in_pages(photos: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.store.wire.selectionpages.SELECTION_ROWS", 13)
    with running_daemon({"photos": photos}, state=state) as daemon:
        found = select_at(f"{daemon.serving.address}/photos")
        assert set(found.ids.tolist()) == here(photos, WISH)
        requests = daemon._ledger.snapshot()["headwater_requests_total"]
        assert requests["selection"] == -(-len(found.ids) // 13)  # type: ignore[index]


def test_what_cannot_be_is_refused_by_name(photos: Path, state: Path) -> None:
    with running_daemon({"photos": photos}, state=state) as daemon:
        address = f"{daemon.serving.address}/photos"
        for wish, said in (
            (SelectionWish("dance"), "there is no selector 'dance'; choose from uniform"),
            (
                SelectionWish("uniform", {"size": 2}),
                "selector 'uniform' has no parameter 'size'; it has share",
            ),
            (
                SelectionWish("uniform", {"share": "half"}),
                "parameter 'share' of selector 'uniform' is 'half'",
            ),
            (SelectionWish("uniform", {"share": 2.0}), "share is 2.0"),
        ):
            with pytest.raises(WrongUse, match=said):
                select_at(address, wish)
        assert daemon._jobs.jobs.list() == []
    with running_daemon({"photos": photos}) as bare, pytest.raises(WrongUse, match="--state"):
        select_at(f"{bare.serving.address}/photos")


def test_scopes_of_tokens(photos: Path, state: Path, tmp_path: Path) -> None:
    """Beginning takes `jobs`, and what comes back, like all that tells of samples, takes `read`."""
    scopes = {"reader": ["read", "models", "labels", "admin"], "trainer": ["read", "jobs"]}
    secrets = {name: f"{name}-{'x' * 24}" for name in scopes}
    entries = {name: {"secret": secrets[name], "scopes": scopes[name]} for name in scopes}
    audit = tmp_path / "audit.jsonl"
    settings = {"token_file": write_tokens(tmp_path, **entries), "audit_log": audit}
    with running_daemon({"photos": photos}, state=state, **settings) as daemon:
        address = f"{daemon.serving.address}/photos"
        with pytest.raises(Refused, match="lacks scope 'jobs'"):
            select_at(address, token=secrets["reader"])
        assert len(select_at(address, token=secrets["trainer"]).ids)
        daemon.tick()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    told = [line for line in lines if line["caller"] == "trainer"]
    assert {"job_start", "jobs", "selection"} <= {line["action"] for line in told}
    (begun,) = [line for line in told if line["action"] == "job_start"]
    assert (begun["job"], begun["of"]) == ("select", "photos")


def test_the_proxy_is_brought_and_the_next_one_as_a_delta(photos: Path, tmp_path: Path) -> None:
    """A new head crosses alone; when the run ends, nothing of it is left at the store."""
    registry, made = Registry(tmp_path / "mine"), {"by": "proxy", "run": "mine"}
    with (
        running_daemon({"photos": photos}, state=tmp_path / "state") as daemon,
        closing(hw.open(f"{daemon.serving.address}/photos")) as data,
    ):
        sent = []

        def bring(connection: Connection) -> int:
            delivery = bring_over(registry, connection, version.digest)
            assert delivery.error is None, delivery.error
            sent.append((delivery.kind, delivery.sent_bytes))
            return delivery.sent_bytes

        selects, held = selects_at(data.store, bring=bring), Registry(tmp_path / "state" / "models")
        for epoch in range(3):
            version = registry.put(nudged(proxy(), 0.5 * epoch), name="proxy", made=made)
            wish = msgspec.structs.replace(WISH, epoch=epoch, run="mine", ends=epoch == 2)
            found = selects.run(version.digest, wish)
            assert found.bytes_moved > sent[-1][1] > 0
            left = [one.digest for one in held.versions()]
            assert left == ([] if epoch == 2 else [version.digest]), "no more than the next one needs"
        assert [kind for kind, _ in sent] == ["whole", "delta", "delta"]
        assert sent[1][1] < sent[0][1] * 0.9


def test_a_selection_does_not_wait_for_a_relabel(photos: Path, state: Path) -> None:
    """That waits itself, for a label database that is away."""
    away = "postgresql+psycopg://nobody@127.0.0.1:1/labels"
    with (
        running_daemon({"photos": photos}, state=state, labels=away) as daemon,
        closing(hw.open(f"{daemon.serving.address}/photos")) as data,
    ):
        assert isinstance(data.store, RemoteStore)
        jobs = JobClient(data.store.replicas.all[0].connection)
        other = jobs.start(RELABEL, dataset="photos", model="small")
        found = selects_at(data.store).run("small", WISH)
        (left,) = jobs.look([other.id])
        assert left.state in UNFINISHED
        assert set(found.ids.tolist()) == here(photos, WISH)


def test_who_gives_up_ends_the_job(photos: Path, state: Path) -> None:
    with running_daemon({"photos": photos}, state=state, cores=0.02) as daemon:
        begun = time.monotonic()
        with pytest.raises(Abandoned):
            select_at(f"{daemon.serving.address}/photos", over=lambda: time.monotonic() > begun + 0.5)
        assert [job.state for job in daemon._jobs.jobs.list()] == [STOPPED]


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Two shards of different sizes, with classes of which they share some."""
    one = write_labelled(tmp_path / "one", 20, classes=NAMES[:2])
    two = tmp_path / "two"
    write_labelled(two, 40, classes=NAMES[1:])
    for number, path in enumerate(sorted(two.rglob("*.jpg"))):
        path.rename(path.with_name(f"second-{number}.jpg"))
    return [one, two]


def test_shards_select_at_once_and_their_samples_are_one_selection(parts: list[Path], tmp_path: Path) -> None:
    with ExitStack() as stack:
        addresses = []
        for number, part in enumerate(parts):
            Registry(tmp_path / f"state{number}" / "models").put(proxy(), name="small", switch=True)
            daemon = stack.enter_context(running_daemon({"photos": part}, state=tmp_path / f"state{number}"))
            addresses.append(f"{daemon.serving.address}/photos")
        wish = SelectionWish("uniform", {"share": 0.25})
        found = select_at(addresses, wish)
        with closing(hw.open(addresses)) as data:
            assert found.samples == len(data) == 120
            assert len(data.index.position_of(found.ids)) == 30
        alone = [set(select_at(address, wish).ids.tolist()) for address in addresses]
        assert set(found.ids.tolist()) == alone[0] | alone[1]
        assert found.counts == {"scored": 120, "unlabelled": 0, "failed": 0, "chosen": 30}
        assert found.weights.mean() == pytest.approx(1)


QUICK = Link(deadline_seconds=2, give_up_seconds=3)


class Asking(threading.Thread):
    """Asks for a selection, and keeps what came of it."""

    def __init__(self, call: Callable[[], Selected]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.found: Selected | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self._call()
        except HeadwaterError as error:
            self.error = error


def wait_until_it_works(state: Path) -> None:
    end = time.monotonic() + 60
    while not any(
        json.loads(path.read_text())["state"] == "running" for path in (state / "jobs").glob("*.json")
    ):
        assert time.monotonic() < end, "no job was begun"
        time.sleep(0.01)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    return write_labelled(tmp_path / "many", 150)


def slow_store(photos: Path, state: Path) -> StoreProcess:
    Registry(state / "models").put(proxy(), name="small", switch=True)
    return StoreProcess({"photos": photos}, state=state, cores=0.1, feature_bytes=0)


@pytest.mark.slow
def test_a_store_that_is_killed_is_lost_and_one_that_comes_back_goes_on(many: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with slow_store(many, state) as store, closing(hw.open(f"{store.address}/photos", link=QUICK)) as data:
        selects = selects_at(data.store)
        asking = Asking(lambda: selects.run("small", WISH))
        wait_until_it_works(state)
        begun = time.monotonic()
        store.kill()
        asking.join(30)
        assert isinstance(asking.error, StoreLost), asking.error
        assert time.monotonic() - begun < 15
    with store, closing(hw.open(f"{store.address}/photos")) as data:
        asking = Asking(lambda: selects_at(data.store).run("small", WISH))
        wait_until_it_works(state)
        store.restart()
        asking.join(120)
        assert asking.error is None, asking.error
        assert asking.found is not None
        assert set(asking.found.ids.tolist()) == here(many, WISH)


@pytest.mark.slow
def test_a_replica_selects_where_another_was_killed(many: Path, tmp_path: Path) -> None:
    states = [tmp_path / f"state{number}" for number in range(2)]
    with (
        slow_store(many, states[0]) as first,
        slow_store(many, states[1]) as second,
        closing(hw.open([f"{one.address}/photos" for one in (first, second)], link=QUICK)) as data,
    ):
        assert isinstance(data.store, RemoteStore)
        places = {one.address.rpartition("/")[2]: one for one in (first, second)}
        chosen = places[data.store.replicas.all[0].name]
        selects = selects_at(data.store)
        asking = Asking(lambda: selects.run("small", WISH))
        wait_until_it_works(states[0] if chosen is first else states[1])
        chosen.kill()
        asking.join(120)
        assert asking.error is None, asking.error
        assert asking.found is not None
        assert set(asking.found.ids.tolist()) == here(many, WISH)


@pytest.fixture
def colours(tmp_path: Path) -> Iterator[hw.Dataset]:
    data = hw.open(write_colours(tmp_path / "colours", 60, size=SIZE))
    yield data
    data.close()


def test_an_int8_proxy_ranks_losses_as_fp32_does(colours: hw.Dataset, tmp_path: Path) -> None:
    """And so a store that has it selects nearly the same."""
    model = as_they_are(fitted())
    pixels = [colours[place].decode() for place in range(len(colours))]
    quantised = quantise(model, pixels, bound=0.5)
    assert quantised.accepted, quantised.reason
    targets = np.array([COLOURS.index(colours.classes[label]) for label in colours.labels])
    losses = []
    for one in (model, quantised.model):
        engine = Engine(one)
        losses.append(score(engine.logits(engine.features(np.stack(pixels))), targets).loss)
    assert rank_correlation(*losses) > 0.9
    registry = Registry(tmp_path / "state" / "models")
    registry.put(model, name="whole", switch=True)
    registry.put(quantised.model, name="small", switch=True, unmeasured=True)
    with (
        running_daemon({"colours": colours.uri}, state=tmp_path / "state") as daemon,
        closing(hw.open(f"{daemon.serving.address}/colours")) as data,
    ):
        selects = selects_at(data.store)
        wish = SelectionWish("infobatch", {"ratio": 0.9}, seed=3, epoch=1)
        exact, near = (set(selects.run(name, wish).ids.tolist()) for name in ("whole", "small"))
    assert len(exact & near) / len(exact | near) > 0.8


STEPS = T.Compose([T.CenterCrop(SIZE), T.Normalize(MEAN, STD)])


@pytest.mark.slow
def test_a_store_that_dies_while_it_selects_costs_a_round_and_no_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed, and back when who selects has given up: what was fed is lost, and training goes on."""
    folder, state, model = (
        write_colours(tmp_path / "all", 50, size=SIZE),
        tmp_path / "state",
        plain(classes=3),
    )
    with (
        StoreProcess({"colours": folder}, state=state, cores=0.5, feature_bytes=0) as store,
        closing(hw.open(f"{store.address}/colours")) as data,
        closing(hw.open(f"{store.address}/colours", link=QUICK)) as impatient,
        closing(Beside("infobatch", impatient, STEPS, run="mine")) as beside,
    ):
        loader = hw.DataLoader(data, STEPS, batch_size=25, shuffle=True, select=beside, epochs=40)
        seen = [visit(loader)]
        beside.feed(model)
        wait_until_it_works(state)
        store.kill()
        assert beside.rounds[0].done.wait(60)
        assert isinstance(beside.rounds[0].error, StoreLost)
        store.restart()
        seen += [visit(loader), visit(loader)]
        assert [len(ids) for ids in seen] == [150, 150, 150]
        assert "a round of selection was lost, the last one stands" in caplog.text
        beside.feed(model)
        assert beside.rounds[1].done.wait(60)
        seen += [visit(loader), visit(loader)]
        assert [one.epoch for one in beside.rounds] == [2, 4]
        assert (len(seen[3]), len(seen[4])) == (150, beside.rounds[1].chosen)
        assert 0 < len(seen[4]) < 150


@pytest.mark.parametrize("offload", [hw.Offload(2), hw.Offload(3, "zstd"), hw.Offload(0)], ids=str)
def test_what_was_cropped_to_score_a_sample_is_sent_if_it_is_chosen(
    tmp_path: Path, offload: hw.Offload
) -> None:
    """Where the plan asks for pixels: made once, and the very pixels that the trainer would make."""
    folder, model = write_colours(tmp_path / "all", 20, size=SIZE + 4), plain(classes=3)
    steps = T.Compose([T.RandomCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)])
    settings = {"batch_size": 10, "shuffle": True, "seed": 5}
    with closing(hw.open(folder)) as local:
        whole = hw.DataLoader(local, steps, **settings)
        truth = [dict(pictures(whole)) for _ in range(4)]
    with (
        running_daemon({"colours": folder}, state=tmp_path / "state") as daemon,
        closing(hw.open(f"{daemon.serving.address}/colours")) as data,
        closing(Beside(Always("infobatch"), data, steps)) as beside,
    ):
        loader = hw.DataLoader(data, steps, select=beside, offload=offload, **settings)
        for epoch in range(4):
            before = sent(daemon)
            seen = dict(pictures(loader))
            assert all(np.array_equal(image, truth[epoch][id]) for id, image in seen.items())
            # the first was not selected for, the second has nobody to select for it
            held = len(seen) if epoch >= 2 and offload.cut else 0
            assert sent(daemon) - before == held
            beside.feed(model)
            assert beside.rounds[-1].done.wait(60)
            assert beside.rounds[-1].error is None
        assert 0 < beside.rounds[-1].chosen < len(data)
        crops = daemon._jobs._desk.prefix.crops
        least = sum(one.chosen for one in beside.rounds[-2:]) * SIZE * SIZE * 3  # for the two epochs to come
        assert least <= crops.nbytes < 1.5 * least if offload.cut else crops.nbytes == 0
        crops.forget(data.ids)
        assert crops.nbytes == 0


def pictures(loader: hw.DataLoader) -> Iterator[tuple[int, np.ndarray]]:
    for batch in loader:
        yield from zip(batch.ids.tolist(), batch.inputs.numpy(), strict=True)


def sent(daemon: Any) -> int:
    return int(daemon._ledger.snapshot()["headwater_crops_total"]["sent"])


def visit(loader: hw.DataLoader) -> set[int]:
    seen = [id for batch in loader for id in batch.ids.tolist()]
    assert len(set(seen)) == len(seen)
    return set(seen)


@pytest.mark.slow
def test_what_a_round_moves_over_the_link(tmp_path: Path) -> None:
    """Weights of int8, the next ones as a delta, and of the samples those that were selected."""
    folder, model = write_colours(tmp_path / "all", 50, size=SIZE), plain(classes=3)
    with (
        running_daemon({"colours": folder}, state=tmp_path / "state") as daemon,
        closing(hw.open(f"{daemon.serving.address}/colours")) as data,
        closing(Beside(Always(Fresh(0.3)), data, STEPS)) as beside,
    ):
        loader = hw.DataLoader(data, STEPS, batch_size=25, select=beside)
        moved = []
        for _ in range(4):
            before = loader.stats().bytes_moved
            visit(loader)
            moved.append(loader.stats().bytes_moved - before)
            beside.feed(model)
            assert beside.rounds[-1].done.wait(60)
            assert beside.rounds[-1].error is None
        assert [one.fed.precision for one in beside.rounds if one.fed] == 4 * ["int8"]
        first, *others = [one.bytes_moved for one in beside.rounds]
        assert max(others) < first
        assert moved[2] < 0.35 * moved[0]
        (left,) = Registry(tmp_path / "state" / "models").versions()
        assert left.made["by"] == "proxy"
