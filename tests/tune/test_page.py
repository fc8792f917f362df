"""The examples of the page on fine-tuning, with a model that takes smaller images."""

from __future__ import annotations

from pathlib import Path

import pytest

from exports import exported_plain
from headwater.data.synthetic import write_photos
from headwater.models.registry import Registry
from nets import SIZE
from pages import DOCS, run_page


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(tmp_path / "photos", count=48, classes=4)
    Registry(tmp_path / "models").put(exported_plain().model, name="efficientnet-lite0", switch=True)
    page = tmp_path / "page.md"
    text = (DOCS / "how-to" / "finetune.md").read_text()
    assert "RandomResizedCrop(224" in text
    page.write_text(text.replace("RandomResizedCrop(224", f"RandomResizedCrop({SIZE}"))
    monkeypatch.chdir(tmp_path)
    names = run_page(page)
    registry = Registry(tmp_path / "models")
    assert registry.current("birds") == names["done"].version
    assert registry.current("birds-deep") == names["deep"].version
