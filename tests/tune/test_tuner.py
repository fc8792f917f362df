"""From data and a model to a new version, on one machine; undisturbed, interrupted and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headwater as hw
from exports import as_they_are, fitted
from headwater import transforms as T
from headwater.errors import ModelError, ModelNotFound, ModelRefused, Unreachable, WrongUse
from headwater.models.path import cheapest
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from headwater.tune.labels import Labelled, own_labels
from headwater.tune.quantise import QuantiseWish, quantise_here
from headwater.tune.recipe import Recipe
from headwater.tune.tuner import Tuner
from headwater.tune.workplace import working
from nets import SIZE
from tunings import Interrupted, StopAt, make_picture, write_colours

RECIPE = Recipe(epochs=3, runs=2, batch_size=32, seed=7)


def make_tuner(colours: Path, registry: Registry, recipe: Recipe = RECIPE, **changes: Any) -> Tuner:
    return Tuner(hw.open(colours), "plain", registry=registry, recipe=recipe, **changes)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def test_a_new_version_that_knows_the_classes(colours: Path, registry: Registry) -> None:
    parent = registry.current("plain")
    done = make_tuner(colours, registry).fit("colours")
    assert done.accuracy[-1] == 1.0
    assert done.version == registry.current("colours")
    assert (done.version.parent, done.version.name) == (parent.digest, "colours")
    assert done.version.classes == ("blue", "green", "red")
    assert registry.current("plain") == parent
    assert [len(losses) for losses in done.losses] == [3, 3]
    assert (done.failed, done.resumed, done.measured.bytes) == (0, False, 0)


def test_what_it_says_it_reached_is_what_the_version_does(colours: Path, registry: Registry) -> None:
    """On all pictures, by the engine, from pixels to names."""
    done = make_tuner(colours, registry).fit()
    model = registry.get(done.version.digest)
    data = hw.open(colours)
    steps = [T.Resize(40), T.CenterCrop(32)]
    loader = hw.DataLoader(data, T.Compose(steps), batch_size=len(data), num_workers=0)
    pixels = np.ascontiguousarray(next(iter(loader)).inputs.permute(0, 2, 3, 1).numpy())
    found = Engine(model).classify(pixels).labels
    assert [model.classes[label] for label in found] == [data.classes[label] for label in data.labels]


def test_the_delta_to_its_parent_is_the_head(colours: Path, registry: Registry) -> None:
    done = make_tuner(colours, registry).fit("colours")
    parent = registry.version(done.version.parent or "")
    changed = {name for name, facts in done.version.tensors.items() if parent.tensors.get(name) != facts}
    assert changed == {"head/weight", "head/bias"}
    assert done.version.graphs == parent.graphs
    assert done.version.trunk_digest == parent.trunk_digest
    path = cheapest(registry, [parent.digest], done.version.digest)
    assert path.nbytes < 0.5 * cheapest(registry, [], done.version.digest).nbytes


def test_how_it_was_made_can_be_read(colours: Path, registry: Registry) -> None:
    data = hw.open(colours)
    made = make_tuner(colours, registry).fit().version.made
    assert made["by"] == "finetune"
    assert (made["data"], made["labels"]) == (data.version, "data")
    assert (made["samples"], made["held"], made["runs"], made["epochs"], made["seed"]) == (162, 18, 2, 3, 7)
    assert (made["head"], made["optimiser"], made["start"]) == ("linear", "SGD", "new")
    assert made["accuracy"] == [1.0, 1.0]


def test_the_same_call_gives_the_same_version(colours: Path, tmp_path: Path, registry: Registry) -> None:
    one = make_tuner(colours, registry).fit("one")
    again = make_tuner(colours, registry).fit("one")
    other = make_tuner(colours, registry, Recipe(epochs=3, runs=2, batch_size=32, seed=8)).fit("one")
    assert again.version == one.version
    assert other.version.tensors["head/weight"] != one.version.tensors["head/weight"]


def test_nothing_is_left_behind(colours: Path, registry: Registry, cache: Path) -> None:
    make_tuner(colours, registry).fit()
    assert not list((cache / "finetune").iterdir())


def test_more_runs_reach_about_the_same(colours: Path, registry: Registry) -> None:
    for runs in (1, 3):
        recipe = Recipe(epochs=3, runs=runs, batch_size=32)
        done = make_tuner(colours, registry, recipe).fit(f"runs-{runs}")
        assert len(done.accuracy) == runs
        assert done.accuracy[-1] == 1.0


def test_the_same_classes_go_on_from_the_parents_head(colours: Path, registry: Registry) -> None:
    first = make_tuner(colours, registry).fit("colours")
    further = Tuner(hw.open(colours), "colours", registry=registry, recipe=RECIPE).fit()
    assert further.version.made["start"] == "parent"
    assert further.version.parent == first.version.digest
    assert further.losses[0][0] < 0.5 * first.losses[0][0]


def events(colours: Path, registry: Registry, **changes: Any) -> int:
    watch = StopAt()
    make_tuner(colours, registry, **changes).fit("reference", watch=watch)
    return len(watch.told)


@pytest.mark.parametrize("kind", ["linear", "custom"])
def test_interrupted_anywhere_the_result_is_the_same(kind: str, colours: Path, registry: Registry) -> None:
    """At each thing that is told: lots of features, epochs, ends of runs; at some for a head of one's own."""
    changes: dict[str, Any] = {} if kind == "linear" else {"head": mlp(), "optimiser": adam}
    count = events(colours, registry, **changes)
    assert count >= 4 + 6 + 2
    expected = registry.current("reference")
    for last in range(1, count + 1, 1 if kind == "linear" else 6):
        with pytest.raises(Interrupted):
            make_tuner(colours, registry, **changes).fit("reference", watch=StopAt(last))
        done = make_tuner(colours, registry, **changes).fit("reference")
        assert done.version.digest == expected.digest, last
        assert done.resumed


