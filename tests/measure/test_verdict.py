from __future__ import annotations

import json
import math

from headwater.measure.verdict import Resource, Verdict


def verdict(**seconds: float) -> Verdict:
    """Of resources with these seconds per sample, all of rate 2."""
    names = {name.replace("_CPU", " CPU"): each for name, each in seconds.items()}
    return Verdict({name: Resource(2.0, "units", each) for name, each in names.items()}, 0.01, 100)


def test_the_slowest_is_named_with_what_would_move_it() -> None:
    found = verdict(trainer=0.001, trainer_CPU=0.004, disk=0.002)
    assert found.bottleneck == "trainer CPU"
    assert found.advice == "2 more cores at the trainer would move the bottleneck to the disk"


def test_a_faster_disk_is_a_wish_like_others() -> None:
    assert verdict(trainer=0.001, disk=0.003).advice == (
        "a disk 3.00 times as fast would move the bottleneck to the trainer"
    )


def test_a_link_that_waits_for_the_disk_behind_it_is_not_the_bottleneck() -> None:
    assert verdict(trainer=0.001, link=0.010, disk=0.006).bottleneck == "disk"
    assert verdict(trainer=0.001, link=0.010, disk=0.004).bottleneck == "link"


def test_what_no_plan_relieves_gains_nothing_alone() -> None:
    assert "a faster disk alone gains nothing" in verdict(disk=0.003, trainer_CPU=0.003).advice


def test_it_reads_as_a_table() -> None:
    resources = {
        "trainer": Resource(250.0, "samples/s", 0.004),
        "trainer CPU": Resource(2.0, "cores", 0.001),
        "link": Resource(12.5e6, "bytes/s", 0.002),
        "disk": Resource(4.1e8, "bytes/s", 0.0001, at_least=True),
        "store CPU": Resource(1.0, "cores", 0.0),
    }
    lines = str(Verdict(resources, 0.0042, 1024)).splitlines()
    assert [line.split() for line in lines[:6]] == [
        ["resource", "rate", "ms", "a", "sample"],
        ["trainer", "250", "samples/s", "4.000", "slowest"],
        ["trainer", "CPU", "2", "cores", "1.000"],
        ["link", "100", "Mbit/s", "2.000"],
        ["disk", "at", "least", "410", "MB/s", "0.100"],
        ["store", "CPU", "1", "core", "0.000"],
    ]
    assert lines[6] == (
        "a trainer 2.11 times as fast would move the bottleneck to the link; "
        "the run took 4.200 ms a sample, over 1,024 samples"
    )


def test_its_plain_data_is_json() -> None:
    found = Verdict({"disk": Resource(math.inf, "bytes/s", 0.0)}, 0.01, 8).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["resources"]["disk"]["rate"] is None
    assert found["advice"] == "nothing takes time"
