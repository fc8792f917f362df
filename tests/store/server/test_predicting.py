"""Predictions beside the data: the labels of the offline engine, together or alone, and clean failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from datasets import make_photo
from headwater.engine.budget import Gone
from headwater.errors import (
    DatasetNotFound,
    HeadwaterError,
    InboxFull,
    ModelError,
    ModelNotFound,
    SampleCorrupt,
    SampleTooLarge,
    WrongUse,
)
from headwater.models.registry import Registry
from headwater.store.labels import open_labels
from headwater.store.labels.rows import Source
from headwater.store.local import LocalStore
from headwater.store.server.batching import Overloaded
from headwater.store.server.inbox import Inbox
from headwater.store.server.keeping import Keeper
from headwater.store.server.predicting import Predictor, Question
from headwater.store.server.shard import Arrival
from headwater.store.server.state import State
from headwater.store.wire.messages import Prediction
from headwater.tune.predict import predict_here
from labelled import Kind
from relabelling import CLASSES, nudged, small_model, write_photos
from workshops import Workshop, open_workshop

COUNT = 40
ASK = Question("photos")
KEEP = Question("photos", keep=True)


@pytest.fixture(scope="module")
def place(shared_label_kind: Kind) -> str | None:
    """Where labels are kept, if not in the store's own file."""
    return shared_label_kind.of_a_store()


@pytest.fixture(scope="module")
def shop(place: str | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("predicting")
    write_photos(folder / "photos", COUNT)
    Registry(folder / "state" / "models").put(small_model(), name="small", switch=True)
    with open_workshop(folder / "photos", folder / "state", labels=place) as made:
        made.workers.start()
        yield made


@pytest.fixture
def keeper(shop: Workshop) -> Iterator[Keeper]:
    with closing(Keeper(shop.state, ["photos", "x" * 60])) as made:
        yield made


@pytest.fixture
def predictor(shop: Workshop, keeper: Keeper) -> Iterator[Predictor]:
    with Predictor(shop.state, shop.desk, shop.studios, keeper, bound_seconds=60.0) as made:
        yield made


@pytest.fixture(scope="module")
def images(shop: Workshop) -> list[bytes]:
    return [bytes(file) for file in shop.store.read(np.arange(COUNT))]


@pytest.fixture(scope="module")
def truth(shop: Workshop) -> list[Prediction]:
    """By this process alone."""
    folder = Path(shop.store.uri)
    paths = [folder / shop.store.key(place) for place in range(COUNT)]
    found = [one.prediction for one in predict_here(paths, shop.state.registry, top=3)]
    assert all(found)
    return [one for one in found if one is not None]


def send(predictor: Predictor, image: bytes, question: Question = ASK) -> Future[Prediction]:
    place = predictor.admit(question)
    return predictor.bring(place, question, image)


def ask(predictor: Predictor, image: bytes, question: Question = ASK) -> Prediction:
    return send(predictor, image, question).result(20)


def same(found: Sequence[Prediction], expected: Sequence[Prediction]) -> None:
    assert [one.label for one in found] == [one.label for one in expected]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], rtol=1e-3)
    np.testing.assert_allclose(
        [one.margin for one in found], [one.margin for one in expected], rtol=1e-2, atol=1e-2
    )


def test_concurrent_askers_get_what_the_offline_engine_says(
    shop: Workshop, predictor: Predictor, images: list[bytes], truth: list[Prediction]
) -> None:
    before = shop.desk.ledger.snapshot()["headwater_predict_batches_total"]
    places = [predictor.admit(ASK) for _ in images]
    answers = [predictor.bring(place, ASK, image) for place, image in zip(places, images, strict=True)]
    same([answer.result(20) for answer in answers], truth)
    after = shop.desk.ledger.snapshot()["headwater_predict_batches_total"]
    assert isinstance(before, float | int)
    assert isinstance(after, float | int)
    assert 0 < after - before < COUNT / 2, "they were answered together"


