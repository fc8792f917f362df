"""A link is checked where it is written down, not in the middle of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import WrongUse
from headwater.store.client.link import Link


@pytest.mark.parametrize("name", ["deadline_seconds", "give_up_seconds", "in_flight_bytes"])
@pytest.mark.parametrize("value", [0, -1])
def test_patience_and_bytes_are_positive(name: str, value: int) -> None:
    with pytest.raises(WrongUse, match=name):
        Link(**{name: value})


@pytest.mark.parametrize("half", [{"cert": "c.pem"}, {"key": "k.pem"}])
def test_a_certificate_comes_with_its_key(half: dict[str, str]) -> None:
    with pytest.raises(WrongUse, match="both cert and key"):
        Link(**half)
    Link(cert="c.pem", key="k.pem")


def test_files_are_read_when_they_are_needed(tmp_path: Path) -> None:
    link = Link(ca=tmp_path / "ca.pem")
    with pytest.raises(WrongUse, match=r"cannot read .*ca\.pem: No such file"):
        link.read(link.ca)
    (tmp_path / "ca.pem").write_bytes(b"certificate")
    assert link.read(link.ca) == b"certificate"
    assert link.read(link.key) is None
