"""What share of the undelayed rate does a loader keep when the link has a delay?

Photos as files from a store on this machine, through Headwater's own proxy at 100 Mbit: without a delay, with
50 ms in total (25 each way), and with 50 ms each way. A measurement is one whole epoch; rounds are
interleaved. The bar counts the harder one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measuring import Options, Rates, Report, at_least, compare, interleave, main, rate_table
from serving import Reader, end, make_tars, serve

RATE_MBIT = 100
DELAYS = {"undelayed": 0, "25 ms each way": 25, "50 ms each way": 50}
BATCH = 128


@contextmanager
def proxy(place: str, delay_milliseconds: int) -> Iterator[str]:
    """A link to `place` in a process of its own, as HOST:PORT."""
    words = [sys.executable, "-m", "headwater.cli.proxy", "--to", place, "--rate", f"{RATE_MBIT}mbit"]
    words += ["--delay", f"{delay_milliseconds}ms"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert child.stdout is not None
        yield f"127.0.0.1:{int(child.stdout.readline())}"
    finally:
        end(child)


def _megabits(reader: Reader) -> Callable[[], float]:
    def measure() -> float:
        found = reader.epoch()
        return found["bytes"] * 8 / 1e6 / found["seconds"]

    return measure


def measure(photos: Path, options: Options) -> Rates:
    with ExitStack() as stack:
        store = stack.enter_context(serve(photos))
        contenders = {}
        for name, delay in DELAYS.items():
            place = stack.enter_context(proxy(store.place, delay))
            reader = stack.enter_context(Reader(f"grpc://{place}/photos", {"batch": BATCH}))
            contenders[name] = _megabits(reader)
        return interleave(contenders, rounds=options.rounds)


def run(folder: Path, options: Options) -> Report:
    megabytes = 40 if options.quick else 150
    rates = measure(make_tars(folder, options, megabytes=megabytes), options)
    shares = {name: compare(rates, name, "undelayed") for name in DELAYS}
    seconds = megabytes * 8 / RATE_MBIT
    return Report(
        f"photos through a proxy of {RATE_MBIT} Mbit: Mbit/s of files, and the share that a delay leaves",
        (rate_table(rates, "50 ms each way", "Mbit/s"),),
        (at_least(shares["50 ms each way"], 0.9),),
        (
            f"25 ms each way over undelayed: {shares['25 ms each way'].median:.2f} "
            f"({shares['25 ms each way'].spread})",
            f"{megabytes} MB an epoch, {seconds:.0f} s at the full rate, batches of {BATCH}",
            "the proxy does not count the headers of TCP and IP",
        ),
        raw={"rates": rates},
    )


if __name__ == "__main__":
    main(__doc__, run)
