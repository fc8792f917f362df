"""Proxies of a model in training: int8 while it ranks as fp32 does, and what is said when it does not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import headwater as hw
from exports import MEAN, STD
from headwater import transforms as T
from headwater.errors import WrongUse
from headwater.loader import feeding
from headwater.loader.feeding import Fed, Feeder
from headwater.models.path import cheapest
from headwater.models.registry import Registry
from headwater.models.runtime import precision_of
from nets import SIZE, plain
from stores import running_daemon
from tunings import COLOURS, write_colours

STEPS = T.Compose([T.CenterCrop(SIZE), T.Normalize(MEAN, STD)])


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> hw.Dataset:
    return hw.open(write_colours(tmp_path_factory.mktemp("colours") / "all", 70, size=SIZE))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


def make_feeder(colours: hw.Dataset, registry: Registry, **settings: object) -> Feeder:
    given = {"precision": "int8", "least": 0.95, **settings}
    return Feeder(colours, registry, steps=STEPS, run="mine", **given)  # type: ignore[arg-type]


def make_proxy(feeder: Feeder, model: nn.Module) -> Fed:
    return feeder.make(feeder.fill(model))


def move(model: nn.Module, seed: int, size: float = 0.02) -> nn.Module:
    """As if an epoch had passed."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(size * torch.randn_like(tensor))
    return model


def test_weights_become_an_int8_version_and_the_next_ones_a_delta(
    colours: hw.Dataset, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = plain(classes=len(COLOURS))
    feeder = make_feeder(colours, registry)
    first = make_proxy(feeder, model)
    assert (first.precision, first.said[:30]) == ("int8", "int8 ranks losses as fp32 does")
    assert first.correlation is not None
    assert first.correlation >= 0.95
    assert precision_of(registry.get(first.version)) == "int8"
    assert registry.version(first.version).made == {
        "by": "proxy",
        "run": "mine",
        "data": colours.version,
    }
    assert registry.version(first.version).classes == tuple(sorted(COLOURS))

    def calibrate(*_: object, **__: object) -> None:
        raise AssertionError("it was calibrated already")

    monkeypatch.setattr(feeding, "make_int8", calibrate)
    second = make_proxy(feeder, move(model, 1))
    assert (second.precision, second.version != first.version) == ("int8", True)
    versions = [registry.version(one) for one in (first.version, second.version)]
    assert versions[0].graphs == versions[1].graphs
    delta = cheapest(registry, [first.version], second.version)
    assert delta.kind == "delta"
    assert delta.nbytes < cheapest(registry, [], second.version).nbytes


def test_a_trunk_that_is_frozen_stays_the_same_version_of_a_trunk(
    colours: hw.Dataset, registry: Registry
) -> None:
    """So that a store which keeps its features makes them once."""
    model = plain(classes=len(COLOURS))
    feeder = make_feeder(colours, registry)
    first = make_proxy(feeder, model)
    move(model[-1], 1)
    second = make_proxy(feeder, model)
    trunks = {registry.version(one.version).trunk_digest for one in (first, second)}
    assert len(trunks) == 1
    assert first.version != second.version


def test_int8_that_ranks_badly_is_not_used_and_that_is_said(
    colours: hw.Dataset, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    model = plain(classes=len(COLOURS))
    feeder = make_feeder(colours, registry, least=1.01)
    fed = [make_proxy(feeder, model) for _ in range(6)]
    assert {one.precision for one in fed} == {"fp32"}
    assert precision_of(registry.get(fed[0].version)) == "fp32"
    assert "int8 ranks losses too differently from fp32" in fed[0].said
    assert [one.correlation is None for one in fed] == [False, True, True, True, True, False], "tried again"
    assert len([line for line in caplog.messages if "fp32 for 5 rounds" in line]) == 2


def test_fp32_if_that_is_wished_and_nothing_else(colours: hw.Dataset, registry: Registry) -> None:
    model = plain(classes=len(COLOURS))
    feeder = make_feeder(colours, registry, precision="fp32")
    fed = make_proxy(feeder, model)
    assert (fed.precision, fed.correlation, feeder.bytes_moved) == ("fp32", None, 0)
    with pytest.raises(WrongUse, match="precision 'int4'; choose from int8, fp32"):
        make_feeder(colours, registry, precision="int4")


def test_layers_that_cannot_be_int8_are_fp32(colours: hw.Dataset, registry: Registry) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 8), nn.ReLU(), nn.Linear(8, len(COLOURS)))
    fed = make_proxy(make_feeder(colours, registry), model)
    assert (fed.precision, fed.correlation) == ("fp32", None)
    assert fed.said.startswith("int8 cannot be: the frozen layers have no convolution")


