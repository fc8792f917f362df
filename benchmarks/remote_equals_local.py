"""Does a store in another process give the bytes of the same data here, at every cut and in every codec?

A real store, plain and with TLS. Each option is a loader of its own over the remote dataset; its batches are
compared with those of a loader over the local files, ids, labels and inputs. The store says how many samples
it really cut: a comparison of raw files alone would prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

import headwater as hw
from headwater.cli.child_store import ChildStore
from headwater.cli.training import differing_bytes
from headwater.data.codecs import CODECS
from headwater.data.codecs.excerpts import EXCERPT_CUT, excerpt_names, takes_excerpts
from headwater.data.pipeline import Pipeline
from headwater.store.client.status import status
from measuring import Bar, Cell, Options, Report, Table, main
from split_equals_whole import PIPELINES, SMALL, open_photos, open_small

EPOCHS = 2
SEED = 17
LEAST_CUT = 0.99
CORES = 4  # more than the store will use, so that it cuts all that it is asked to
BATCHES = {"training": 64, "small": 512}


@dataclass(frozen=True)
class Side:
    """One dataset as it lies here, and the same behind the store."""

    name: str
    here: hw.Dataset
    there: hw.Dataset

    @property
    def pipeline(self) -> Pipeline:
        return PIPELINES[self.name]

    def load(self, data: hw.Dataset, offload: hw.Offload | None = None) -> hw.DataLoader:
        batch, pipeline = BATCHES[self.name], self.pipeline
        return hw.DataLoader(data, pipeline, batch_size=batch, shuffle=True, seed=SEED, offload=offload)


@dataclass(frozen=True)
class Found:
    """What one option gave: bytes compared and differing, moved over the link, samples that were cut."""

    compared: int
    differing: int
    moved: int
    raw: int
    cut: int
    pushed_back: int


def compare(side: Side, offload: hw.Offload, *, epochs: int, address: str, link: hw.Link) -> Found:
    before = status(address, link=link)["metrics"]["headwater_samples_total"]
    here, there = side.load(side.here), side.load(side.there, offload)
    compared = differing = 0
    for _ in range(epochs):
        for ours, theirs in zip(here, there, strict=True):
            found = differing_bytes(ours, theirs)
            differing, compared = differing + found[0], compared + found[1]
    after = status(address, link=link)["metrics"]["headwater_samples_total"]
    done = {name: int(after[name] - before[name]) for name in ("cut", "pushed_back")}
    stats = there.stats()
    here.close()
    there.close()
    return Found(compared, differing, stats.bytes_moved, stats.bytes_raw, **done)


def offloads(pipeline: Pipeline) -> list[hw.Offload]:
    """Every cut up to the last exact step, in every codec, and every excerpt; the file itself has none."""
    cuts = range(1, pipeline.longest_prefix + 1)
    found = [hw.Offload(0), *(hw.Offload(cut, codec) for cut in cuts for codec in CODECS)]
    return [*found, *(hw.Offload(EXCERPT_CUT, name) for name in excerpt_names() if takes_excerpts(pipeline))]


@contextmanager
def serve(folder: Path, data: dict[str, hw.Dataset], *, tls: bool) -> Iterator[tuple[ChildStore, hw.Link]]:
    flags: list[str] = ["--cores", str(CORES)]
    link = hw.Link()
    if tls:
        authority = trustme.CA()
        ours = authority.issue_cert("127.0.0.1")
        names = [folder / name for name in ("ca.pem", "store.pem", "store.key")]
        authority.cert_pem.write_to_path(os.fspath(names[0]))
        ours.cert_chain_pems[0].write_to_path(os.fspath(names[1]))
        ours.private_key_pem.write_to_path(os.fspath(names[2]))
        names[2].chmod(0o600)
        link = hw.Link(ca=names[0])
        flags += ["--tls-cert", str(names[1]), "--tls-key", str(names[2])]
    words = [f"{name}={dataset.uri}" for name, dataset in data.items()]
    with ChildStore(words, flags=flags, log=folder / "store.log") as store:
        yield store, link


def part(data: hw.Dataset, most: int) -> hw.Dataset:
    return data.select(data.index.ids[: min(most, len(data))])


def run(folder: Path, options: Options) -> Report:
    epochs = 1 if options.quick else EPOCHS
    here = {"training": open_photos(folder, options), "small": open_small(folder, options)}
    most = {"training": 64, "small": 600} if options.quick else {"training": 10**9, "small": SMALL}
    rows: list[tuple[Cell, ...]] = []
    found: list[tuple[hw.Offload, Found]] = []
    for tls in (False, True):
        with serve(folder, here, tls=tls) as (store, link):
            for name, data in here.items():
                there = hw.open(store.uri(name), link=link, progress=False)
                side = Side(name, part(data, most[name]), part(there, most[name]))
                for offload in offloads(side.pipeline):
                    one = compare(side, offload, epochs=epochs, address=store.uri(name), link=link)
                    found.append((offload, one))
                    rows.append(_row(side, offload, one, tls=tls))
                there.close()
    return _report(rows, found, epochs)


def _row(side: Side, offload: hw.Offload, found: Found, *, tls: bool) -> tuple[Cell, ...]:
    asked = (side.name, "TLS" if tls else "plain", offload.cut, offload.codec if offload.cut else "file")
    share = f"{found.moved / found.raw:.3f}"
    return (*asked, found.cut, found.pushed_back, found.moved, share, found.compared, found.differing)


def _report(rows: list[tuple[Cell, ...]], found: list[tuple[hw.Offload, Found]], epochs: int) -> Report:
    columns = ("pipeline", "link", "cut", "codec", "samples cut", "pushed back")
    columns += ("bytes moved", "of raw", "bytes compared", "differing bytes")
    differing = sum(one.differing for _, one in found)
    cut = sum(one.cut for _, one in found)
    share = cut / max(1, cut + sum(one.pushed_back for _, one in found))
    names = dict.fromkeys(str(row[0]) for row in rows)
    return Report(
        f"remote equals local: a store in its own process, every cut and codec, epochs: {epochs}",
        (Table(columns, tuple(rows)),),
        (
            Bar("differing bytes", "0", str(differing), not differing),
            Bar("cut of what was asked", f"at least {LEAST_CUT:.0%}", f"{share:.1%}", share >= LEAST_CUT),
        ),
        tuple(f"{name}: {PIPELINES[name]}" for name in names),
        raw={"bytes_compared": sum(one.compared for _, one in found)},
    )


if __name__ == "__main__":
    main(__doc__, run)
