"""What the demo shows: a module per chapter, which runs a part and makes its chapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.report import Chapter


@dataclass(frozen=True)
class Exhibit:
    """A chapter for people, and its figures for programs."""

    chapter: Chapter
    figures: dict[str, Any]
