"""CIFAR-10 sized files through a store on loopback: what share of the rate from local Parquet?

Decoded and cropped at the trainer. The store is a process of its own on the same two cores; both sides read
the same Parquet file. Batches of 256, shuffled, float32.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import headwater as hw
from headwater.cli.child_store import ChildStore
from measuring import Options, Report, at_least, compare, interleave, main, rate_table
from small_files import BATCH, WORKERS, Ours, make_parquet


def run(folder: Path, options: Options) -> Report:
    file, seconds = folder / "train.parquet", 1.0 if options.quick else 5.0
    if options.data:
        file = options.data / "cifar10" / ("test.parquet" if options.quick else "train.parquet")
    else:
        make_parquet(file, 5_000 if options.quick else 50_000)
    with ExitStack() as stack:
        store = stack.enter_context(ChildStore([f"small={file}"], log=folder / "store.log"))
        contenders = {
            "store": Ours(hw.open(store.uri("small")), seconds).measure,
            "local Parquet": Ours(hw.open(file, progress=False), seconds).measure,
        }
        rates = interleave(contenders, rounds=options.rounds)
    return Report(
        "CIFAR-10 sized files through a store on loopback: images/s, against local Parquet",
        (rate_table(rates, "store", "images/s"),),
        (at_least(compare(rates, "store", "local Parquet"), 0.75),),
        (f"batches of {BATCH}, {WORKERS} workers, at least {seconds:g} s a measurement",),
        raw={"rates": rates},
    )


if __name__ == "__main__":
    main(__doc__, run)
