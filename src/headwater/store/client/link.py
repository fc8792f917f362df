"""How a client behaves on the link: its certificates, its patience, and how much it asks for at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import WrongUse

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Link:
    """Settings of a link to a store; the defaults suit most.

    `ca` signs the store's certificate (None: the system's authorities); `cert` and `key` are the client's
    own, for mutual TLS. A request that is not answered within `deadline_seconds` is sent again, to a
    replica if there is one; after `give_up_seconds` without an answer the read fails with `StoreLost`. At
    most `in_flight_bytes` are asked for at once of each store, fewer where the link is short: bytes of files,
    whatever comes of them at a cut. `hedge` asks a replica when the first store is unusually slow, and takes
    the answer that comes first.
    """

    ca: PathLike | None = None
    cert: PathLike | None = None
    key: PathLike | None = None
    deadline_seconds: float = 10.0
    give_up_seconds: float = 60.0
    in_flight_bytes: int = 64 << 20
    hedge: bool = True

    def __post_init__(self) -> None:
        if self.deadline_seconds <= 0 or self.give_up_seconds <= 0 or self.in_flight_bytes <= 0:
            raise WrongUse("deadline_seconds, give_up_seconds and in_flight_bytes must be positive")
        if (self.cert is None) != (self.key is None):
            raise WrongUse("a client certificate needs both cert and key")

    def read(self, which: PathLike | None) -> bytes | None:
        """The bytes of a certificate or key; raises `WrongUse` if it cannot be read."""
        if which is None:
            return None
        try:
            return Path(which).read_bytes()
        except OSError as error:
            raise WrongUse(f"cannot read {os.fspath(which)}: {error.strerror}; check the path") from error