def test_the_best_classes_come_in_order(
    predictor: Predictor, images: list[bytes], truth: list[Prediction]
) -> None:
    found = ask(predictor, images[0], Question("photos", top=3))
    assert [guess.label for guess in found.top] == [guess.label for guess in truth[0].top]
    assert found.top[0].label == found.label
    assert found.top[0].score == pytest.approx(found.score, rel=1e-5)
    assert len(ask(predictor, images[0], Question("photos", top=100)).top) == len(CLASSES)
    assert (found.id, found.key) == (None, "")


def test_names_and_digests_choose_the_model(
    shop: Workshop, predictor: Predictor, images: list[bytes]
) -> None:
    version = shop.state.registry.current("small")
    other = shop.state.registry.put(nudged(small_model(), 3.0), name="other")
    for model in ("", "small", version.digest, version.digest[:9]):
        assert ask(predictor, images[0], Question("photos", model)).version == version.digest
    assert ask(predictor, images[0], Question("photos", other.digest)).version == other.digest
    with pytest.raises(ModelNotFound) as caught:
        ask(predictor, images[0], Question("photos", "strange"))
    assert str(shop.state.folder) not in str(caught.value)


def broken(kind: str) -> bytes:
    photo = make_photo(np.random.default_rng(0), 24, 32)
    giant = bytearray(photo)
    at = giant.index(b"\xff\xc0") + 5
    giant[at : at + 4] = b"\xff\xff\xff\xff"
    return {"text": b"hello", "truncated": photo[:200], "giant": bytes(giant), "gif": b"GIF89a" + bytes(50)}[
        kind
    ]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("text", SampleCorrupt),
        ("truncated", SampleCorrupt),
        ("giant", SampleTooLarge),
        ("gif", SampleCorrupt),
    ],
)
def test_one_bad_image_fails_alone(
    shop: Workshop, predictor: Predictor, images: list[bytes], kind: str, error: type[Exception]
) -> None:
    places = [predictor.admit(KEEP) for _ in range(3)]
    bodies = [images[0], broken(kind), images[1]]
    answers = [predictor.bring(place, KEEP, body) for place, body in zip(places, bodies, strict=True)]
    assert answers[0].result(20).label
    assert answers[2].result(20).label
    with pytest.raises(error):
        answers[1].result(20)


def test_what_is_kept_has_a_row_and_what_is_not_has_none(
    shop: Workshop, keeper: Keeper, predictor: Predictor, images: list[bytes], truth: list[Prediction]
) -> None:
    asked = [KEEP if number % 2 else ASK for number in range(10)]
    places = [predictor.admit(question) for question in asked]
    answers = [
        predictor.bring(place, question, image)
        for place, question, image in zip(places, asked, images, strict=False)
    ]
    found = [answer.result(20) for answer in answers]
    assert [one.id is not None for one in found] == [question.keep for question in asked]
    kept = {one.id: one for one in found if one.id is not None}
    labels = shop.state.labels
    names = labels.classes("photos-inbox").names
    rows = labels.get("photos-inbox", list(kept))
    assert {int(id): names[label] for id, label in zip(rows.samples, rows.labels, strict=True)} == {
        id: one.label for id, one in kept.items()
    }
    assert set(rows.sources.tolist()) == {Source.MODEL}
    np.testing.assert_allclose(rows.scores, [kept[int(id)].score for id in rows.samples], rtol=1e-6)
    assert {labels.model(found[1].version).number} == set(rows.models.tolist())
    again = ask(predictor, images[1], KEEP)
    assert again.id == found[1].id, "sent again, it is kept once"
    same(found, truth[:10])


def test_sealed_it_is_a_dataset_whose_samples_have_these_rows(
    shop: Workshop, images: list[bytes], tmp_path: Path
) -> None:
    published: dict[str, LocalStore] = {}
    keeper = Keeper(shop.state, ["photos"], published.__setitem__)
    with Predictor(shop.state, shop.desk, shop.studios, keeper, bound_seconds=60.0) as predictor:
        found = [ask(predictor, image, KEEP) for image in images[20:26]]
        sealed = keeper.seal("photos")
        assert sealed.dataset == "photos-inbox"
        index = published["photos-inbox"].index
        assert (sealed.version, sealed.samples) == (index.version, len(index))
        assert {one.id for one in found} <= set(index.ids.tolist())
        assert keeper.seal("photos").version == sealed.version
        stores = dict(Keeper(shop.state, ["photos"]).restore())
        assert stores["photos-inbox"].index.version == sealed.version
        for store in [*stores.values(), *published.values()]:
            store.close()
    keeper.close()