def test_interrupted_again_and_again_it_still_ends(colours: Path, registry: Registry) -> None:
    """One thing more each time: so nothing that was done is done again for ever."""
    events(colours, registry)
    expected, tries = registry.current("reference"), 0
    while True:
        tries += 1
        try:
            done = make_tuner(colours, registry).fit("reference", watch=StopAt(2))
            break
        except Interrupted:
            assert tries < 30
    assert done.version.digest == expected.digest
    assert tries > 5


def test_features_that_are_here_are_not_fetched_again(colours: Path, registry: Registry) -> None:
    with pytest.raises(Interrupted):
        make_tuner(colours, registry).fit(watch=StopAt(4))
    watch = StopAt()
    make_tuner(colours, registry).fit(watch=watch)
    features = [told for told in watch.told if told[0] == "features"]
    assert len(features) < 4


KILLED = """
    import os, signal, sys
    import headwater as hw
    from headwater.tune.recipe import Recipe
    from headwater.tune.tuner import Tuner
    from tunings import StopAt

    class Kill(StopAt):
        def _tell(self, *what):
            self.told.append(what)
            if len(self.told) == self.last:
                os.kill(os.getpid(), signal.SIGKILL)

    recipe = Recipe(epochs=3, runs=2, batch_size=32, seed=7)
    tuner = Tuner(hw.open(sys.argv[1]), "plain", registry=sys.argv[2], recipe=recipe)
    print(tuner.fit("reference", watch=Kill(int(sys.argv[3]))).version.digest)
"""


