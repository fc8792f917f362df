"""Does a store that is killed again and again lose a label, write one twice, or hold a model that is neither?

SIGKILL at random moments, of a real store with EfficientNet-Lite0. First while it relabels photos: after each
start the job must go on by itself, and whenever it ends every photo must have the label of the version in
force, written once by each version so far and counted once by the job. Then while versions are switched to
and fro as fast as can be, and in every other life new ones are sent: whatever is there afterwards must
verify, digest by digest, what was acknowledged must be there, and in force must be what was before or what
was asked for.
"""

from __future__ import annotations

from pathlib import Path

import killed_relabel
import killed_switch
from classifiers import open_photos
from killed_relabel import Labels, Relabelling
from killed_switch import Switches, Switching
from measuring import Bar, Options, Report, Table, main

RELABELS, SWITCHES = 50, 200
RELABELS_QUICK, SWITCHES_QUICK = 3, 6


def label_bars(found: Labels) -> list[Bar]:
    counts = {
        "lost": found.lost,
        "written twice": found.doubled,
        "counted twice or never": found.miscounted,
        "other than the model's": found.wrong,
    }
    what = f"labels, {found.kills} kills of a relabel at work: {{}}"
    return [Bar(what.format(name), "0", str(count), count == 0) for name, count in counts.items()]


def switch_bars(found: Switches) -> list[Bar]:
    counts = {
        "that do not verify": found.broken,
        "that were acknowledged and are gone": found.gone,
        "in force that are neither the old nor the new": found.neither,
    }
    what = f"versions, {found.kills} kills: {{}}"
    return [Bar(what.format(name), "0", str(count), count == 0) for name, count in counts.items()]


def tables(labels: Labels, switches: Switches, photos: int) -> tuple[Table, Table]:
    return (
        Table(
            ("relabel", ""),
            (
                ("photos", photos),
                ("kills while the job was at work", labels.kills),
                ("kills when it had just ended", labels.idle),
                ("versions that labelled all photos", labels.versions),
            ),
        ),
        Table(
            ("switch", ""),
            (
                ("kills", switches.kills),
                ("of these with a switch that was asked for and not answered", switches.unanswered),
                ("switches that were answered", switches.answered),
                ("new versions that were taken in meanwhile", len(switches.sent)),
            ),
        ),
    )


def run(folder: Path, options: Options) -> Report:
    relabels, switches = (RELABELS_QUICK, SWITCHES_QUICK) if options.quick else (RELABELS, SWITCHES)
    photos = open_photos(folder, options)
    labelled = Relabelling(folder / "relabel", photos).run(relabels)
    switched = Switching(folder / "switch", photos.folder).run(switches)
    return Report(
        "a store that is killed while it labels, and while its versions are switched",
        tables(labelled, switched, len(photos.pixels)),
        (*label_bars(labelled), *switch_bars(switched)),
        (
            f"SIGKILL within {killed_relabel.LONGEST:g} s (relabel) and {killed_switch.LONGEST:g} s (switch) "
            "after the store is ready",
            "every relabel makes all features anew, from the photos; nothing is kept",
        ),
        raw={"labels": vars(labelled), "switches": {**vars(switched), "sent": len(switched.sent)}},
    )


if __name__ == "__main__":
    main(__doc__, run)
