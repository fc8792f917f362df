"""Beside the tuning of `headwater finetune`: bars, the usual augmentation, models to stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import HeadwaterError, WrongUse
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store import Link
from headwater.store.base import Store
from headwater.store.client.address import Address, is_store
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedStore
from headwater.store.server.config import name_of

if TYPE_CHECKING:
    from headwater.store.pushing import Delivery


class TuningBars:
    """Bars on a terminal: features that have come, from each store too, and epochs that the tuner trained."""

    def __init__(self, runs: int, epochs: int, *, console: Console | None = None) -> None:
        """`console` is standard error unless it is given; where it is no terminal nothing is shown."""
        self._epochs = epochs
        self._progress: Progress | None = None
        self._stores: dict[str, TaskID] = {}
        console = console or Console(stderr=True)
        if console.is_terminal:
            text = TextColumn("{task.description}", markup=False)
            columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, TextColumn("{task.fields[news]}"), console=console)
            self._features = self._progress.add_task("features", total=None, news="")
            self._training = self._progress.add_task("training", total=runs * epochs, news="")

    def __enter__(self) -> TuningBars:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def features(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress.update(self._features, completed=done, total=total)

    def store(self, store: str, done: int, total: int) -> None:
        if self._progress is not None:
            if store not in self._stores:
                self._stores[store] = self._progress.add_task(f"  from {store}", total=total, news="")
            self._progress.update(self._stores[store], completed=done, total=max(total, 1))

    def epoch(self, run: int, epoch: int, loss: float) -> None:
        if self._progress is not None:
            news = f"run {run + 1}, loss {loss:.4f}"
            self._progress.update(self._training, completed=run * self._epochs + epoch + 1, news=news)

    def run(self, run: int, accuracy: float | None) -> None:
        if self._progress is not None and accuracy is not None:
            self._progress.update(self._training, news=f"run {run + 1}, accuracy {accuracy:.1%}")


def usual_augment(version: ModelVersion) -> Pipeline:
    """A random crop and a flip, to the size of image that the model takes."""
    steps = Pipeline.from_spec(version.steps, catalogue())
    height, width = steps.out_sizes(np.array([[1_000, 800]]))[0].tolist()
    return T.Compose([T.RandomResizedCrop((height, width), scale=(0.35, 1.0)), T.RandomHorizontalFlip()])


def name_at(store: Store, uri: str) -> str:
    """What the data is called: its name at a store, or the folder's or file's stem."""
    first = store.stores[0] if isinstance(store, ShardedStore) else store
    return first.known.name if isinstance(first, RemoteStore) else name_of(uri)


def locations(data: Sequence[str]) -> list[str]:
    """The stores of these addresses, each once; raises `WrongUse` for data that no store serves."""
    for uri in data:
        if not is_store(uri):
            raise WrongUse(
                f"{uri} is not at a store, so there is nothing to bring a model to; leave out --sync"
            )
    return list(dict.fromkeys(Address.parse(uri).location for uri in data))


def deliver_result(
    registry: Registry,
    stores: Sequence[str],
    version: ModelVersion,
    *,
    token: Path | None,
    link: Link,
    unmeasured: bool,
) -> list[dict[str, Any]]:
    """Have what a fine-tuning came to in force at all stores; an error says that only this is left to do."""
    from headwater.store.pushing import Terms, push

    try:
        terms = Terms(unmeasured=unmeasured)
        return _require(push(registry, stores, version.digest, token=token, link=link, terms=terms))
    except HeadwaterError as error:
        places = " ".join(stores)
        error.add_note(
            f"the fine-tuning is done: {version.digest} is in force here as {version.name}; "
            f"`headwater models sync {places} --name {version.name}` brings it to the stores, or the same "
            "command again"
        )
        raise


def require_brought(
    registry: Registry, stores: Sequence[str], model: str, *, token: Path | None, link: Link
) -> None:
    """Bring a version to all stores, and leave in force what is.

    Raises what kept it from the first store that does not have it then.
    """
    from headwater.store.pushing import bring

    _require(bring(registry, stores, model, token=token, link=link))


def _require(done: Sequence[Delivery]) -> list[dict[str, Any]]:
    for delivery in done:
        if delivery.error is not None:
            raise delivery.error
    return [
        {"store": one.store, "kind": one.kind, "sent_bytes": one.sent_bytes, "seconds": one.seconds}
        for one in done
    ]
