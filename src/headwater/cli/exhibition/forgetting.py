"""The demo's chapter on forgetting: a photo gone from the data and from all that was made of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from headwater.cli.exhibition import Exhibit
from headwater.cli.exhibition.loader import plain_steps
from headwater.cli.printing import say
from headwater.engine.cache import Cache
from headwater.errors import HeadwaterError
from headwater.loader import DataLoader
from headwater.report import Chapter, Table
from headwater.store import Dataset, open

if TYPE_CHECKING:
    from headwater.tune.forget.work import Forgot

TITLE = "A photo that is forgotten"
NEEDED = ("alembic", "sqlalchemy", "safetensors", "zstandard")
"""What `labels` and `models` bring."""

_PHOTOS, _NAME, _PLACE = 64, "photos", 7
_REMEDY = "pip install 'headwater[models,labels]'"
_TEXT = """Of a copy of {before} photos an index, labels and cached samples were kept. Then one of them was to
be forgotten, as `headwater forget` does it. Before, {traces} traces of it, by its id, its name and its
content, were found in what was kept; after, {left}. The dataset has {after} photos from then on, and another
version. The photo's file stays where it is unless --delete-files is given, and is not seen any more. What is
left is a line in the audit of {time}, with a keyed hash that begins with {hash}. No model was trained on it
here; heads that were are made again without it, as the chapter before shows."""


def show_forgetting(photos: Path) -> Exhibit:
    """Forget a photo of a copy, in folders that are deleted afterwards; the user's own are left alone.

    Raises `HeadwaterError` if a trace is left. Where a package is missing the chapter says what to install.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        text = f"This part was left out: it also needs {', '.join(missing)}; {_REMEDY}"
        return Exhibit((Chapter(TITLE, text),), {"forgetting": {"missing": missing}})
    with TemporaryDirectory(prefix="headwater-forget-") as made, _apart(Path(made).resolve()) as folder:
        _copy(photos, folder / _NAME)
        return _show(folder)


def _show(folder: Path) -> Exhibit:
    from headwater.data.forgetting import Audit
    from headwater.data.forgotten import forgotten_folder
    from headwater.tune.forget.traces import Marks, find_traces

    with closing(open(folder / _NAME, progress=False)) as data:
        _keep_things(data, folder / "labels.db")
        sample, before = data[_PLACE], len(data)
        marks = Marks.of(sample.id, sample.key, bytes(sample.data))
    traces = find_traces(_kept(folder), marks)
    done = _forget(folder, sample.id)
    left = len(find_traces(_kept(folder), marks))
    check(len(traces), left)
    (line,) = Audit(forgotten_folder()).lines()
    (there,) = done.found.values()
    say(f"a photo forgotten in {sum(done.seconds.values()):.1f} s; {len(traces)} traces before, {left} after")
    facts = {"before": before, "after": there.samples, "traces": len(traces), "left": left}
    text = _TEXT.format(**facts, time=line["time"], hash=line["hashes"][0][:12])
    gone = {**there.found, **done.cached}
    figures = {**facts, "gone": gone, "audit": {"samples": line["samples"], "hashes": len(line["hashes"])}}
    return Exhibit((Chapter(TITLE, text, table=_table(gone)),), {"forgetting": figures})


def _kept(folder: Path) -> list[Path]:
    """All but the data."""
    return [path for path in folder.iterdir() if path.name != _NAME]


def check(before: int, after: int) -> None:
    """Raises `HeadwaterError` if a trace is left, or if the scan would not have seen one."""
    if after or not before:
        raise HeadwaterError(f"{after} traces of a forgotten photo are left; {before} were there before")


def _keep_things(data: Dataset, labels: Path) -> None:
    """Labels, and cached samples, as training with a cache leaves them."""
    from headwater.store.labels import open_labels

    index = data.index
    with closing(open_labels(labels)) as database:
        database.enrol(_NAME, index.ids, index.labels, class_names=index.classes)
    loader = DataLoader(
        data, plain_steps(), batch_size=_PHOTOS, num_workers=0, cache=Cache(memory=None, disk="64MiB")
    )
    for _ in loader:
        pass


def _forget(folder: Path, id: int) -> Forgot:
    from headwater.models.registry import Registry
    from headwater.tune.forget.places import Here
    from headwater.tune.forget.survey import Scene, Wish, look_around
    from headwater.tune.forget.work import forget

    data, registry = str(folder / _NAME), Registry(folder / "models")
    here = Here(data, registry, _NAME, str(folder / "labels.db"))
    scene = Scene((here,), registry, lambda: open(data, progress=False))
    return forget(scene, look_around(scene, Wish(ids=(id,))))


def _table(gone: Mapping[str, Any]) -> Table:
    return Table(("what is gone", "of it"), tuple((what, f"{count:,}") for what, count in gone.items()))


def _copy(photos: Path, folder: Path) -> None:
    with closing(open(photos, progress=False)) as data:
        for place in range(min(_PHOTOS, len(data))):
            target = folder / data.index.key(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(photos / data.index.key(place), target)


@contextmanager
def _apart(folder: Path) -> Iterator[Path]:
    """Caches, and what was forgotten, lie in this folder meanwhile."""
    names = {"HEADWATER_CACHE": folder / "cache", "HEADWATER_FORGOTTEN": folder / "forgotten"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(place) for name, place in names.items()})
    try:
        yield folder
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
