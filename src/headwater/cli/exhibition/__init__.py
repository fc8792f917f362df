"""What the demo shows: a module per chapter, which runs a part and makes its chapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.report import Chapter


@dataclass(frozen=True)
class Exhibit:
    """Chapters for people, and their figures for programs."""

    chapters: tuple[Chapter, ...]
    figures: dict[str, Any]
