"""Journals of fine-tuned heads, beside the versions that they are of."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.data.atomic import replacing
from headwater.errors import ModelError
from headwater.models.registry import Registry
from headwater.models.seals import JOURNALS
from headwater.models.version import ModelVersion, canonical, digest_of


def journal_path(registry: Registry, digest: str) -> Path:
    """Where the journal of a version is, or would be."""
    return registry.folder / JOURNALS / f"{digest}.journal"


def keep_journal(made: Path, registry: Registry, digest: str) -> None:
    """Put a journal that is whole beside its version, if there is one, and take away those of versions gone.

    Raises `ModelError` where it cannot be written.
    """
    target = journal_path(registry, digest)
    if made.exists() and not target.exists():
        try:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            with made.open("rb") as source, replacing(target) as file:
                shutil.copyfileobj(source, file)
        except OSError as error:
            raise ModelError(f"cannot keep the journal in {target.parent}: {error.strerror}") from error
    for path in target.parent.glob("*.journal"):
        if path.stem not in registry:
            path.unlink(missing_ok=True)


def source_of(version: ModelVersion, about: Mapping[str, Any]) -> str:
    """What made the features of a run: equal for equal layers behind the same steps with the same draws."""
    return digest_of(canonical([version.trunk_digest, about["steps"], about["seed"]]))
