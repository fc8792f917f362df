"""The label database: what each sample is, who says so, and what it was before.

Loads without SQLAlchemy; `open_labels` says what to install where it is absent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import MissingExtra
from headwater.store.labels.rows import LabelRows, Source

if TYPE_CHECKING:
    from headwater.store.labels.database import LabelDatabase

__all__ = ["AT_A_STORE", "LabelRows", "Source", "chosen_place", "default_place", "open_labels"]

AT_A_STORE = (
    "of a store's labels, `headwater labels` searches, counts and exports what it sends, and `headwater "
    "finetune` without --db learns that; for all else name the file STATE/labels.db on its machine, or the "
    "URL that it was given as --labels"
)
"""For who looks for the labels of a store from elsewhere."""


def chosen_place() -> str | None:
    """`$HEADWATER_LABELS`, if it is set."""
    return os.environ.get("HEADWATER_LABELS") or None


def default_place() -> str:
    """`$HEADWATER_LABELS`, else `labels.db` in the user's data folder, which is made."""
    chosen = chosen_place()
    if chosen:
        return chosen
    base = os.environ.get("XDG_DATA_HOME")
    folder = (Path(base) if base else Path.home() / ".local" / "share") / "headwater"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / "labels.db")


def open_labels(place: str | os.PathLike[str], *, create: bool = True) -> LabelDatabase:
    """Open the label database in a SQLite file or at a URL; see `database.open_database`.

    Raises `MissingExtra` where a package that it needs is not installed.
    """
    try:
        from headwater.store.labels.database import open_database
    except ImportError as error:
        raise MissingExtra(f"labels need {error.name}; pip install 'headwater[labels]'") from error
    return open_database(place, create=create)