def start_killed(colours: Path, registry: Registry, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(colours), str(registry.folder), str(last)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def run_killed(colours: Path, registry: Registry, last: int) -> subprocess.CompletedProcess[str]:
    with start_killed(colours, registry, last) as process:
        out, error = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def check_killed(colours: Path, registry: Registry, last: int) -> None:
    killed = run_killed(colours, registry, last)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = make_tuner(colours, registry).fit("reference")
    assert done.resumed


@pytest.mark.parametrize("last", [3, 9])
def test_killed_the_same_call_goes_on(last: int, colours: Path, registry: Registry) -> None:
    """A process that SIGKILL ends, while features come and while it trains."""
    events(colours, registry)
    expected = registry.current("reference").digest
    check_killed(colours, registry, last)
    assert registry.current("reference").digest == expected


@pytest.mark.soak
def test_killed_at_each_point(colours: Path, registry: Registry) -> None:
    count = events(colours, registry)
    expected = registry.current("reference").digest
    for last in range(1, count + 1):
        check_killed(colours, registry, last)
        assert registry.current("reference").digest == expected, last


@pytest.mark.soak
def test_killed_at_any_time(colours: Path, registry: Registry, cache: Path) -> None:
    """In the middle of whatever it does: 40 kills within the seconds that it takes."""
    events(colours, registry)
    expected, rng = registry.current("reference").digest, np.random.default_rng(0)
    whole = run_killed(colours, registry, 10**9)
    assert whole.stdout.strip() == expected, whole.stderr
    begun = time.monotonic()
    run_killed(colours, registry, 10**9)
    seconds = time.monotonic() - begun
    for _ in range(40):
        with start_killed(colours, registry, 10**9) as process:
            time.sleep(rng.uniform(0.5, 1.0) * seconds)
            process.kill()
        assert make_tuner(colours, registry).fit("reference").version.digest == expected


class Torn(Registry):
    """One whose process ends at the switch: before it, or after it."""

    def __init__(self, folder: Path, *, after: bool = False) -> None:
        super().__init__(folder)
        self.after = after

    def switch(self, name: str, reference: str, *, unmeasured: bool = False) -> ModelVersion:
        if self.after:
            super().switch(name, reference, unmeasured=unmeasured)
        raise Interrupted(name)


@pytest.mark.parametrize("after", [False, True])
def test_ended_at_the_switch_the_same_call_only_switches(
    after: bool, colours: Path, registry: Registry, cache: Path
) -> None:
    with pytest.raises(Interrupted):
        make_tuner(colours, Torn(registry.folder, after=after)).fit("tuned", watch=StopAt())
    assert ("tuned" in registry.names()) is after
    watch = StopAt()
    done = make_tuner(colours, registry).fit("tuned", watch=watch)
    assert watch.told == [], "neither features nor training"
    assert (done.resumed, done.accuracy, done.version) == (True, (1.0, 1.0), registry.current("tuned"))
    assert not list((cache / "finetune").iterdir())
    assert make_tuner(colours, registry).fit("tuned").version == done.version


def test_ended_after_the_switch_the_models_own_name_is_not_tuned_twice(
    colours: Path, registry: Registry, cache: Path
) -> None:
    """Without a name the same call names, after the switch, the version that it has made itself."""
    parent = registry.current("plain")
    with pytest.raises(Interrupted):
        make_tuner(colours, Torn(registry.folder, after=True)).fit()
    made = registry.current("plain")
    assert made.parent == parent.digest
    watch = StopAt()
    tuner = make_tuner(colours, registry)
    plan, done = tuner.plan(), tuner.fit(watch=watch)
    assert (watch.told, done.version, done.resumed, done.plan) == ([], made, True, plan)
    assert not list((cache / "finetune").iterdir())
    further = make_tuner(colours, registry).fit()
    assert further.version.parent == made.digest, "once that is over, the same call is another one"


def test_ended_after_the_switch_another_name_or_recipe_is_another_call(
    colours: Path, registry: Registry
) -> None:
    with pytest.raises(Interrupted):
        make_tuner(colours, Torn(registry.folder, after=True)).fit()
    made = registry.current("plain")
    other = make_tuner(colours, registry).fit("other")
    longer = make_tuner(colours, registry, Recipe(epochs=4, runs=2, batch_size=32, seed=7)).fit("longer")
    assert other.version.parent == longer.version.parent == made.digest
    assert not other.resumed


@pytest.mark.parametrize("name", [None, "tuned"])
def test_what_could_not_be_delivered_is_only_delivered(
    name: str | None, colours: Path, registry: Registry, cache: Path
) -> None:
    """The version is in force here by then; of the features nothing is left."""
    delivered: list[ModelVersion] = []

    def fail(version: ModelVersion) -> None:
        assert registry.current(name or "plain") == version
        raise Unreachable("the store is away")

    for _ in range(2):
        with pytest.raises(Unreachable):
            make_tuner(colours, registry).fit(name, deliver=fail)
        (folder,) = (cache / "finetune").iterdir()
        assert {path.name for path in folder.iterdir()} == {"data.json", "lock", "outcome.json", "plan.json"}
    watch = StopAt()
    done = make_tuner(colours, registry).fit(name, watch=watch, deliver=delivered.append)
    assert (watch.told, delivered, done.resumed) == ([], [registry.current(name or "plain")], True)
    assert not list((cache / "finetune").iterdir())


def put_int8(colours: Path, registry: Registry) -> ModelVersion:
    registry.put(as_they_are(fitted()), name="plain", switch=True)
    return registry.version(
        quantise_here(hw.open(colours), registry, QuantiseWish("plain", "colours")).result
    )


def spoil(registry: Registry, int8: ModelVersion) -> ModelVersion:
    """int8 layers that give other features than fp32: those of the last layer stand in another order."""
    model = registry.get(int8.digest)
    last = "trunk/6.weight_quantized"
    bad = replace(model, tensors={**model.tensors, last: model.tensors[last][::-1].copy()})
    return registry.put(bad, name="plain", parent=int8.parent, made=int8.made, switch=True)


@pytest.mark.parametrize("augment", [None, T.Compose([T.RandomCrop(SIZE), T.RandomHorizontalFlip()])])
def test_int8_layers_stay_where_the_new_head_gives_the_same_labels(
    augment: T.Compose | None, tmp_path: Path, registry: Registry
) -> None:
    pictures = write_colours(tmp_path / "pictures", 60, size=SIZE)
    int8 = put_int8(pictures, registry)
    tuner = make_tuner(pictures, registry, augment=augment)
    assert tuner.plan().note == (
        "the frozen layers are int8: when the head is trained, up to 256 images are compared with fp32 "
        f"({int8.parent[:12]}), which it gets unless 95.0% of labels stay"
    )
    first = tuner.fit()
    assert (first.version.parent, first.version.trunk_digest) == (int8.digest, int8.trunk_digest)
    found = first.version.made["int8"]
    assert found == {
        "of": int8.parent,
        "agreement": found["agreement"],
        "images": 99,  # 18 are held out, and the first of two runs has 81
        "bound": 0.95,
        "accepted": True,
    }
    assert found["agreement"] >= 0.95
    assert first.said.startswith("int8: under the new head int8 layers give the label of fp32 for ")
    again = make_tuner(pictures, registry).fit()
    assert again.version.made["int8"]["of"] == int8.parent, "the head after that is compared as well"


def test_where_too_few_labels_stay_the_new_head_gets_the_fp32_layers(
    tmp_path: Path, registry: Registry
) -> None:
    pictures = write_colours(tmp_path / "pictures", 60, size=SIZE)
    bad = spoil(registry, put_int8(pictures, registry))
    delivered: list[ModelVersion] = []

    def fail(version: ModelVersion) -> None:
        raise Unreachable("the store is away")

    with pytest.raises(Unreachable):
        make_tuner(pictures, registry).fit(deliver=fail)
    done = make_tuner(pictures, registry).fit(deliver=delivered.append)
    fp32 = registry.version(bad.parent or "")
    assert done.resumed, "the call goes on that began with the int8 version"
    assert delivered == [done.version] == [registry.current("plain")]
    assert (done.version.parent, done.version.trunk_digest) == (fp32.digest, fp32.trunk_digest)
    found = done.version.made["int8"]
    assert found["agreement"] < 0.95
    assert (found["accepted"], found["instead_of"]) == (False, bad.digest)
    assert done.said.startswith("fp32: under the new head int8 layers give the label of fp32 for ")
    assert "int8" not in make_tuner(pictures, registry).fit().version.made, "fp32 from now on"


def test_too_few_images_to_compare_on_mean_fp32(tmp_path: Path, registry: Registry) -> None:
    pictures = write_colours(tmp_path / "pictures", 60, size=SIZE)
    int8 = put_int8(pictures, registry)
    data = hw.open(pictures)
    few = data.select(data.ids[::6])
    done = Tuner(few, "plain", registry=registry, recipe=Recipe(epochs=1, runs=1)).fit()
    assert done.said == "fp32: 30 images are there to compare on, at least 32 are needed"
    assert (done.version.parent, done.version.made["int8"]["agreement"]) == (int8.parent, None)


def test_int8_layers_whose_fp32_version_is_gone_are_not_tuned(tmp_path: Path, registry: Registry) -> None:
    pictures = write_colours(tmp_path / "pictures", 60, size=SIZE)
    int8 = put_int8(pictures, registry)
    other = Registry(tmp_path / "other")
    fp32 = other.put(registry.get(int8.parent or ""), name="first")
    other.put(registry.get(int8.digest), name="plain", parent=fp32.digest, made=int8.made, switch=True)
    other.drop([fp32.digest])
    tuner = make_tuner(pictures, other)
    with pytest.raises(ModelNotFound, match=rf"{fp32.digest[:12]}, the fp32 version .* push that version"):
        tuner.plan()


def test_int8_layers_of_which_nothing_is_known(tmp_path: Path, registry: Registry) -> None:
    """Who pushes int8 layers has no others: there is nothing to compare with, and no head without a word."""
    pictures = write_colours(tmp_path / "pictures", 60, size=SIZE)
    brought = registry.put(registry.get(put_int8(pictures, registry).digest), name="brought")
    tuner = Tuner(hw.open(pictures), brought.digest, registry=registry, recipe=RECIPE)
    assert tuner.plan().note.endswith("agreement is not measured")
    watch = StopAt()
    with pytest.raises(
        ModelRefused, match=rf"{brought.digest[:12]} are int8, .* 95.0% .* or say --unmeasured"
    ):
        tuner.fit(watch=watch)
    assert (watch.told, registry.names()) == ([], ["plain"]), "before anything was trained"
    done = tuner.fit(unmeasured=True)
    assert registry.current("brought") == done.version
    assert (done.version.made["int8"], done.said) == ({"of": None, "agreement": None}, "")


def test_of_fp32_layers_there_is_nothing_to_say(colours: Path, registry: Registry) -> None:
    tuner = make_tuner(colours, registry)
    assert tuner.plan().note == ""
    assert "int8" not in tuner.fit().version.made


def test_ended_before_the_switch_another_name_or_a_lost_version_is_made_again(
    colours: Path, registry: Registry
) -> None:
    """From the features and the state that are still there."""
    with pytest.raises(Interrupted):
        make_tuner(colours, Torn(registry.folder)).fit("tuned")
    (first,) = [version for version in registry.versions() if version.name == "tuned"]
    registry.collect()
    assert first.digest not in registry
    watch = StopAt()
    with pytest.raises(Interrupted):
        make_tuner(colours, Torn(registry.folder)).fit("tuned", watch=watch)
    assert watch.told == []
    assert first.digest in registry
    other = make_tuner(colours, registry).fit("other", watch=watch)
    assert (other.version, watch.told) == (registry.current("other"), [])
    assert other.version.tensors == first.tensors


def test_two_at_once_do_not_disturb_each_other(colours: Path, registry: Registry) -> None:
    tuner = make_tuner(colours, registry)
    with working(tuner.key), pytest.raises(ModelError, match="another process is at this fine-tuning"):
        make_tuner(colours, registry).fit()


def test_a_damaged_picture_is_left_out_and_named(tmp_path: Path, registry: Registry) -> None:
    folder = write_colours(tmp_path / "data", 30)
    (folder / "red" / "0003.png").write_bytes(make_picture((1, 2, 3), 0)[:500])
    done = make_tuner(folder, registry).fit()
    assert done.failed == 1
    assert list(done.errors) == ["red/0003.png"]
    assert done.version.made["failed"] == 1


def test_pictures_of_which_none_can_be_read(tmp_path: Path, registry: Registry) -> None:
    folder = write_colours(tmp_path / "data", 5)
    for path in folder.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelError, match="none of the 7 samples of run 1 has features"):
        make_tuner(folder, registry).fit()