def test_a_model_of_other_classes_is_refused(colours: hw.Dataset, registry: Registry) -> None:
    model = plain(classes=9)
    with pytest.raises(WrongUse, match="tells 9 classes apart, and 3 have names"):
        make_proxy(make_feeder(colours, registry), model)


def test_only_a_few_proxies_are_kept_here(
    colours: hw.Dataset, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "_KEPT", 2)
    model = plain(classes=len(COLOURS))
    feeder = make_feeder(colours, registry, precision="fp32")
    fed = [make_proxy(feeder, move(model, number)).version for number in range(4)]
    assert {one.digest for one in registry.versions()} == set(fed[-2:])


def test_over_a_link_pixels_come_where_they_are_fewer_bytes(tmp_path: Path, registry: Registry) -> None:
    large = write_colours(tmp_path / "large", 5, size=4 * SIZE)
    with running_daemon({"large": large}) as daemon, closing(hw.open(large)) as here:
        with closing(hw.open(f"{daemon.serving.address}/large")) as there:
            near, far = (make_feeder(data, registry)._glimpse for data in (here, there))
        assert near.bytes_moved == 0
        assert 0 < far.bytes_moved <= len(here) * SIZE * SIZE * 3 < here.sizes.sum() / 4
        for one, other in zip(near.pixels, far.pixels, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(near.labels, far.labels)


def test_over_a_link_files_come_where_pixels_are_more_bytes(tmp_path: Path, registry: Registry) -> None:
    small = write_colours(tmp_path / "small", 5, size=SIZE)
    steps = T.Compose([T.Resize((4 * SIZE, 4 * SIZE)), T.Normalize(MEAN, STD)])
    with (
        running_daemon({"small": small}) as daemon,
        closing(hw.open(f"{daemon.serving.address}/small")) as data,
    ):
        feeder = Feeder(data, registry, steps=steps, run="mine", precision="int8", least=0.95)
        assert feeder._glimpse.bytes_moved == data.sizes.sum()


def test_images_and_labels_go_together(colours: hw.Dataset, registry: Registry) -> None:
    """The mean colour of an image tells its class: here it would not, if rows were mixed up."""
    glimpse = make_feeder(colours, registry)._glimpse
    means = np.stack([image.mean(axis=(0, 1)) for image in glimpse.pixels])
    wanted = np.array([{"red": 0, "green": 1, "blue": 2}[colours.classes[label]] for label in glimpse.labels])
    np.testing.assert_array_equal(means.argmax(axis=1), wanted)
    assert len(set(wanted.tolist())) == 3


def test_a_proxy_is_made_beside_a_forward_pass(colours: hw.Dataset, registry: Registry) -> None:
    """To trace a model changes every module of the process: only `fill` may, which the loop calls itself."""
    model = plain(classes=len(COLOURS))
    feeder = make_feeder(colours, registry)
    filled = feeder.fill(model)
    call = nn.Module.__call__
    seen = []
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(feeder.make, filled)
        while not under_way.done():
            seen.append(nn.Module.__call__ is call)
            model(torch.zeros(1, 3, SIZE, SIZE))
    assert under_way.result().version
    assert seen
    assert all(seen)
