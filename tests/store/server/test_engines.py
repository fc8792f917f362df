"""Models that are loaded at a store: within memory, in turn, and within the cores."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headwater.engine.budget import Cores, Gone
from headwater.errors import ModelNotFound
from headwater.models.parts import FirstLayers
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from headwater.store.server.decoding import Asker
from headwater.store.server.engines import AT_ONCE, MOST_CUT, Engines
from relabelling import nudged, small_model

IMAGES = np.random.default_rng(0).integers(0, 256, (3 * AT_ONCE + 5, 8, 8, 3)).astype(np.uint8)
SECONDS = 10.0


def asker(priority: str = "read", gone: Callable[[], bool] = lambda: False) -> Asker:
    return Asker("somebody", "client", priority, gone)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


@pytest.fixture
def version(registry: Registry) -> ModelVersion:
    return registry.put(small_model(), name="small")


def make(registry: Registry, cores: float = 64, *, most_bytes: int = 1 << 30) -> Engines:
    return Engines(registry, Cores(cores), most_bytes=most_bytes)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def test_the_same_features_as_the_engine_alone(registry: Registry, version: ModelVersion) -> None:
    borrowed = make(registry).borrow(version, asker())
    expected = Engine(small_model()).features(IMAGES)
    np.testing.assert_allclose(borrowed.features(IMAGES), expected, rtol=1e-5, atol=1e-6)
    assert borrowed.features(IMAGES[:0]).shape == (0, borrowed.width)


def test_what_an_image_takes_is_learned(registry: Registry, version: ModelVersion) -> None:
    borrowed = make(registry).borrow(version, asker())
    before = borrowed.seconds
    for _ in range(5):
        borrowed.features(IMAGES)
    assert 0 < borrowed.seconds < before / 2, "an image of 8 pixels is no work"


def test_versions_with_one_trunk_share_its_session(registry: Registry, version: ModelVersion) -> None:
    engines = make(registry)
    engines.borrow(version, asker())
    held = engines.nbytes
    head = registry.put(nudged(small_model(), 1.0), name="small")
    engines.borrow(head, asker())
    assert engines.nbytes == held > 0
    assert engines.find(head.trunk_digest).digest in (head.digest, version.digest)


def test_the_least_recently_used_goes_when_memory_is_short(registry: Registry) -> None:
    versions = [registry.put(small_model(seed), name="small") for seed in range(3)]
    one = 2 * small_model().nbytes
    engines = make(registry, most_bytes=2 * one)
    kept = engines.borrow(versions[0], asker())
    engines.borrow(versions[1], asker())
    engines.borrow(versions[0], asker())
    engines.borrow(versions[2], asker())
    assert engines.nbytes == 2 * one
    assert [trunk for trunk, _ in engines._loaded] == [versions[0].trunk_digest, versions[2].trunk_digest]
    tiny = make(registry, most_bytes=1)
    assert tiny.borrow(versions[0], asker()).features(IMAGES).shape == (len(IMAGES), kept.width)
    assert tiny.nbytes == one, "the last one stays, whatever it takes"


def test_layers_up_to_a_cut_are_loaded_apart(registry: Registry, version: ModelVersion) -> None:
    engines, model = make(registry), small_model()
    whole, cut = engines.borrow(version, asker()), engines.borrow(version, asker(), "b")
    assert (whole.width, cut.width) == (engines.width(version), engines.width(version, "b")) == (12, 768)
    expected = FirstLayers(model, engines.crossings(version).find("b")).features(IMAGES)
    np.testing.assert_allclose(cut.features(IMAGES), expected, rtol=1e-5, atol=1e-6)
    assert list(engines._loaded) == [(version.trunk_digest, ""), (version.trunk_digest, "b")]
    assert 2 * model.nbytes < engines.nbytes < 4 * model.nbytes


def test_few_cuts_are_loaded_at_once(registry: Registry) -> None:
    """However many are asked for: what their activations take is not known."""
    versions = [registry.put(small_model(seed), name="small") for seed in range(3)]
    engines = make(registry)
    engines.borrow(versions[0], asker())
    keys = [(version.trunk_digest, cut) for version in versions for cut in ("a", "b", "c")]
    for version in versions:
        for cut in ("a", "b", "c"):
            engines.borrow(version, asker(), cut)
    assert list(engines._loaded) == [(versions[0].trunk_digest, ""), *keys[-MOST_CUT:]]


def test_an_unknown_cut_is_told_the_others(registry: Registry, version: ModelVersion) -> None:
    engines = make(registry)
    for call in (lambda: engines.borrow(version, asker(), "d"), lambda: engines.width(version, "d")):
        with pytest.raises(ModelNotFound, match="no cut 'd'; there are: a, b, c"):
            call()
    assert not engines.nbytes


def test_an_unknown_trunk_says_what_to_do(registry: Registry, version: ModelVersion) -> None:
    with pytest.raises(ModelNotFound, match="push it first"):
        make(registry).find("0" * 32)


def test_two_who_want_the_same_load_it_once(registry: Registry, version: ModelVersion) -> None:
    engines = make(registry)
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(engines.borrow(version, asker())._loaded))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1


def spend_all(cores: Cores) -> None:
    """A bucket that is deep in debt."""
    cores.spent(cores.cores * 5)


def test_work_waits_for_cores_until_nobody_wants_it(registry: Registry, version: ModelVersion) -> None:
    gone = threading.Event()
    engines = make(registry, cores=1.0)
    borrowed = engines.borrow(version, asker("relabel", gone.is_set))
    spend_all(engines._cores)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            borrowed.features(IMAGES)
        except Gone as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "it did not wait for cores"
    gone.set()
    thread.join(SECONDS)
    assert failed


def test_who_waits_for_cores_keeps_nobody_from_the_line(registry: Registry, version: ModelVersion) -> None:
    """A relabel that finds no cores lets a read, which may wait in line, go first."""
    over = threading.Event()
    engines = make(registry, cores=0.5)  # one slot
    low = engines.borrow(version, asker("relabel", over.is_set))
    high = engines.borrow(version, asker("read"))
    engines._cores.spent(0.4)
    done: list[str] = []

    def run(name: str, work: Callable[[], object]) -> None:
        try:
            work()
            done.append(name)
        except Gone:
            done.append(f"{name} gave up")

    threads = [
        threading.Thread(target=run, args=("low", lambda: low.features(np.repeat(IMAGES, 4, axis=0)))),
        threading.Thread(target=run, args=("high", lambda: high.features(IMAGES[:4]))),
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    until(lambda: "high" in done)
    assert done == ["high"]
    over.set()
    for thread in threads:
        thread.join(SECONDS)


def test_what_runs_no_layers_keeps_nobody_from_the_line(registry: Registry, version: ModelVersion) -> None:
    engines = make(registry, cores=1)
    end = time.monotonic() + SECONDS
    predicting = asker("predict", lambda: time.monotonic() > end)
    with engines.spend(0.0, asker("select")), engines.turn(0.0, predicting, memory=0):
        assert engines.borrow(version, asker("select")).width == version.features


def test_what_runs_no_layers_waits_for_cores_until_nobody_wants_it(registry: Registry) -> None:
    cores = Cores(1)
    engines = Engines(registry, cores, most_bytes=1 << 30)
    spend_all(cores)
    asked = itertools.count()
    with pytest.raises(Gone), engines.spend(0.1, asker("select", lambda: next(asked) > 2)):
        raise AssertionError("it began without cores")
    assert next(asked) > 2


def test_predictions_go_before_reads_and_reads_before_labels(registry: Registry) -> None:
    """Whoever came first: three of four slots stay taken, and the fourth is until all three wait for it."""
    engines = make(registry, cores=4.0)  # more than this process uses: nobody waits for cores
    order: list[str] = []

    def take(priority: str) -> None:
        with engines.turn(0.0, Asker(priority, "client", priority, lambda: False), memory=1):
            order.append(priority)

    threads = [threading.Thread(target=take, args=(name,)) for name in ("relabel", "read", "predict")]
    with ExitStack() as taken:
        for _ in range(3):
            taken.enter_context(engines.turn(0.0, asker(), memory=1))
        with engines.turn(0.0, asker(), memory=1):
            for number, thread in enumerate(threads, start=1):
                thread.start()
                until(partial(is_waiting, engines, number))
        for thread in threads:
            thread.join(SECONDS)
    assert order == ["predict", "read", "relabel"]


def is_waiting(engines: Engines, count: int) -> bool:
    return engines._line.waiting == count


def test_all_is_given_back_when_the_layers_fail(registry: Registry, version: ModelVersion) -> None:
    engines = make(registry)
    borrowed = engines.borrow(version, asker())
    with pytest.raises(Exception, match="the model takes"):
        borrowed.features(np.zeros((2, 9, 9, 3), np.uint8))
    assert (engines._line.active, engines._line.held) == (0, 0)
    assert engines._cores._reserved == 0