def test_a_head_and_an_optimiser_of_ones_own(colours: Path, registry: Registry) -> None:
    recipe = Recipe(epochs=12, runs=1, batch_size=32)
    done = make_tuner(colours, registry, recipe, head=mlp(), optimiser=adam).fit("deep")
    assert done.accuracy[-1] == 1.0
    assert set(done.version.graphs) == {"trunk", "head"}
    assert done.version.made["head"] == "Sequential"
    assert done.version.made["optimiser"].startswith("AdamW(")
    model = registry.get("deep")
    assert model.check() == 24
    assert Engine(model).logits(np.zeros((2, 24), np.float32)).shape == (2, 3)


def test_augmentation_gives_variants(colours: Path, registry: Registry) -> None:
    augment = T.Compose([T.RandomResizedCrop(32, scale=(0.5, 1.0)), T.RandomHorizontalFlip()])
    recipe = Recipe(epochs=3, runs=2, batch_size=32, variants=3)
    watch = StopAt()
    done = make_tuner(colours, registry, recipe, augment=augment).fit(watch=watch)
    assert done.accuracy[-1] == 1.0
    totals = {told[2] for told in watch.told if told[0] == "features"}
    assert totals == {3 * 162 + 18}
    names = [step["name"] for step in done.version.made["augment"]]
    assert names == ["decode", "random_area", "resize", "random_horizontal_flip", "normalize"]
    plain = make_tuner(colours, registry, Recipe(epochs=3, runs=2, batch_size=32)).fit()
    assert plain.version.tensors["head/weight"] != done.version.tensors["head/weight"]