def test_after_an_undo_keeping_goes_on_as_another_revision(
    shop: Workshop, predictor: Predictor, images: list[bytes]
) -> None:
    ask(predictor, images[30], KEEP)
    labels = shop.state.labels
    labels.undo("photos-inbox")
    found = ask(predictor, images[31], KEEP)
    assert len(labels.get("photos-inbox", [found.id])) == 1
    again = ask(predictor, images[30], KEEP)
    assert len(labels.get("photos-inbox", [again.id])) == 1


def test_one_revision_tells_of_many_images(shop: Workshop, predictor: Predictor, images: list[bytes]) -> None:
    ask(predictor, images[32], KEEP)
    before = len(shop.state.labels.log("photos-inbox"))
    for image in images[33:36]:
        ask(predictor, image, KEEP)
    assert len(shop.state.labels.log("photos-inbox")) == before


def test_what_cannot_be_asked(shop: Workshop, predictor: Predictor, keeper: Keeper) -> None:
    with pytest.raises(DatasetNotFound):
        predictor.admit(Question("others", keep=True))
    with pytest.raises(WrongUse, match="too long"):
        predictor.admit(Question("x" * 60, keep=True))
    for top in (0, -1, 101):
        with pytest.raises(WrongUse):
            Question("photos", top=top)
    bare = Predictor(None, shop.desk, shop.studios, Keeper(None, ["photos"]), bound_seconds=1.0)
    with pytest.raises(ModelError, match="--state"):
        bare.admit(ASK)


def test_who_hung_up_costs_nothing_and_keeps_nobody_waiting(
    predictor: Predictor, images: list[bytes], truth: list[Prediction]
) -> None:
    gone = predictor.admit(ASK)
    assert ask(predictor, images[0]).label == truth[0].label
    predictor.leave(gone)
    assert ask(predictor, images[0]).label == truth[0].label


def test_nobody_waits_in_a_queue_without_end(shop: Workshop, keeper: Keeper, images: list[bytes]) -> None:
    """A store whose cores are spent turns away whom it cannot answer in time, and answers the others."""
    with Predictor(shop.state, shop.desk, shop.studios, keeper, bound_seconds=0.05) as predictor:
        answers, refused = [], 0
        for _ in range(200):
            try:
                answers.append(send(predictor, images[0]))
            except Overloaded:
                refused += 1
        assert refused > 100
        assert len({answer.result(20).label for answer in answers}) == 1
        assert predictor.waiting == 0


def test_who_waited_too_long_is_told_to_ask_again(
    shop: Workshop, keeper: Keeper, images: list[bytes]
) -> None:
    now = [0.0]
    predictor = Predictor(
        shop.state, shop.desk, shop.studios, keeper, bound_seconds=60.0, clock=lambda: now[0]
    )
    place = predictor.admit(ASK)
    with predictor._changed:  # no thread may take it yet
        answer = predictor.bring(place, ASK, images[0])
        now[0] = 11.0
    with predictor, pytest.raises(Overloaded):
        answer.result(20)


def test_closing_answers_everybody(shop: Workshop, keeper: Keeper, images: list[bytes]) -> None:
    predictor = Predictor(shop.state, shop.desk, shop.studios, keeper, bound_seconds=60.0)
    shop.cores.spent(shop.cores.cores)  # so that they are still under way
    with predictor:
        answers = [send(predictor, image) for image in images[:6]]
        time.sleep(0.05)
    for answer in answers:
        if isinstance(error := answer.exception(10), HeadwaterError):
            assert isinstance(error, Gone)
    assert not [thread for thread in threading.enumerate() if "headwater-predict" in thread.name]


