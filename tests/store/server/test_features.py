"""Requests for features: the right vectors, kept and made, and errors that name what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headwater as hw
from graphs import SIZE
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.engine.budget import Budget, Gone
from headwater.engine.chain import Chain
from headwater.errors import DatasetNotFound, DatasetStale, ModelError, ModelNotFound, WrongUse
from headwater.models.cutting import find_crossings
from headwater.models.model import Model
from headwater.models.parts import LastLayers
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.store.server.features import MOST_SAMPLES, FeatureDesk
from headwater.store.server.studios import Studios
from headwater.store.wire import messages, payloads
from headwater.store.wire.messages import Complaint, FeatureRequest
from headwater.store.wire.payloads import Parcel
from headwater.store.wire.vectors import unpack
from relabelling import FEATURES, STEPS, nudged, small_model, write_photos
from strange_names import NAMES
from workshops import Lot, Workshop, open_workshop

COUNT, BROKEN = 90, 2


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("origin")
    write_photos(folder / "photos", COUNT, broken=BROKEN)
    Registry(folder / "state" / "models").put(small_model(), name="small", switch=True)
    return folder


@pytest.fixture(scope="module")
def shop(origin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = Path(shutil.copytree(origin, tmp_path_factory.mktemp("features") / "all"))
    with open_workshop(folder / "photos", folder / "state") as made:
        made.workers.start()
        yield made


@pytest.fixture
def desk(shop: Workshop) -> FeatureDesk:
    return FeatureDesk(shop.desk, shop.studios.answer)


def ask(shop: Workshop, places: Any, **more: Any) -> FeatureRequest:
    index = shop.store.index
    trunk = shop.state.registry.current("small").trunk_digest
    ids = index.ids[np.asarray(places)].astype("<i8").tobytes()
    return FeatureRequest("photos", index.version, "client", ids, **{"model": trunk, **more})


def answer(desk: FeatureDesk, request: FeatureRequest, *, gone: bool = False) -> Parcel:
    ((batch, _),) = desk.read(request, "somebody", lambda: gone, seal=7)
    return payloads.unpack(batch, np.frombuffer(request.ids, "<i8"), cut=False, seal=7)


def vectors(parcel: Parcel) -> np.ndarray:
    return np.stack([payload.view("<f2") for payload in parcel.payloads])


def expected(
    shop: Workshop,
    places: Any,
    *,
    model: Model | None = None,
    steps: Any = STEPS,
    seed: int = 0,
    epoch: int = 0,
) -> np.ndarray:
    """By this process alone."""
    positions = np.asarray(places)
    lot = Lot(shop.store.index.ids[positions], epoch)
    pipeline = Pipeline.from_spec(steps, catalogue()).samplewise
    Chain(pipeline, seed).run(shop.store.read(positions), lot)
    images = np.stack([lot.made[place] for place in range(len(positions))])
    return Engine(model or small_model()).features(images).astype(np.float16)


def sound(shop: Workshop) -> list[int]:
    return [place for place in range(len(shop.store.index)) if "broken" not in shop.store.key(place)]


def counts(shop: Workshop) -> dict[str, float]:
    found = shop.desk.ledger.snapshot()["headwater_features_total"]
    assert isinstance(found, dict)
    return found


def test_made_once_and_kept(shop: Workshop, desk: FeatureDesk) -> None:
    places = sound(shop)[40:60]
    before = counts(shop)
    first = vectors(answer(desk, ask(shop, places)))
    np.testing.assert_allclose(first, expected(shop, places), rtol=2e-3, atol=2e-3)
    again = vectors(answer(desk, ask(shop, places[::-1])))
    np.testing.assert_array_equal(again[::-1], first)
    after = counts(shop)
    assert (after["made"] - before["made"], after["kept"] - before["kept"]) == (20, 20)


def test_a_broken_sample_is_an_error_of_its_own(shop: Workshop, desk: FeatureDesk) -> None:
    places = np.arange(len(shop.store.index))
    found = answer(desk, ask(shop, places))
    assert [place for place in places.tolist() if place not in found.errors] == sound(shop)
    complaint = messages.decode(Complaint, next(iter(found.errors.values())))
    assert (complaint.kind, complaint.retry) == ("SampleCorrupt", False)
    assert all(len(found.payloads[place]) == 2 * FEATURES for place in sound(shop))


def test_variants_are_apart_and_exact(shop: Workshop, desk: FeatureDesk) -> None:
    steps = T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip()]).spec()
    places = sound(shop)[:6]
    seen = []
    for seed, epoch in ((0, 0), (0, 1), (9, 1)):
        request = ask(shop, places, steps=steps, seed=seed, epoch=epoch)
        for _ in range(2):
            found = vectors(answer(desk, request))
            right = expected(shop, places, steps=steps, seed=seed, epoch=epoch)
            np.testing.assert_allclose(found, right, rtol=2e-3, atol=2e-3)
        seen.append(found.tobytes())
    seen.append(vectors(answer(desk, ask(shop, places))).tobytes())
    assert len(set(seen)) == 4


def test_a_trunk_that_is_not_here(shop: Workshop, desk: FeatureDesk) -> None:
    with pytest.raises(ModelNotFound, match="push it first") as caught:
        answer(desk, ask(shop, [1], model="0" * 32))
    assert str(shop.state.folder) not in str(caught.value)


def test_a_store_without_state_has_no_features(shop: Workshop) -> None:
    bare = FeatureDesk(shop.desk, Studios(None, shop.desk, shop.cores, feature_bytes=1).answer)
    with pytest.raises(ModelError, match="--state"):
        answer(bare, ask(shop, [1]))


def test_without_a_cache_every_request_is_work(shop: Workshop) -> None:
    studios = Studios(shop.state, shop.desk, shop.cores, feature_bytes=0)
    desk = FeatureDesk(shop.desk, studios.answer)
    before = counts(shop)["made"]
    rows = [vectors(answer(desk, ask(shop, [5, 6]))) for _ in range(2)]
    np.testing.assert_array_equal(*rows)
    assert counts(shop)["made"] - before == 4


def test_up_to_a_cut_and_never_kept(shop: Workshop, desk: FeatureDesk) -> None:
    places, before = sound(shop)[:5], counts(shop)
    request = ask(shop, places, cut="b")
    rows = [vectors(answer(desk, request)) for _ in range(2)]
    np.testing.assert_array_equal(*rows)
    assert rows[0].shape == (5, FEATURES * SIZE * SIZE)
    cut = find_crossings(small_model().trunk).find("b")
    found = LastLayers(small_model(), cut).features(rows[0])
    np.testing.assert_allclose(found, expected(shop, places), rtol=4e-3, atol=4e-3)
    after = counts(shop)
    assert (after["made"] - before["made"], after["kept"] - before["kept"]) == (10, 0)


def test_a_cut_that_is_none_is_refused_by_name(shop: Workshop, desk: FeatureDesk) -> None:
    for name in ("images", "features", "d", "B", "b\0", "x" * 4096, *filter(None, NAMES)):
        with pytest.raises(ModelNotFound, match="there are: a, b, c") as caught:
            answer(desk, ask(shop, [1], cut=name))
        assert str(shop.state.folder) not in str(caught.value)


def test_no_more_bytes_than_are_answered_at_once(shop: Workshop) -> None:
    small = replace(shop.desk, budget=Budget(cores=2, request_bytes=4000))
    desk, places = FeatureDesk(small, shop.studios.answer), sound(shop)
    assert vectors(answer(desk, ask(shop, places[:2], cut="b"))).nbytes == 3072
    with pytest.raises(WrongUse, match="4,608 bytes at once, 1,536 for a sample; this store answers 4,000"):
        answer(desk, ask(shop, places[:3], cut="b"))
    tiny = replace(shop.desk, budget=Budget(cores=2, memory=4000, request_bytes=1000))
    with pytest.raises(WrongUse, match="cut elsewhere"):
        answer(FeatureDesk(tiny, shop.studios.answer), ask(shop, places[:1], cut="b"))


def test_memory_for_vectors_is_held_until_they_are_sent(shop: Workshop) -> None:
    """And given back: a second request of as many bytes waits for the first to be read."""
    small = replace(shop.desk, budget=Budget(cores=2, memory=16_000, request_bytes=3072))
    desk, place = FeatureDesk(small, shop.studios.answer), sound(shop)
    request = ask(shop, place[:1], cut="b")
    first = desk.read(request, "somebody", lambda: False)
    next(first)
    assert desk._room.held == 4 * 1536
    with pytest.raises(Gone):
        next(desk.read(request, "somebody", lambda: True))
    first.close()
    assert desk._room.held == 0
    assert len(answer(desk, request).payloads) == 1


def test_packed_where_that_is_asked_for(shop: Workshop, desk: FeatureDesk) -> None:
    places = sound(shop)[:5]
    plain = vectors(answer(desk, ask(shop, places, cut="b")))
    packed = answer(desk, ask(shop, places, cut="b", packed=True))
    assert all(len(payload) < 2 * plain.shape[1] for payload in packed.payloads)
    found = [unpack(payload, plain.shape[1], packed=True) for payload in packed.payloads]
    np.testing.assert_array_equal(np.stack(found), plain)


def test_a_broken_sample_is_an_error_among_packed_ones_too(shop: Workshop, desk: FeatureDesk) -> None:
    found = answer(desk, ask(shop, np.arange(len(shop.store.index)), packed=True))
    assert [place for place in range(len(shop.store.index)) if place not in found.errors] == sound(shop)


def test_a_request_of_an_older_client_wants_no_vector_packed() -> None:
    old = msgspec.msgpack.decode(messages.encode(FeatureRequest("d", "v", "c", bytes(8), "0" * 32)))
    assert "packed" not in old
    assert messages.decode_request(msgspec.msgpack.encode(old)).packed is False  # type: ignore[union-attr]


def test_a_request_of_a_client_without_cuts_wants_features() -> None:
    old = msgspec.msgpack.decode(messages.encode(FeatureRequest("d", "v", "c", bytes(8), "0" * 32, cut="b")))
    assert old.pop("cut") == "b"
    assert messages.decode_request(msgspec.msgpack.encode(old)).cut == ""  # type: ignore[union-attr]


MISFITS: dict[str, dict[str, Any]] = {
    "no id": {"ids": b""},
    "half an id": {"ids": bytes(12)},
    "an id twice": {"ids": bytes(16)},
    "too many": {"ids": np.arange(MOST_SAMPLES + 1).tobytes()},
    "an id that is not there": {"ids": bytes(8)},
    "a step of a batch": {"steps": list(STEPS)},
    "a step without a name": {"steps": [{"size": 3}]},
    "a step that is none": {"steps": [{"name": "dance"}]},
    "a giant image": {"steps": [{"name": "decode"}, {"name": "pad", "padding": 2**31}]},
    "too many steps": {"steps": [{"name": "decode"}, *[{"name": "random_horizontal_flip"}] * 20]},
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused(shop: Workshop, desk: FeatureDesk, misfit: str) -> None:
    request = msgspec.structs.replace(ask(shop, [1]), **MISFITS[misfit])
    with pytest.raises(WrongUse):
        answer(desk, request)


def test_steps_without_a_decoder(shop: Workshop, desk: FeatureDesk) -> None:
    with pytest.raises(ModelError, match="begin with decode"):
        answer(desk, ask(shop, [1], steps=[{"name": "random_horizontal_flip"}]))


def test_steps_that_leave_no_image_for_the_model(shop: Workshop, desk: FeatureDesk) -> None:
    with pytest.raises(ModelError, match="the model takes"):
        answer(desk, ask(shop, [1], steps=T.Compose([T.CenterCrop(9)]).spec()))


@pytest.mark.parametrize(
    ("change", "error"), [({"dataset": "x"}, DatasetNotFound), ({"version": "x"}, DatasetStale)]
)
def test_no_such_dataset_or_another_version(
    shop: Workshop, desk: FeatureDesk, change: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        answer(desk, msgspec.structs.replace(ask(shop, [1]), **change))


def test_a_caller_who_hung_up_costs_nothing_more(shop: Workshop, desk: FeatureDesk) -> None:
    with pytest.raises(Gone):
        answer(desk, ask(shop, sound(shop)[70:80], steps=T.Compose([T.CenterCrop(8)]).spec()), gone=True)


def test_images_that_are_kept_are_not_read_again(origin: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(origin, tmp_path / "all"))
    with open_workshop(folder / "photos", folder / "state", feature_bytes=0, image_bytes=1 << 20) as shop:
        desk = FeatureDesk(shop.desk, shop.studios.answer)
        places = sound(shop)[:8]
        first = vectors(answer(desk, ask(shop, places)))
        for place in places:
            (folder / "photos" / shop.store.key(place)).unlink()
        again = vectors(answer(desk, ask(shop, places)))
        np.testing.assert_array_equal(first, again)
        other = shop.state.registry.put(nudged(small_model(3), 0.0), name="small", switch=True)
        found = vectors(answer(desk, ask(shop, places, model=other.trunk_digest)))
        assert np.isfinite(found).all(), "other layers under the same steps"
        assert hw.open(folder / "photos").index.version != shop.store.index.version
