"""The documentation as tests see it: its pages, their code and their links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^ {4}(.*)$|`([^`]+)`", re.MULTILINE)
_CALL = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?(headwater [a-z].*)", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def all_pages() -> list[Path]:
    """The README, the changelog and every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def read_reference(name: str) -> str:
    """The text of one reference page."""
    return (DOCS / "reference" / f"{name}.md").read_text()


def find_links(page: Path) -> list[str]:
    """The targets of a page's links; code is not looked at."""
    return _LINK.findall(_FENCE.sub("", page.read_text()))


def find_commands(page: Path) -> list[list[str]]:
    """The calls of our program on a page, word by word; what a pipe or a comment brings is left out."""
    text = _FENCE.sub("", page.read_text()).replace("\\\n", " ")
    code = [match[1] or match[2] for match in _CODE.finditer(text)]
    calls = [call for some in code for call in _CALL.findall(some)]
    return [re.split(r"\s[|#>&]|;", call)[0].split() for call in calls]


def find_code(page: Path, language: str = "python") -> list[str]:
    """A page's blocks of code, each on its own line numbers, so that a traceback points into the page."""
    text = page.read_text()
    found = [match for match in _FENCE.finditer(text) if match[1] == language]
    return ["\n" * (text.count("\n", 0, match.start()) + 1) + match[2] for match in found]


def run_page(page: Path, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run all Python blocks of a page as one program in the current folder; the names that it leaves."""
    names = {"__name__": "page"} | (names or {})
    for block in find_code(page):
        exec(compile(block, str(page), "exec"), names)
    return names
