"""What the peers read from on the link: nginx over the tars, and an S3 server with LitData's chunks."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from netns import Side
from peers.children import python
from serving import end

BUCKET = "photos"
HTTP_PORT = 8080
S3_PORT = 8333
_START_SECONDS = 15
_PEERS = Path(__file__).parent / "peers"
_NGINX = """
daemon off; user root; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{}}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_timeout 65;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen {address}; root {root}; }}
}}
"""


@contextmanager
def nginx(root: Path, folder: Path, side: Side) -> Iterator[str]:
    """The files below `root` over HTTP, as the address of the folder."""
    folder.mkdir()
    address = f"{side.address}:{HTTP_PORT}"
    settings = folder / "nginx.conf"
    settings.write_text(_NGINX.format(folder=folder, address=address, root=root))
    words = [*side.words, "nginx", "-c", str(settings), "-e", str(folder / "nginx.log")]
    with _child(words, folder / "nginx.out") as child:
        _await_http(child, side, f"http://{address}/", folder / "nginx.out")
        yield f"http://{address}"


def _await_http(child: subprocess.Popen[str], side: Side, url: str, log: Path) -> None:
    """Any answer will do: a folder's own page is forbidden."""
    ask = [*side.words, "curl", "-s", "-o", os.devnull, "--max-time", "1", url]
    deadline = time.monotonic() + _START_SECONDS
    while subprocess.run(ask, check=False).returncode:
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"nginx did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


@contextmanager
def s3(folder: Path, side: Side) -> Iterator[str]:
    """An S3 server with an empty bucket, as its endpoint; its keys stay in the environment for children."""
    folder.mkdir()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    ports = {
        "s3.port": S3_PORT,
        "master.port": 9333,
        "volume.port": 9340,
        "filer.port": 8888,
        "admin.port": 23646,
    }
    off = {"admin.ui": "false", "webdav": "false", "master.telemetry": "false"}
    flags = ports | off | {"s3.port.iceberg": 0, "s3.port.lance": 0, "bucket": BUCKET, "dir": folder}
    weed = str(Path(sys.executable).parent / "weed")
    words = [*side.words, weed, "mini", f"-ip={side.address}", f"-ip.bind={side.address}"]
    with _child([*words, *(f"-{name}={value}" for name, value in flags.items())], folder / "weed.out"):
        yield f"http://{side.address}:{S3_PORT}"


@contextmanager
def _child(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as out:
        child = subprocess.Popen(words, stdout=out, stderr=out, text=True, start_new_session=True)
    try:
        yield child
    finally:
        end(child)


def make_chunks(tars: Path, folder: Path) -> Path:
    """LitData's chunks from the photos of the tars; made by the peers' own script."""
    for tar in sorted(tars.glob("*.tar")):
        with tarfile.open(tar) as members:
            members.extractall(folder / "folder" / tar.stem, filter="data")
    words = [str(python()), str(_PEERS / "link_photos.py"), "optimize", str(folder)]
    subprocess.run(words, check=True, stdout=sys.stderr)
    return folder / "chunks"