def test_labels_of_ones_own(colours: Path, registry: Registry) -> None:
    data = hw.open(colours)
    warm = (own_labels(data).labels == 2).astype(np.int64)
    labels = Labelled(data, warm, ("cold", "warm"), said="human")
    done = Tuner(data, "plain", registry=registry, recipe=RECIPE, labels=labels).fit()
    assert done.version.classes == ("cold", "warm")
    assert done.version.made["labels"] == "human"
    assert done.accuracy[-1] == 1.0


def test_the_plan_of_a_laptop_has_nothing_to_overlap(colours: Path, registry: Registry) -> None:
    plan = make_tuner(colours, registry, Recipe(epochs=3)).plan()
    assert (plan.cut.name, plan.stores, plan.runs, plan.bytes) == ("images", 1, 1, 0)
    assert plan.seconds > 0
    assert "expected:" in str(plan)


def test_who_goes_on_keeps_to_the_plan(colours: Path, registry: Registry) -> None:
    tuner = make_tuner(colours, registry)
    with pytest.raises(Interrupted):
        tuner.fit(watch=StopAt(2))
    assert make_tuner(colours, registry).plan() == tuner.plan()


def test_predictions_stand_beside_what_was_measured(colours: Path, registry: Registry) -> None:
    done = make_tuner(colours, registry).fit()
    assert set(done.comparison) == {"all", "features", "training", "bytes"}
    predicted, measured = done.comparison["all"]
    assert predicted == done.plan.seconds
    assert measured == done.measured.seconds > 0


