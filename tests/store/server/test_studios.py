"""A studio keeps the samples that it was opened with, whatever is served under the name since."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headwater.data.sources import SourceOptions, open_source
from headwater.errors import DatasetStale
from headwater.models.registry import Registry
from headwater.store.jobs.record import RELABEL, JobRecord
from headwater.store.local import LocalStore
from headwater.store.server.jobdesk import JobDesk
from relabelling import small_model, write_photos
from workshops import open_workshop


def test_a_dataset_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    version = Registry(tmp_path / "state" / "models").put(small_model(), name="small", switch=True)
    photos = write_photos(tmp_path / "photos", 5)
    others = write_photos(tmp_path / "others", 7, name="other-")
    with open_workshop(photos, tmp_path / "state") as shop:
        before = shop.store
        jobs = JobDesk(shop.state, shop.desk, shop.studios.open)
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
