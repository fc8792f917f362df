"""A head learns, is kept and comes back bit for bit, and is exported as it was trained."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import nn

from exports import exported_plain
from headwater.errors import ModelError, StateMismatch, WrongUse
from headwater.models.runtime import Session
from headwater.tune.head import Batch, Head, Scaling, check_custom
from headwater.tune.recipe import Recipe

WIDTH, CLASSES = 12, 4


def make_batches(count: int = 6, size: int = 50, seed: int = 0) -> list[Batch]:
    """Features far from zero, of very different spread, as ReLUs give them; classes that follow from them."""
    rng = np.random.default_rng(seed)
    spread = 10.0 ** rng.uniform(-2, 1.5, WIDTH)
    truth = np.random.default_rng(99).standard_normal((WIDTH, CLASSES))
    found = []
    for _ in range(count):
        raw = rng.standard_normal((size, WIDTH))
        features = ((raw + 3) * spread).astype(np.float16)
        found.append((torch.from_numpy(features).float(), torch.from_numpy((raw @ truth).argmax(1))))
    return found


BATCHES = make_batches()


def scaling() -> Scaling:
    return Scaling.of(features.numpy().astype(np.float16) for features, _ in BATCHES)


def linear(**changes: float) -> Head:
    recipe = Recipe(**changes)  # type: ignore[arg-type]
    return Head.linear(scaling(), classes=CLASSES, recipe=recipe, optimiser=None, start=None)


def custom(make: Callable[..., torch.optim.Optimizer] | None = None) -> Head:
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    return Head.custom(module, lambda parameters: (make or torch.optim.AdamW)(parameters, lr=0.01))


def bits(head: Head) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in head.state()[0].items()}


def test_scaled_features_have_mean_zero_equal_spread_and_length_one() -> None:
    found = scaling()
    features = np.concatenate([batch.numpy() for batch, _ in BATCHES]).astype(np.float64)
    scaled = (features - found.mean) * found.scale
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose((scaled**2).mean(0), 1 / WIDTH)
    assert (scaled**2).sum(1).mean() == pytest.approx(1)


def test_a_feature_that_never_changes_stays_finite() -> None:
    features = np.ones((10, 3), np.float16)
    features[:, 1] = np.arange(10)
    found = Scaling.of([features])
    assert np.isfinite(found.scale).all()
    assert found.scale[0] == pytest.approx(3**-0.5)


@pytest.mark.parametrize("make", [linear, custom])
def test_it_learns(make: Callable[[], Head]) -> None:
    head = make()
    losses = [head.train(BATCHES, rate=1.0) for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]
    accuracy = head.accuracy(make_batches(seed=0))
    assert accuracy is not None
    assert accuracy > 0.7


def test_the_exported_layer_is_the_trained_one_without_its_scaling() -> None:
    head = linear()
    for _ in range(5):
        head.train(BATCHES, rate=1.0)
    graph, tensors = head.export(WIDTH)
    assert graph is None
    assert {name: (array.dtype, array.shape) for name, array in tensors.items()} == {
        "weight": (np.float32, (CLASSES, WIDTH)),
        "bias": (np.float32, (CLASSES,)),
    }
    features = BATCHES[0][0].numpy()
    weight, bias = (head.state()[0][f"head/{part}"] for part in ("weight", "bias"))
    own = (features - scaling().mean) * scaling().scale @ weight.T + bias
    np.testing.assert_allclose(features @ tensors["weight"].T + tensors["bias"], own, atol=1e-4)


def test_a_head_of_ones_own_becomes_a_graph() -> None:
    head = custom()
    head.train(BATCHES, rate=1.0)
    graph, tensors = head.export(WIDTH)
    assert graph is not None
    features = BATCHES[0][0]
    logits = Session(graph, tensors, threads=1).run(features.numpy())
    share = float((torch.from_numpy(logits).argmax(1) == BATCHES[0][1]).float().mean())
    assert head.accuracy(BATCHES[:1]) == pytest.approx(share)


def test_training_begins_as_the_head_that_is_given() -> None:
    model = exported_plain().model
    rng = np.random.default_rng(1)
    features = (rng.random((100, model.tensors["head/weight"].shape[1])) * 4).astype(np.float16)
    head = Head.linear(Scaling.of([features]), classes=5, recipe=Recipe(), optimiser=None, start=model)
    _, tensors = head.export(24)
    np.testing.assert_allclose(tensors["weight"], model.tensors["head/weight"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(tensors["bias"], model.tensors["head/bias"], rtol=1e-4, atol=1e-5)


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "asgd": torch.optim.ASGD,
}


@pytest.mark.parametrize(
    "make",
    [linear, *(lambda make=make: custom(make) for make in OPTIMISERS.values())],
    ids=["linear", *OPTIMISERS],
)
def test_a_head_that_comes_back_goes_on_bit_for_bit(make: Callable[[], Head]) -> None:
    head = make()
    head.train(BATCHES, rate=1.0)
    kept = head.state()
    again = make()
    again.load(*kept)
    assert bits(again) == bits(head)
    for one in (head, again):
        one.train(BATCHES, rate=0.5)
    assert bits(again) == bits(head)


def test_the_users_module_is_left_alone() -> None:
    module = nn.Linear(WIDTH, CLASSES)
    before = module.weight.detach().clone()
    Head.custom(module, lambda parameters: torch.optim.SGD(parameters, lr=0.1)).train(BATCHES, rate=1.0)
    assert torch.equal(module.weight, before)


def test_a_state_of_another_head_is_refused() -> None:
    other = custom()
    with pytest.raises(StateMismatch, match="another head or optimiser"):
        other.load(*linear().state())


def test_l2_keeps_weights_small() -> None:
    free, held = linear(l2=0.0), linear(l2=0.05)
    for head, _ in itertools.product((free, held), range(10)):
        head.train(BATCHES, rate=1.0)
    lengths = [float(np.linalg.norm(head.state()[0]["head/weight"])) for head in (free, held)]
    assert lengths[1] < 0.8 * lengths[0]


def test_a_loss_that_runs_away_is_told() -> None:
    head = linear(learning_rate=1e30)
    with pytest.raises(ModelError, match="lower learning_rate"):
        head.train(20 * BATCHES, rate=1.0)


def test_nothing_held_out_has_no_accuracy() -> None:
    assert linear().accuracy([]) is None


class _Strange(torch.optim.SGD):
    """Keeps something that no file of numbers can hold."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            self.state[group["params"][0]]["memory"] = [1, 2]


def test_an_optimiser_whose_state_cannot_be_kept_is_named() -> None:
    head = custom(_Strange)
    head.train(BATCHES, rate=1.0)
    with pytest.raises(WrongUse, match="keeps a list as 'memory'"):
        head.state()


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Linear(WIDTH, CLASSES + 1), r"gives \(2, 5\) for 2 samples; it must give \(2, 4\)"),
        (nn.Linear(WIDTH + 1, CLASSES), r"does not run on \(n, 12\) features"),
        (nn.Linear(WIDTH, CLASSES).double(), "must be float32"),
        (nn.ReLU(), "are none; they must be float32"),
    ],
)
def test_modules_that_are_no_head(module: nn.Module, says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        check_custom(module, features=WIDTH, classes=CLASSES)


def test_a_rate_is_a_share_of_the_optimisers_own() -> None:
    seen = []

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimiser = torch.optim.SGD(parameters, lr=0.25)
        seen.append(optimiser)
        return optimiser

    head = Head.custom(nn.Linear(WIDTH, CLASSES), make)
    head.train(BATCHES, rate=0.5)
    head.train(BATCHES, rate=0.1)
    assert seen[0].param_groups[0]["lr"] == pytest.approx(0.025)
