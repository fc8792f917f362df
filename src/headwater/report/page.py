"""One self-contained HTML file from chapters: styles, plotly.js and pictures are all inside it.

The page forbids itself to fetch anything (its content security policy), so it shows the same on a machine
without a network.
"""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from string import Template

import msgspec

from headwater.errors import MissingExtra


@dataclass(frozen=True)
class Figure:
    """A plot as plotly.js takes it: traces and a layout of plain data."""

    title: str
    traces: Sequence[Mapping[str, object]]
    layout: Mapping[str, object]


@dataclass(frozen=True)
class Table:
    """Rows under column names; cells are shown as they are."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A PNG file and what stands below it."""

    png: bytes
    caption: str = ""


@dataclass(frozen=True)
class Sheet:
    """Pictures side by side."""

    title: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Chapter:
    """A part of the report; an empty line in `text` begins a paragraph."""

    title: str
    text: str
    figures: tuple[Figure, ...] = ()
    table: Table | None = None
    sheets: tuple[Sheet, ...] = ()


def write_page(path: str | os.PathLike[str], chapters: Sequence[Chapter], *, title: str) -> None:
    """Write the report, whole or not at all; raises `MissingExtra` without plotly."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.write_text(render_page(chapters, title=title), encoding="utf-8")
    part.replace(target)


def render_page(chapters: Sequence[Chapter], *, title: str) -> str:
    """The report as HTML; raises `MissingExtra` without plotly."""
    figures = [figure for chapter in chapters for figure in chapter.figures]
    numbers = iter(range(len(figures)))
    return _PAGE.substitute(
        title=html.escape(title),
        version=html.escape(version("headwater")),
        chapters="\n".join(
            _chapter(chapter, [next(numbers) for _ in chapter.figures]) for chapter in chapters
        ),
        library=_plotly_script() if figures else "",
        figures=_script_json([{"data": figure.traces, "layout": figure.layout} for figure in figures]),
    )


def _chapter(chapter: Chapter, numbers: Sequence[int]) -> str:
    parts = [f"<h2>{html.escape(chapter.title)}</h2>"]
    parts += [f"<p>{html.escape(text.strip())}</p>" for text in chapter.text.split("\n\n") if text.strip()]
    if chapter.table is not None:
        parts.append(_table(chapter.table))
    plots = [_plot(figure, number) for figure, number in zip(chapter.figures, numbers, strict=True)]
    if plots:
        parts.append(f'<div class="plots">{"".join(plots)}</div>')
    parts += [_sheet(sheet) for sheet in chapter.sheets]
    return f"<section>{''.join(parts)}</section>"


def _plot(figure: Figure, number: int) -> str:
    return (
        f'<figure><figcaption>{html.escape(figure.title)}</figcaption><div id="plot-{number}"></div></figure>'
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _sheet(sheet: Sheet) -> str:
    cells = "".join(
        f'<figure><img alt="{html.escape(picture.caption)}" src="data:image/png;base64,'
        f'{base64.b64encode(picture.png).decode()}"><figcaption>{html.escape(picture.caption)}</figcaption></figure>'
        for picture in sheet.pictures
    )
    return f'<h3>{html.escape(sheet.title)}</h3><div class="sheet">{cells}</div>'


def _script_json(value: object) -> str:
    """JSON that can stand inside a script element: no text in it can end the element or open a comment."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _plotly_script() -> str:
    """The library from the installed package, found without importing it: that takes a second."""
    package = find_spec("plotly")
    if package is None or package.origin is None:
        raise MissingExtra("the report needs plotly, which is not installed; pip install 'headwater[report]'")
    return (Path(package.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { --ink: #1c2126; --soft: #5c6873; --line: #d8dee4; --paper: #ffffff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa7b2; --line: #333b43; --paper: #15191d; --card: #1d2329; }
}
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { max-width: 46rem; }
footer, figcaption { color: var(--soft); font-size: .85rem; }
figure { margin: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem 1.5rem .3rem 0; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); gap: 1rem;
  margin-top: 1rem; }
.plots figure { background: var(--card); border-radius: 8px; padding: .75rem; min-width: 0; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: .6rem; }
.sheet img { width: 100%; border-radius: 4px; display: block; }
.sheet figcaption { overflow-wrap: anywhere; line-height: 1.25; }
</style>
<script>$library</script>
</head>
<body>
<h1>$title</h1>
$chapters
<footer><p>Made by headwater $version.</p></footer>
<script>
const figures = $figures;
function draw() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink"), line = style.getPropertyValue("--line");
  figures.forEach((figure, number) => {
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
    const layout = { height: 300, margin: { l: 56, r: 16, t: 8, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink }, legend: { orientation: "h", y: 1.12 },
      ...figure.layout };
    for (const name of ["xaxis", "yaxis", "yaxis2"])
      if (name in layout) layout[name] = { ...axis, ...layout[name] };
    Plotly.react("plot-" + number, figure.data, layout, { displayModeBar: false, responsive: true });
  });
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
</script>
</body>
</html>
""")