def test_without_validation_there_is_no_accuracy(colours: Path, registry: Registry) -> None:
    done = make_tuner(colours, registry, Recipe(epochs=2, runs=2, batch_size=32, validation=0.0)).fit()
    assert done.accuracy == (None, None)
    assert done.version.made["held"] == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"recipe": Recipe(variants=2)}, "without `augment` all variants are the same"),
        ({"augment": [T.RandomResizedCrop(32), abs]}, "a function of yours"),
        ({"augment": [T.CenterCrop(32), T.Normalize([0.5], [0.5])]}, "leave that out"),
        ({"head": nn.Linear(24, 3)}, "needs an optimiser"),
        ({"head": nn.Linear(24, 4), "optimiser": adam}, r"must give \(2, 3\)"),
    ],
)
def test_what_does_not_fit_together(
    changes: dict[str, Any], says: str, colours: Path, registry: Registry
) -> None:
    with pytest.raises(WrongUse, match=says):
        make_tuner(colours, registry, **changes)


def test_data_that_lies_here_has_no_store_to_make_features(colours: Path, registry: Registry) -> None:
    with pytest.raises(WrongUse, match="no store can make features"):
        make_tuner(colours, registry, Recipe(cut="features")).plan()


def test_a_model_that_is_not_there(colours: Path, registry: Registry) -> None:
    with pytest.raises(ModelNotFound):
        Tuner(hw.open(colours), "other", registry=registry)


def test_labels_of_other_data(colours: Path, tmp_path: Path, registry: Registry) -> None:
    other = own_labels(hw.open(write_colours(tmp_path / "data", 4)))
    with pytest.raises(WrongUse, match="the labels are those of"):
        Tuner(hw.open(colours), "plain", registry=registry, labels=other)


def test_threads_and_generator_of_torch_are_as_before(colours: Path, registry: Registry) -> None:
    torch.set_num_threads(2)
    tuner = make_tuner(colours, registry, head=mlp(), optimiser=adam)
    before = torch.random.get_rng_state()
    tuner.fit()
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.random.get_rng_state(), before)
