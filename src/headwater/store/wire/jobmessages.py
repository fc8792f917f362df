"""Messages about jobs: what a store is to do by itself, and how far it has come."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headwater.store.wire.messages import Message, Name

Parameters = Annotated[dict[Name, bool | int | float | Name | None], msgspec.Meta(max_length=64)]


class SelectionWish(Message, frozen=True):
    """By which selector samples are chosen, and for which epoch of how many, if that is known.

    `parameters` are its own, those that are not as by default. `seed` and `epoch` key what it draws,
    `stalled` is the share of its time that training waits for data. `vectors` says what tells samples apart,
    for selectors that look at that: `logits` or `weights`, by which the gradient of the loss is taken.
    `drawn` says that the proxy's steps draw, by `seed` and `epoch`, what a trainer's will: it sees the crops
    that will be trained on. `run` is a name that the caller has for its training run: selectors that learn
    from several rounds find what earlier ones with this name have found; `ends` says that no other comes.
    """

    selector: Name
    parameters: Parameters = msgspec.field(default_factory=dict)
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    epoch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)] = 0
    epochs: Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)] | None = None
    stalled: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    vectors: Name = "logits"
    run: Name = ""
    ends: bool = False
    drawn: bool = False


class JobStart(Message, frozen=True):
    """Begin a job. `model` is a digest, its beginning, or a name: the version in force there.

    `key` is the caller's own for this job: sent again, it finds the same one. To relabel, `opinions` asks the
    model about samples with somebody else's label too, `over_imports` lets it replace labels that came with
    the data. To quantise, `bound` is the share of labels that must stay, and `hold` leaves in force what is.
    To select, `selection` says how. To find duplicates, `bound` is how many bits may differ; with a `model`,
    which may be empty there, it is the least cosine of its features; `rows` asks for what tells the samples
    apart, hashes or features, and not for groups.
    """

    kind: Name
    dataset: Name
    model: Name
    key: Name
    opinions: bool = False
    over_imports: bool = False
    bound: float = 0.0
    hold: bool = False
    selection: SelectionWish | None = None
    rows: bool = False


class JobQuery(Message, frozen=True):
    """Which jobs to tell of; none named: all."""

    ids: Annotated[list[Name], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=list)


class JobStop(Message, frozen=True):
    """Which jobs to end."""

    ids: Annotated[list[Name], msgspec.Meta(max_length=1000)]


class FailedSample(Message, frozen=True):
    """A sample with which a job could do nothing, and why."""

    id: int
    key: str
    reason: str


class JobFacts(Message, frozen=True):
    """One job: what it is about, how far it is (`done` of `total` samples), and what became of them.

    Where it made a version, or a selection, `result` is its digest; `said` is what it found in a line,
    `figures` in numbers.
    """

    id: str
    kind: str
    dataset: str
    version: str
    model: str
    state: str
    begun: str
    ended: str = ""
    error: str = ""
    done: int = 0
    total: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    failures: list[FailedSample] = msgspec.field(default_factory=list)
    result: str = ""
    said: str = ""
    figures: dict[str, float] = msgspec.field(default_factory=dict)


class JobList(Message, frozen=True):
    """Jobs of a store, the oldest first."""

    jobs: list[JobFacts]
