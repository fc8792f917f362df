"""A studio keeps the samples that it was opened with, and makes features where it can keep none."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headwater.data.sources import SourceOptions, open_source
from headwater.errors import DatasetStale
from headwater.models.registry import Registry
from headwater.store.features import OWN, Variation
from headwater.store.jobs.record import RELABEL, JobRecord
from headwater.store.local import LocalStore
from headwater.store.server.decoding import Asker
from headwater.store.server.jobdesk import JobDesk
from relabelling import small_model, write_photos
from workshops import open_workshop


def test_a_dataset_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    version = Registry(tmp_path / "state" / "models").put(small_model(), name="small", switch=True)
    photos = write_photos(tmp_path / "photos", 5)
    others = write_photos(tmp_path / "others", 7, name="other-")
    with open_workshop(photos, tmp_path / "state") as shop:
        before = shop.store
        jobs = JobDesk(shop.state, shop.desk, shop.studios)
        record = JobRecord(
            id="a",
            kind=RELABEL,
            dataset="photos",
            version=before.index.version,
            model=version.digest,
            by="",
            begun="now",
        )
        studio = shop.studios.open("photos", version)
        assert jobs._studio(record, version).store is before
        with closing(LocalStore(open_source(str(others), options=SourceOptions()))) as after:
            shop.desk.datasets["photos"] = after  # type: ignore[index]
            assert studio.store is before
            assert shop.studios.open("photos", version).store is after
            with pytest.raises(DatasetStale, match="another version"):
                jobs._studio(record, version)
            shop.desk.datasets["photos"] = before  # type: ignore[index]
        jobs._crew.close()


@pytest.mark.parametrize("spoil", ["the folders", "what is in them"])
def test_features_are_made_also_where_none_can_be_kept(
    tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    version = Registry(tmp_path / "state" / "models").put(small_model(), name="small", switch=True)
    photos = write_photos(tmp_path / "photos", 5)
    ask = Asker("somebody", "client", "read", lambda: False)
    with open_workshop(photos, tmp_path / "state", image_bytes=1 << 20) as shop:
        shop.workers.start()
        whole = shop.studios.open("photos", version)
        assert whole.kept() is not None
        if spoil == "the folders":
            shop.studios._cabinets.clear()
        for name in ("features", "images"):
            folder = tmp_path / "state" / name
            shutil.rmtree(folder)
            folder.write_text("no folder")
        studio = shop.studios.open("photos", version, Variation(seed=1) if spoil != "the folders" else OWN)
        assert studio.kept() is None
        index = shop.store.index
        batches = shop.studios.open("photos", version).extraction(ask).run(np.arange(len(index)), index.ids)
        assert sum(len(batch.ids) for batch in batches) == 5
    assert "features are made and not kept" in caplog.text
    assert "images are made and not kept" in caplog.text


def test_models_have_half_of_the_memory(tmp_path: Path) -> None:
    Registry(tmp_path / "state" / "models").put(small_model(), name="small", switch=True)
    with open_workshop(write_photos(tmp_path / "photos", 1), tmp_path / "state") as shop:
        assert shop.studios.engines.most_bytes == shop.desk.budget.memory // 2
