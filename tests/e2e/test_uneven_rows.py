"""A few large rows among small ones in Parquet: every sample arrives, however far the index is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import headwater as hw
from datasets import Photo, write_parquet
from headwater import transforms as T
from headwater.errors import SampleTooLarge
from headwater.store.server.daemon import Daemon
from pictures import jpeg, photo
from stores import running_daemon

TRANSFORM = T.Compose([T.RandomCrop(20), T.RandomHorizontalFlip()])
LARGE = (4, 5, 20, 31)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("uneven")
    edges = [400 if number in LARGE else 24 for number in range(36)]
    files = [jpeg(photo(edge, edge, seed=number)) for number, edge in enumerate(edges)]
    rows = [Photo(0, f"{number:04d}", "jpg", file) for number, file in enumerate(files)]
    write_parquet(root / "train.parquet", rows, rows_per_group=36)
    return root


@pytest.fixture(scope="module")
def largest(folder: Path) -> int:
    with closing(hw.open(folder)) as data:
        return max(len(data[number].data) for number in range(36))


@pytest.fixture(scope="module")
def daemon(folder: Path, largest: int) -> Iterator[Daemon]:
    """It sends one large row at once, and no two."""
    with running_daemon(
        {"uneven": folder}, cores=3, request_bytes=largest + 2000, memory=4 * largest
    ) as made:
        yield made


def make(data: hw.Dataset, **options: object) -> hw.DataLoader:
    settings = {"batch_size": 36, "seed": 3, "num_workers": 2, "timeout": 60.0}
    return hw.DataLoader(data, TRANSFORM, **(settings | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [0, 3])
def test_an_epoch_is_whole(daemon: Daemon, folder: Path, cut: int) -> None:
    with closing(hw.open(daemon.serving.address)) as there, closing(hw.open(folder)) as here:
        assert here.sizes.sum() > daemon._config.budget().request_bytes  # type: ignore[operator]
        (found,) = make(there, offload=hw.Offload(cut))
        (wanted,) = make(here)
        assert found.ids.tolist() == wanted.ids.tolist()
        assert found.inputs.equal(wanted.inputs)


def test_rows_past_the_cap_fail_and_no_others(folder: Path, largest: int) -> None:
    with (
        running_daemon({"uneven": folder}, cores=3, request_bytes=largest // 2) as daemon,
        closing(hw.open(daemon.serving.address)) as there,
    ):
        loader = make(there, on_error="skip")
        assert sum(len(batch) for batch in loader) == 36 - len(LARGE)
        assert loader.stats().skipped == len(LARGE)
        with pytest.raises(SampleTooLarge, match="that the store sends"):
            there.store.read(there.positions(slice(LARGE[0], LARGE[0] + 1)))
