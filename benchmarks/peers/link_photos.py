"""Photos over a link through WebDataset (HTTP) and LitData (S3), each as its own documentation recommends.

    link_photos.py NAME SETTINGS        answer "measure SECONDS" on standard input
    link_photos.py upload SETTINGS      wait for the S3 server, and put LitData's chunks there
    link_photos.py optimize FOLDER      make LitData's chunks of every size from FOLDER/folder

SETTINGS is JSON: `urls` of the tars, `endpoint` of the S3 server, `bucket`, and the folders `chunks` and
`cache`. S3 credentials come from the environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from answering import answer
from photos import BATCH, Decoded, Epoch, Sample, class_number, on_pillow, optimize

_START_SECONDS = 60
CHUNKS = ("64MB", "8MB")
"""64 MB is what LitData recommends; smaller ones let reading begin sooner."""

Settings = dict[str, Any]


def webdataset_epochs(settings: Settings, *, workers: int, form: str = "{}", shuffled: int = 1000) -> Epoch:
    """WebDataset reads http:// with curl by itself; "pipe:curl ..." is what its documentation writes."""
    import webdataset as wds

    urls = [form.format(url) for url in settings["urls"]]
    data = wds.WebDataset(urls, shardshuffle=len(urls)).shuffle(shuffled).to_tuple("jpg", "cls")
    data = data.map_tuple(Decoded(on_pillow()), class_number).batched(BATCH)
    loader = wds.WebLoader(data, batch_size=None, num_workers=workers, persistent_workers=True)
    return lambda: loader


def litdata_epochs(settings: Settings, *, workers: int, ahead: int = 2, chunks: str = "64MB") -> Epoch:
    """`ahead` chunks are downloaded before they are read. The caller empties the cache before every epoch."""
    import litdata
    from litdata.streaming import downloader

    # Its quicker client refuses plain HTTP, and no public setting of LitData's changes that.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    data = litdata.StreamingDataset(
        f"s3://{settings['bucket']}/{chunks}",
        cache_dir=settings["cache"],
        storage_options={"endpoint_url": settings["endpoint"]},
        shuffle=True,
        drop_last=False,
        max_pre_download=ahead,
        transform=Sample(on_pillow()),
    )
    loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, persistent_workers=True)
    return lambda: loader


PEERS: dict[str, Callable[[Settings], Epoch]] = {
    "webdataset, 1 worker": lambda s: webdataset_epochs(s, workers=1),
    "webdataset, 2 workers": lambda s: webdataset_epochs(s, workers=2),
    "webdataset, 2 workers, shuffle 100": lambda s: webdataset_epochs(s, workers=2, shuffled=100),
    "webdataset, 2 workers, pipe:curl": lambda s: webdataset_epochs(
        s, workers=2, form="pipe:curl -s -f -L {}", shuffled=100
    ),
    "litdata, 1 worker": lambda s: litdata_epochs(s, workers=1),
    "litdata, 2 workers": lambda s: litdata_epochs(s, workers=2),
    "litdata, 2 workers, 8 MB chunks": lambda s: litdata_epochs(s, workers=2, chunks="8MB"),
    "litdata, 2 workers, 8 MB chunks, 4 ahead": lambda s: litdata_epochs(s, workers=2, ahead=4, chunks="8MB"),
}


def upload(settings: Settings) -> None:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client("s3", endpoint_url=settings["endpoint"], region_name="us-east-1")
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            client.put_object(Bucket=settings["bucket"], Key="started", Body=b"yes")
            break
        except (BotoCoreError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    for path in sorted(Path(settings["chunks"]).glob("*/*")):
        key = f"{path.parent.name}/{path.name}"
        client.put_object(Bucket=settings["bucket"], Key=key, Body=path.read_bytes())


if __name__ == "__main__":
    name, given = sys.argv[1:]
    if name == "optimize":
        for size in CHUNKS:
            optimize(Path(given), f"chunks/{size}", size)
    elif name == "upload":
        upload(json.loads(given))
    else:
        answer(PEERS[name](json.loads(given)))
