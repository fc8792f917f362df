"""The recipes of the documentation for Lightning and Accelerate, and what they promise.

The classes and functions under test are those of the pages: each page is run first, and leaves them behind.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import headwater as hw
from headwater import transforms as T
from headwater.data.synthetic import write_photos
from pages import DOCS, run_page

EPOCHS = 3
STEPS = 6  # of an epoch: 24 photos, 4 at a time

pytestmark = [
    # Lightning calls what torch has deprecated, and warns of folders that these tests mean to use again.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frameworks") / "photos"
    write_photos(folder, count=4 * STEPS, classes=2)
    return folder


@pytest.fixture
def here(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with `photos` in it, where a page may run."""
    (tmp_path / "photos").symlink_to(photos)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def straight(photos: Path) -> list[list[int]]:
    """The ids of every step of a run that nothing interrupts, over all epochs."""
    loader = make(photos)
    return [batch.ids.tolist() for _ in range(EPOCHS) for batch in loader]


def make(photos: Path) -> hw.DataLoader:
    crop = T.Compose([T.RandomResizedCrop(32), T.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))])
    return hw.DataLoader(hw.open(photos), crop, batch_size=4, shuffle=True, seed=17)


@pytest.fixture
def lightning(here: Path) -> Iterator[dict[str, Any]]:
    """What the Lightning page leaves behind."""
    import referee  # noqa: F401 - torchmetrics imports torchvision, which needs the referee's declarations

    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield run_page(DOCS / "how-to" / "lightning.md")
    logger.setLevel(level)


def fit(page: dict[str, Any], photos: Path, *, resume: Path | None = None, **options: Any) -> list[list[int]]:
    """Train as the page does, with its callback; the ids of each step."""
    pl, keep = page["pl"], page["KeepPlace"]
    seen: list[list[int]] = []

    class Watch(pl.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: hw.Batch, place: int) -> None:
            seen.append(batch.ids.tolist())

    loader, more = make(photos), options.pop("callbacks", [])
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, callbacks=[keep(loader), Watch(), *more], **quiet, **options
    )
    trainer.fit(page["Classifier"](classes=2), loader, ckpt_path=resume)
    return seen


@pytest.mark.parametrize(
    "often", [{"every_n_train_steps": 4}, {"every_n_epochs": 1}], ids=["in mid-epoch", "after an epoch"]
)
def test_lightning_resumes_where_a_checkpoint_was_made(
    lightning: dict[str, Any], photos: Path, here: Path, straight: list[list[int]], often: dict[str, int]
) -> None:
    def saver(folder: str) -> Any:
        return lightning["ModelCheckpoint"](here / folder, save_top_k=-1, **often)

    assert fit(lightning, photos, max_epochs=1, callbacks=[saver("first")]) == straight[:STEPS]
    (checkpoint,) = (here / "first").iterdir()
    rest = fit(lightning, photos, max_epochs=EPOCHS, callbacks=[saver("then")], resume=checkpoint)
    assert rest == straight[STEPS if "every_n_epochs" in often else 4 :]


def test_lightning_moves_a_batch_as_a_whole(lightning: dict[str, Any], photos: Path) -> None:
    moved = lightning["Classifier"](classes=2).transfer_batch_to_device(
        next(iter(make(photos))), torch.device("cpu"), 0
    )
    assert isinstance(moved, hw.Batch)


def test_accelerate_resumes_in_mid_epoch(here: Path, photos: Path, straight: list[list[int]]) -> None:
    page = run_page(DOCS / "how-to" / "accelerate.md")
    seen: list[list[int]] = []

    def go_on(loader: hw.DataLoader, *, resume_from: Path | None = None) -> Generator[Any, None, None]:
        """The page's loop; yields its accelerator after every step."""
        accelerator, network, optimiser = page["prepare"](loader, classes=2)
        if resume_from is not None:
            accelerator.load_state(resume_from)
        while loader.epoch < EPOCHS:
            for batch in loader:
                page["train_step"](accelerator, network, optimiser, batch)
                seen.append(batch.ids.tolist())
                yield accelerator

    first = go_on(make(photos))
    for _ in range(2):
        accelerator = next(first)
    accelerator.save_state(here / "kept")
    first.close()
    list(go_on(make(photos), resume_from=here / "kept"))
    assert seen == straight
