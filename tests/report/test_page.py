from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from headwater.report import Chapter, Figure, Table, render_page, write_page
from headwater.report.pictures import contact_sheet, to_pixels

HOSTILE = """</script><script>alert("x")</script><img src=x onerror=alert(1)> & 'quotes' <!--"""


def chapter(text: str = "words") -> Chapter:
    figure = Figure(
        text, [{"x": [1, 2], "y": [3.5, 4.5], "name": text}], {"xaxis": {"title": {"text": text}}}
    )
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    sheet = contact_sheet(text, images, [text, "second"])
    return Chapter(text, text, (figure, figure), Table((text, "b"), ((text, "1"),)), (sheet,))


class Collector(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.script: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        inside = self.tags and self.tags[-1][0] == "script"
        (self.script if inside else self.text).append(data)


def parse(page: str) -> Collector:
    collector = Collector()
    collector.feed(page)
    return collector


def test_nothing_is_fetched() -> None:
    page = render_page([chapter()], title="report")
    found = parse(page)
    addresses = [
        value for _, attributes in found.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert addresses
    assert all(value is not None and value.startswith("data:image/png;base64,") for value in addresses)
    assert not [tag for tag, _ in found.tags if tag in ("link", "iframe", "object", "base")]
    policies = [a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies
    assert policies[0] is not None
    assert "default-src 'none'" in policies[0]
    styles = re.findall(r"<style>(.*?)</style>", page, re.S)
    assert len(styles) == 1
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]


def test_plotly_is_inside_once_and_only_when_a_figure_needs_it() -> None:
    with_figures = render_page([chapter(), chapter("more")], title="report")
    assert with_figures.count("plotly.js v") == 1
    without = render_page([Chapter("only words", "text")], title="report")
    assert len(without) < 20_000


def test_each_figure_has_a_place() -> None:
    page = render_page([chapter(), chapter("more")], title="report")
    places = [a["id"] for tag, a in parse(page).tags if tag == "div" and "id" in a]
    assert places == ["plot-0", "plot-1", "plot-2", "plot-3"]


def test_text_cannot_become_markup() -> None:
    benign, hostile = (parse(render_page([chapter(text)], title=text)) for text in ("harmless", HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in benign.tags]
    assert HOSTILE in "".join(hostile.text)


BROWSER = """
const drawn = [];
const document = { documentElement: {} };
const getComputedStyle = () => ({ getPropertyValue: (name) => name });
const matchMedia = () => ({ addEventListener: () => {} });
const Plotly = { react: (place, data, layout) => drawn.push([place, data, layout]) };
process.on("exit", () => console.log(JSON.stringify(drawn)));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run JavaScript")
def test_the_script_draws_every_figure_with_its_text_unharmed(tmp_path: Path) -> None:
    page = render_page([chapter(HOSTILE)], title="report")
    script = re.findall(r"<script>(.*?)</script>", page, re.S)[-1]
    (tmp_path / "page.js").write_text(BROWSER + script)
    done = subprocess.run(["node", tmp_path / "page.js"], check=True, capture_output=True, text=True)
    drawn = json.loads(done.stdout)
    assert [place for place, _, _ in drawn] == ["plot-0", "plot-1"]
    for _, data, layout in drawn:
        assert data == [{"x": [1, 2], "y": [3.5, 4.5], "name": HOSTILE}]
        assert layout["xaxis"]["title"]["text"] == HOSTILE
        assert layout["xaxis"]["gridcolor"] == "--line"


def test_write_page_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for title in ("first", "second"):
        write_page(tmp_path / "report.html", [Chapter("a", "b")], title=title)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "<title>second</title>" in (tmp_path / "report.html").read_text()


def test_to_pixels_undoes_normalisation() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 6, 7, 3), dtype=np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normalised = (images.transpose(0, 3, 1, 2) / 255 - np.reshape(mean, (1, 3, 1, 1))) / np.reshape(
        std, (1, 3, 1, 1)
    )
    np.testing.assert_array_equal(to_pixels(normalised.astype(np.float32), mean, std), images)
