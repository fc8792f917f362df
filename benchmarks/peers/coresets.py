"""Facility location by apricot and submodlib, on a matrix of similarities in a file.

`coresets.py NAME FILE COUNT` answers "measure SECONDS" on standard input with problems solved and seconds. It
leaves what was taken, and the seconds of the imports and of the first call, beside the file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Solve = Callable[[], list[int]]


def by_apricot(table: Any, count: int) -> Solve:
    from apricot import FacilityLocationSelection

    def solve() -> list[int]:
        selector = FacilityLocationSelection(count, metric="precomputed", optimizer="lazy")
        return [int(place) for place in selector.fit(table).ranking]

    return solve


def by_submodlib(table: Any, count: int) -> Solve:
    from submodlib import FacilityLocationFunction

    def solve() -> list[int]:
        function = FacilityLocationFunction(n=len(table), mode="dense", sijs=table, separate_rep=False)
        found = function.maximize(budget=count, optimizer="LazyGreedy", show_progress=False)
        return [place for place, _ in found]

    return solve


PEERS = {"apricot": by_apricot, "submodlib": by_submodlib}


def main(name: str, path: Path, count: int) -> None:
    # What a peer prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    begin = time.perf_counter()
    solve = PEERS[name](np.load(path), count)
    imported = time.perf_counter()
    solve()
    facts = {"import": imported - begin, "first": time.perf_counter() - imported}
    path.with_name(f"{path.stem}-{name}-first.json").write_text(json.dumps(facts))
    for line in sys.stdin:
        found = _measure(solve, float(line.split()[1]))
        path.with_name(f"{path.stem}-{name}.json").write_text(json.dumps(found.pop("places")))
        print(json.dumps(found), file=answers, flush=True)


def _measure(solve: Solve, seconds: float) -> dict[str, Any]:
    begin, solved = time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < seconds or not solved:
        places, solved = solve(), solved + 1
    return {"images": solved, "seconds": spent, "places": places}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