def test_labels_that_cannot_be_written_are_told_and_a_retry_is_whole(
    shop: Workshop, images: list[bytes], tmp_path: Path
) -> None:
    """The image is there and its row is not: nobody was told that it is kept, and sent again it is, once."""
    keeper = Keeper(shop.state, ["photos"])
    with Predictor(shop.state, shop.desk, shop.studios, keeper, bound_seconds=60.0) as predictor:
        first = ask(predictor, images[37], KEEP)
        keeper._boxes["photos"].numbers[first.version] = (10**9, np.zeros(len(CLASSES), np.int32))
        with pytest.raises(HeadwaterError):
            ask(predictor, images[38], KEEP)
        found = ask(predictor, images[38], KEEP)
        assert len(shop.state.labels.get("photos-inbox", [found.id])) == 1
    keeper.close()


def test_a_full_inbox_takes_no_more_and_predictions_go_on(
    shop: Workshop, images: list[bytes], truth: list[Prediction]
) -> None:
    with closing(Keeper(shop.state, ["photos"])) as keeper:
        keeper.check("photos")
        held = keeper._boxes["photos"].inbox.nbytes
    for room in (0, 100):  # none at all, and less than an image has
        with (
            closing(Keeper(shop.state, ["photos"], most_bytes=held + room)) as keeper,
            Predictor(shop.state, shop.desk, shop.studios, keeper, bound_seconds=60.0) as predictor,
        ):
            with pytest.raises(InboxFull, match="raise inbox_bytes"):
                ask(predictor, make_photo(np.random.default_rng(99), 24, 32), KEEP)
            assert keeper._boxes["photos"].inbox.nbytes == held
            assert ask(predictor, images[0]).label == truth[0].label


def test_an_image_whose_row_was_lost_gets_it_though_the_inbox_is_full(
    shop: Workshop, images: list[bytes]
) -> None:
    """As after a kill between image and row; an image that is not kept is still turned away."""
    lost = make_photo(np.random.default_rng(98), 24, 32)
    with closing(Keeper(shop.state, ["photos"])) as keeper:
        keeper.check("photos")
        (kept,) = keeper._boxes["photos"].inbox.add([Arrival(lost, "jpg")])
        held = keeper._boxes["photos"].inbox.nbytes
    assert not len(shop.state.labels.get("photos-inbox", [kept.id]))
    with (
        closing(Keeper(shop.state, ["photos"], most_bytes=held)) as keeper,
        Predictor(shop.state, shop.desk, shop.studios, keeper, bound_seconds=60.0) as predictor,
    ):
        assert ask(predictor, lost, KEEP).id == kept.id
        with pytest.raises(InboxFull):
            ask(predictor, make_photo(np.random.default_rng(97), 24, 32), KEEP)
    assert len(shop.state.labels.get("photos-inbox", [kept.id])) == 1


def test_inboxes_of_datasets_that_are_not_served_any_more_count(
    shop: Workshop, images: list[bytes], tmp_path: Path
) -> None:
    photo = Arrival(images[0], "jpg")
    with State(tmp_path / "state") as state:
        for name in ("gone", "grown"):
            inbox = Inbox(state.subfolder("inbox") / name)
            inbox.add([photo])
            if name == "gone":
                inbox.seal()
            inbox.close()
        held = sum(path.stat().st_size for path in (state.folder / "inbox").rglob("*.tar*"))
        with closing(Keeper(state, ["photos"], most_bytes=held + len(photo.data))) as keeper:
            assert [name for name, store in keeper.restore()] == ["gone-inbox"]
            with pytest.raises(InboxFull, match=f"the store keeps {held:,} bytes"):
                keeper.check("photos", [photo])
        with closing(Keeper(state, ["photos"], most_bytes=held + len(photo.data) + 1)) as keeper:
            list(keeper.restore())
            keeper.check("photos", [photo])


def test_the_database_of_a_store_is_the_one_that_everybody_reads(shop: Workshop, place: str | None) -> None:
    with closing(open_labels(place or shop.state.folder / "labels.db")) as labels:
        assert "photos-inbox" in labels.datasets()
