"""`hw.Tuner`: a new head for frozen layers, from features that are made where the images are."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import nn

from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.data.translate import as_pipeline
from headwater.errors import WrongUse
from headwater.models.evidence import UNDER_A_HEAD
from headwater.models.model import Model
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.plan.finetune import FinetunePlan
from headwater.plan.finetune.cut import FEATURES, IMAGES
from headwater.store.dataset import Dataset
from headwater.tune.comparing import Comparison
from headwater.tune.describing import describe_head, describe_optimiser
from headwater.tune.features import FeatureFile
from headwater.tune.head import Head, Optimiser, Scaling, check_custom
from headwater.tune.inflow import Inflow, Source, Steps, Unwatched, Watch
from headwater.tune.int8 import Int8Layers, Verdict, find_int8, tuned_from, unjudged
from headwater.tune.journals import keep_journal, source_of
from headwater.tune.labels import Labelled, own_labels
from headwater.tune.measuring import seconds_per_row
from headwater.tune.notes import Notes
from headwater.tune.outcome import Finetuned, Measured
from headwater.tune.planning import HeadCost, plan_tuning
from headwater.tune.recipe import Recipe
from headwater.tune.runs import Runs
from headwater.tune.sources import Sources
from headwater.tune.team import team
from headwater.tune.training import Trained, Training
from headwater.tune.workplace import Workplace, working, workplace

Deliver = Callable[[ModelVersion], None]
"""Brings a version to where else it is needed."""

FORMAT = 3
"""Raised when a workplace of before cannot be gone on with."""


class Tuner:
    """Trains a head for the frozen layers of a model, in runs that overlap with the making of features.

    `model` names a version in the `registry`, a folder or a `Registry`. The head is linear unless `head` is
    given, a module from features (n, F) to logits; it needs an `optimiser`, a function from parameters to a
    torch optimiser. `labels` say what is learnt; without them it is the data's own. `augment` are transforms
    in the place of the model's own per sample, with `recipe.variants` feature vectors of each sample.

    What goes on after a kill is the same call: features that are here are not fetched again, and the result
    is that of an undisturbed one. Raises `WrongUse` for what does not fit together.
    """

    def __init__(
        self,
        dataset: Dataset,
        model: str,
        *,
        registry: Registry | str | os.PathLike[str],
        recipe: Recipe | None = None,
        labels: Labelled | None = None,
        augment: Any = None,
        head: nn.Module | None = None,
        optimiser: Optimiser | None = None,
    ) -> None:
        self.registry = registry if isinstance(registry, Registry) else Registry(registry)
        self.recipe = recipe or Recipe()
        self.labelled = own_labels(dataset) if labels is None else labels
        if self.labelled.dataset.store is not dataset.store:
            raise WrongUse(f"the labels are those of {self.labelled.dataset!r}, the data is {dataset!r}")
        self.version = self.registry.version(model)
        self._head, self._optimiser = head, optimiser
        self._steps = _find_steps(self.version, augment, self.recipe)
        if head is not None:
            _check_head(head, optimiser, self.version, self.labelled)
        self._plan: FinetunePlan | None = None

    @cached_property
    def _model(self) -> Model:
        return self.registry.get(self.version.digest)

    @cached_property
    def key(self) -> str:
        """What this fine-tuning is known by: all that its result depends on."""
        return self._key_from(self.version.digest)

    def _key_from(self, parent: str) -> str:
        content = msgspec.json.encode(
            [
                FORMAT,
                parent,
                self.labelled.digest,
                asdict(self.recipe),
                self._steps.trained.spec(),
                describe_head(self._head),
                describe_optimiser(self._optimiser),
                [] if self._owners is None else np.bincount(self._owners).tolist(),
            ]
        )
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def plan(self) -> FinetunePlan:
        """What to expect: the plan that it was begun with, or one from measurements on a few samples."""
        if self._plan is None:
            self._plan = workplace(self._find_unended() or self.key).load_plan() or self._measure()
        return self._plan

    def fit(
        self,
        name: str | None = None,
        *,
        watch: Watch | None = None,
        deliver: Deliver | None = None,
        journal: bool = False,
        unmeasured: bool = False,
    ) -> Finetuned:
        """Train, and put the result in force in the registry as `name`, or under the model's own.

        `watch` is told of features, epochs and runs as they come. `deliver` is called with the version that
        is in force then; if it raises, the same call only delivers. With a `journal` every step is written
        down, so that samples can be taken out of the head later; it lies in the registry, see
        `headwater.tune.again`. Raises `WrongUse` for a head or an optimiser that cannot be replayed, and
        `ModelRefused` for int8 layers of which no fp32 version is known to compare with, unless the result
        may come into force `unmeasured`.
        """
        if self._int8 is not None and not unmeasured:
            self._int8.require_origin()
        if journal:
            self._make_head(self._unscaled).check_replayable()
        called, unended = name or self.version.name, self._find_unended()
        if unended is not None:
            with working(unended) as place:
                done = self._recall(place, called)
                if done is not None:
                    return self._conclude(place, done, deliver, unmeasured=unmeasured)
        with working(self.key) as place:
            done = self._recall(place, called)
            done = done or self._make(place, called, watch or Unwatched(), journal=journal)
            return self._conclude(place, done, deliver, unmeasured=unmeasured)

    def _conclude(
        self, place: Workplace, done: Finetuned, deliver: Deliver | None, *, unmeasured: bool
    ) -> Finetuned:
        """In this order: ended in between, the same call finds that only the rest of it is left."""
        place.keep_outcome(done)
        keep_journal(place.journal, self.registry, done.version.digest)
        self.registry.switch(done.version.name, done.version.digest, unmeasured=unmeasured)
        place.drop_features()
        if deliver is not None:
            deliver(done.version)
        place.clear()
        return done

    def _find_unended(self) -> str | None:
        """The key of the call that made this very version, if it was ended after the switch.

        Who names the model and not the result means by the same words the parent before, and this one after.
        """
        key = self._key_from(tuned_from(self.version))
        done = workplace(key).load_outcome()
        return key if done is not None and done.version.digest == self.version.digest else None

    def _recall(self, place: Workplace, name: str) -> Finetuned | None:
        """What an earlier call came to that was not ended by itself, if the registry still has it."""
        done = place.load_outcome()
        if done is None or done.version.name != name or done.version.digest not in self.registry:
            return None
        return replace(done, resumed=True)

    def _make(self, place: Workplace, name: str, watch: Watch, *, journal: bool) -> Finetuned:
        plan = self.plan()
        place.keep_data(self.labelled.dataset.index.version)
        place.keep_plan(plan)
        runs = self._divide(plan.runs)
        notes = self._notes(place.journal, plan) if journal else None
        if not journal:
            place.journal.unlink(missing_ok=True)  # of an earlier call, which this one does not go on with
        with closing(FeatureFile(place.folder, runs.lots, width=self.version.features)) as file:
            training = Training(runs, file, self.labelled.labels, self.recipe, place.state, notes)
            return self._run(plan, training, watch, name)

    def _run(self, plan: FinetunePlan, training: Training, watch: Watch, name: str) -> Finetuned:
        runs, file = training.runs, training.file
        resumed, source = file.here > 0, self._source(plan)
        begun = time.perf_counter()
        with Inflow(source, self.labelled.dataset, file=file, steps=self._steps, watch=watch) as inflow:
            trained = training.finish(inflow, self._make_head, watch=watch)
        seconds = time.perf_counter() - begun
        failed = int((~file.sound(np.arange(file.rows))).sum())
        verdict, further = self._judge(plan, trained.head, runs, file)
        moved = source.bytes_moved + further if self.labelled.dataset.store.remote else 0
        return Finetuned(
            version=self._keep(
                name, trained.head, self._describe(trained, runs, plan, failed, verdict), verdict
            ),
            plan=plan,
            accuracy=trained.standing.accuracy,
            losses=trained.standing.losses,
            measured=Measured(seconds, inflow.seconds, trained.seconds, moved),
            failed=failed,
            errors=inflow.errors,
            resumed=resumed,
            said="" if verdict is None else verdict.say(),
        )

    def _judge(
        self, plan: FinetunePlan, head: Head, runs: Runs, file: FeatureFile
    ) -> tuple[Verdict | None, int]:
        """Whether int8 layers may stay, None where there is no question; and the bytes that this took."""
        layers, dataset = self._int8, self.labelled.dataset
        if layers is None or layers.origin is None:
            return None, 0
        origin = layers.origin
        exact = Sources(dataset, origin, self.registry.get(origin.digest), self.recipe.seed)
        near = dataset.store.remote and plan.cut.name != IMAGES
        ways = ([partial(exact.at_stores, plan.stores)] if near else []) + [exact.here]
        return Comparison(runs, file, dataset, self._steps).judge(head, ways, bound=layers.bound)

    def _divide(self, runs: int) -> Runs:
        recipe = self.recipe
        return Runs.divide(
            len(self.labelled),
            runs,
            validation=recipe.validation,
            variants=recipe.variants,
            seed=recipe.seed,
            owners=self._owners,
        )

    @cached_property
    def _owners(self) -> NDArray[np.intp] | None:
        """Which store has each sample; None where one has all."""
        dataset = self.labelled.dataset
        owners = dataset.store.site_of(dataset.positions())
        return owners if len(owners) and owners.max() > owners.min() else None

    def _source(self, plan: FinetunePlan) -> Source:
        if plan.cut.name == IMAGES:
            return self._sources.here()
        if plan.cut.name == FEATURES:
            return self._sources.at_stores(plan.stores)
        return self._sources.behind(plan.cut.name, plan.stores)

    @property
    def _sources(self) -> Sources:
        return Sources(self.labelled.dataset, self.version, self._model, self.recipe.seed)

    @property
    def _classes(self) -> tuple[str, ...]:
        return self.labelled.classes

    @property
    def _starts_from_parent(self) -> bool:
        """A linear head for the same classes is where training goes on."""
        return (
            self._head is None and "head" not in self.version.graphs and self._classes == self.version.classes
        )

    def _make_head(self, scaling: Scaling) -> Head:
        if self._head is not None:
            assert self._optimiser is not None
            return Head.custom(self._head, self._optimiser)
        start = self._model if self._starts_from_parent else None
        return Head.linear(
            scaling, classes=len(self._classes), recipe=self.recipe, optimiser=self._optimiser, start=start
        )

    def _notes(self, path: Path, plan: FinetunePlan) -> Notes:
        about = {
            "layers": self.version.digest,
            "steps": self._steps.trained.spec(),
            "seed": self.recipe.seed,
            "cut": plan.cut.name,
        }
        ids, labels = self.labelled.dataset.ids, self.labelled.labels
        return Notes(path, ids, labels, source_of(self.version, about), about)

    @property
    def _unscaled(self) -> Scaling:
        """For a head that is only looked at."""
        width = self.version.features
        return Scaling(np.zeros(width), np.full(width, width**-0.5))

    def _measure(self) -> FinetunePlan:
        note = "" if self._int8 is None else self._int8.say()
        width, head = self.version.features, self._make_head(self._unscaled)
        size = self.recipe.batch_size
        with team(head.weights, size):
            seconds = seconds_per_row(head, width=width, classes=len(self._classes), batch_size=size)
        cost = HeadCost(head.weights, seconds)
        plan = plan_tuning(
            self.labelled.dataset,
            self._sources,
            steps=self._steps.trained,
            recipe=self.recipe,
            head=cost,
        )
        return replace(plan, note=note)

    @cached_property
    def _int8(self) -> Int8Layers | None:
        """What is known of the frozen layers, if they are int8."""
        return find_int8(self.registry, self.version, self._model)

    def _keep(self, name: str, head: Head, made: dict[str, Any], verdict: Verdict | None) -> ModelVersion:
        """The head on the layers that it was trained for, or on the fp32 ones that these were made of."""
        parent = self.version if verdict is None or verdict.accepted else self._origin
        frozen = self._model if parent is self.version else self.registry.get(parent.digest)
        graph, tensors = head.export(parent.features)
        model = Model(
            trunk=frozen.trunk,
            head=graph,
            tensors={
                **{key: value for key, value in frozen.tensors.items() if key.startswith("trunk/")},
                **{f"head/{key}": value for key, value in tensors.items()},
            },
            classes=self._classes,
            steps=frozen.steps,
        )
        return self.registry.put(model, name=name, parent=parent.digest, made=made)

    @property
    def _origin(self) -> ModelVersion:
        assert self._int8 is not None
        assert self._int8.origin is not None
        return self._int8.origin

    def _describe(
        self, trained: Trained, runs: Runs, plan: FinetunePlan, failed: int, verdict: Verdict | None
    ) -> dict[str, Any]:
        """How the version was made; nothing in it depends on the time, and little on the machines."""
        recipe = asdict(self.recipe)
        wishes = ("runs", "cut", "more_bytes")
        return {
            "by": "finetune",
            "data": self.labelled.dataset.version,
            "labels": self.labelled.said,
            "label_digest": self.labelled.digest,
            "samples": sum(map(len, runs.trained)),
            "held": len(runs.held),
            "failed": failed,
            "runs": len(runs),
            **({} if plan.cut.name in (IMAGES, FEATURES) else {"cut": plan.cut.name}),
            **{key: value for key, value in recipe.items() if key not in wishes},
            "augment": self._steps.trained.spec() if self._steps.trained != self._steps.held else None,
            "head": "linear" if self._head is None else type(self._head).__name__,
            "optimiser": describe_optimiser(self._optimiser),
            "start": "parent" if self._starts_from_parent else "new",
            "accuracy": trained.standing.accuracy,
            **self._describe_int8(verdict),
        }

    def _describe_int8(self, verdict: Verdict | None) -> dict[str, Any]:
        if self._int8 is None:
            return {}
        return {UNDER_A_HEAD: unjudged() if verdict is None else verdict.describe(self._int8)}


def _find_steps(version: ModelVersion, augment: Any, recipe: Recipe) -> Steps:
    own = Pipeline.from_spec(version.steps, catalogue())
    if augment is None:
        if recipe.variants > 1:
            raise WrongUse(f"variants is {recipe.variants}, but without `augment` all variants are the same")
        return Steps(own, own)
    given = as_pipeline(augment)
    if any(step.opaque for step in given.steps):
        raise WrongUse(
            f"{given} holds a function of yours, which a store does not have; use named transforms"
        )
    if given.batchwise.steps not in ((), own.batchwise.steps):
        raise WrongUse(
            f"`augment` ends with {given.batchwise}; leave that out: the model's own comes after it"
        )
    return Steps(Pipeline(given.samplewise.steps + own.batchwise.steps), own)


def _check_head(
    head: nn.Module, optimiser: Optimiser | None, version: ModelVersion, labelled: Labelled
) -> None:
    if optimiser is None:
        raise WrongUse(
            "a head of your own needs an optimiser, such as "
            "optimiser=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    check_custom(head, features=version.features, classes=len(labelled.classes))
