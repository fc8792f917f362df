"""Requests of a caller who has a token and means ill: each gets an answer or a clean error, at once.

Names that try to leave the place they belong to, random and mutated messages, sizes beyond all measure. No
text that comes back may tell of the store's insides, and the store must serve as before.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec
import numpy as np
import psutil
import pyarrow as pa
import pytest

import headwater as hw
from headwater.data.codecs import CODECS
from headwater.data.codecs.excerpts import EXCERPTS
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import DatasetNotFound, WrongUse
from headwater.models.version import is_model_name
from headwater.store.labels import open_labels
from headwater.store.server.daemon import Daemon
from headwater.store.server.tokens import SCOPES
from headwater.store.wire import messages
from headwater.store.wire.catalogue import combined
from headwater.store.wire.jobmessages import JobQuery, JobStart, JobStop
from headwater.store.wire.messages import (
    ACTIONS,
    BlocksRequest,
    FeatureRequest,
    Forget,
    Hello,
    InboxSeal,
    IndexRequest,
    LabelRequest,
    ReadRequest,
    Release,
    Request,
    SelectionRequest,
)
from headwater.store.wire.modelmessages import (
    ModelOffer,
    ModelPart,
    ModelQuery,
    ModelRollback,
    ModelSeal,
    ModelSwitch,
    ModelTake,
)
from headwater.store.wire.payloads import FACTS
from held import JOB, NAME, held_versions, keep_selection, make_state
from stores import running_daemon, write_tokens
from strange_names import NAMES
from visitors import BODIES, Visitor, complaint_of

SECRET = "s" * 32
TRUNK = held_versions()[1].trunk_digest
DECODE = {"name": "decode"}
STEPS = [
    DECODE,
    {"name": "random_area"},
    {"name": "resize", "size": [24, 24]},
    {"name": "random_horizontal_flip"},
]


@dataclass
class Target:
    """A store, a caller with a token, and a request that it answers."""

    daemon: Daemon
    visitor: Visitor
    good: ReadRequest
    folder: Path
    audit: Path
    state: Path

    @property
    def cut(self) -> ReadRequest:
        """A good request for samples that the store has taken some steps with."""
        return msgspec.structs.replace(
            self.good,
            cuts=b"\4\3\2\1",
            codecs=b"\0\1\0\1",
            names=["none", "zstd"],
            steps=STEPS,
            digest=self.digest(STEPS),
            epoch=3,
            seed=17,
        )

    @cached_property
    def catalogue(self) -> dict[str, str]:
        """What the store tells of its steps to everybody whom it greets."""
        welcome = messages.decode(messages.Welcome, self.visitor.act("hello", BODIES["hello"]))
        return dict(welcome.catalogue)

    def digest(self, steps: list[dict[str, Any]]) -> str:
        """What a client must send with steps, or they are not run."""
        try:
            return combined(Pipeline.from_spec(steps, catalogue()), self.catalogue)
        except (WrongUse, TypeError):
            return ""

    def send(self, change: dict[str, Any], *, base: ReadRequest | None = None) -> list[pa.RecordBatch] | str:
        """What comes of a good request with some fields changed: batches, or what is wrong with it."""
        fields = msgspec.to_builtins(base or self.good, builtin_types=(bytes,)) | change
        return self.get(msgspec.msgpack.encode(fields))

    def send_steps(self, steps: list[dict[str, Any]]) -> list[pa.RecordBatch] | str:
        """What comes of a request for all of these steps."""
        cuts = {"cuts": bytes([len(steps)]) * 4, "codecs": bytes(4), "names": ["none"]}
        return self.send({"steps": steps, "digest": self.digest(steps), **cuts})

    def get(self, ticket: bytes) -> list[pa.RecordBatch] | str:
        return self._try(lambda: self.visitor.get(ticket))

    def act(self, action: str, body: bytes) -> bytes | str:
        return self._try(lambda: self.visitor.act(action, body))

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (pa.ArrowException, OSError) as error:
            text = complaint_of(error).text
        assert str(self.folder) not in text
        assert len(text.encode()) <= 4096
        return text

    def forget_names(self) -> None:
        """Versions are in force under the name of the good bodies alone, as in the beginning."""
        for path in (self.state / "models" / "current").iterdir():
            if path.name != NAME:
                path.unlink()

    def check_alive(self) -> None:
        """It serves what it served before, byte for byte, and steps too."""
        (batch,) = self.visitor.get(self.good)
        local = hw.open(self.folder)
        positions = local.index.position_of(np.frombuffer(self.good.ids, np.int64))
        assert [bytes(file) for file in local.store.read(positions)] == batch.column("payload").to_pylist()

    def memory(self) -> int:
        """Resident bytes of the store and its workers."""
        me = psutil.Process()
        return sum(process.memory_info().rss for process in (me, *me.children(recursive=True)))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("hostile")
    tokens = write_tokens(folder, caller={"secret": SECRET, "scopes": list(SCOPES)})
    audit = folder / "audit.jsonl"
    index = hw.open(photo_folder).index
    ids = index.ids[:4].tobytes()
    kept = {"token_file": tokens, "audit_log": audit, "state": make_state(folder / "state")}
    with closing(open_labels(folder / "state" / "labels.db")) as labels:
        labels.enrol("photos", index.ids, index.labels, class_names=index.classes)
    keep_selection(folder / "state", index.version)
    with running_daemon({"photos": photo_folder}, **kept) as daemon:
        good = ReadRequest("photos", daemon.serving.datasets["photos"][1], "caller", ids)
        with Visitor(daemon.serving.address, SECRET) as visitor:
            yield Target(daemon, visitor, good, photo_folder, audit, folder / "state")


@pytest.fixture(autouse=True)
def still_serving(target: Target) -> Iterator[None]:
    yield
    target.check_alive()


def in_steps(**parameters: object) -> dict[str, Any]:
    steps = [DECODE, {"name": "resize", "size": [8, 8], **parameters}]
    return {"steps": steps, "cuts": b"\2" * 4, "codecs": bytes(4), "names": ["none"]}


BODY_KINDS: dict[str, type] = {
    "hello": Hello,
    "release": Release,
    "models": ModelQuery,
    "model_offer": ModelOffer,
    "model_part": ModelPart,
    "model_take": ModelTake,
    "model_switch": ModelSwitch,
    "model_rollback": ModelRollback,
    "jobs": JobQuery,
    "job_start": JobStart,
    "job_stop": JobStop,
    "inbox_seal": InboxSeal,
    "forget": Forget,
    "model_seal": ModelSeal,
}
"""Actions with a body, and what it is."""


def holds_text(kind: Any) -> bool:
    """Whether a value of this type, as `msgspec.inspect` tells it, can hold text of a caller's choice."""
    if isinstance(kind, msgspec.inspect.StrType | msgspec.inspect.AnyType):
        return True
    held = [getattr(kind, name, None) for name in ("item_type", "key_type", "value_type")]
    held += [*getattr(kind, "types", ()), *(field.type for field in getattr(kind, "fields", ()))]
    return any(holds_text(each) for each in held if each is not None)


def texts_of(message: type) -> list[str]:
    """The fields of a message in which a client can send text."""
    return [field.name for field in msgspec.inspect.type_info(message).fields if holds_text(field.type)]  # type: ignore[attr-defined]


Change = Callable[[str], dict[str, Any]]
FIELDS: dict[str, dict[str, Change]] = {
    "dataset": {"dataset": lambda name: {"dataset": name}},
    "version": {"version": lambda name: {"version": name}},
    "client": {"client": lambda name: {"client": name}},
    "names": {"codec": lambda name: in_steps() | {"names": [name]}},
    "model": {"model": lambda name: {"model": name or "_"}},
    "older_than": {"newer model": lambda name: {"older_than": name or "_"}},
    "classes": {"class": lambda name: {"classes": [name]}},
    "sources": {"source": lambda name: {"sources": [name]}},
    "known": {"known": lambda name: {"known": name}},
    "job": {"job": lambda name: {"job": name}},
    "cut": {"cut": lambda name: {"cut": name or "_"}},
    "digest": {"digest": lambda name: in_steps() | {"digest": name}},
    "steps": {
        "step": lambda name: in_steps(name=name),
        "parameter": lambda name: in_steps(interpolation=name),
        "name of a parameter": lambda name: in_steps(**{name or "_": 1}),
    },
}
"""Field of a request > where in it a name goes."""
OWN_WORDS = {"client", "digest", "known"}
"""What a client may fill as it likes, up to a length."""
LEFT_OUT = {"name of a parameter", "codec"}
"""What is ignored if the store does not know it."""
TEXTS = {str(kind.__struct_config__.tag): texts_of(kind) for kind in get_args(Request)}
PLACES = [
    (kind, place, change)
    for kind, fields in TEXTS.items()
    for field in fields
    for place, change in FIELDS.get(field, {}).items()
]


def test_no_text_of_a_request_is_forgotten() -> None:
    assert TEXTS["read"] == ["dataset", "version", "client", "names", "steps", "digest"]
    assert {field for fields in TEXTS.values() for field in fields} == set(FIELDS)


@pytest.mark.parametrize(
    ("kind", "place", "change"), PLACES, ids=[f"{place} of {kind}" for kind, place, _ in PLACES]
)
def test_a_strange_name_is_a_clean_error(target: Target, kind: str, place: str, change: Change) -> None:
    assert len(NAMES) >= 200
    for name in NAMES:
        changed = change(name)
        digest = {"digest": target.digest(changed["steps"])} if "steps" in changed else {}
        trunk = {"features": {"model": TRUNK}, "selection": {"job": JOB}}.get(kind, {})
        answer = target.send({"type": kind} | trunk | digest | changed)
        if place in OWN_WORDS:
            assert isinstance(answer, list) == (len(name) <= 128), name
        if isinstance(answer, list):
            assert place in OWN_WORDS | LEFT_OUT, name
            assert place not in ("codec", "digest") or cut_of(answer) == [0] * 4
    shown = json.loads(target.visitor.act("status"))["metrics"]["headwater_bytes_sent_total"]
    others = {"raw", "index", "fields", "features", "labels", "selection", "pixels"}
    assert set(shown) <= {*others, *CODECS, *EXCERPTS}


def test_a_strange_name_of_a_request_is_a_clean_error(target: Target) -> None:
    assert not [name for name in NAMES if isinstance(target.send({"type": name}), list)]


OWN_TEXTS = {("hello", "version"), ("job_start", "key"), ("jobs", "ids"), ("job_stop", "ids")}
"""What a caller may fill as it likes, up to a length: none of it is looked up in a folder."""
ANSWERED: dict[tuple[str, str], Callable[[str], bool]] = {
    **{place: lambda name: len(name) <= 128 for place in OWN_TEXTS},
    ("models", "version"): lambda name: not name,  # all of them
    ("job_start", "model"): lambda name: not name,  # the only one in force
    ("model_switch", "name"): is_model_name,  # a name is given by whoever may switch
}
"""For which strange texts there is an answer all the same; elsewhere for none."""
BODY_TEXTS = [(action, field) for action, kind in BODY_KINDS.items() for field in texts_of(kind)]


@pytest.mark.parametrize(("action", "field"), BODY_TEXTS)
def test_a_strange_name_in_the_body_of_an_action_changes_nothing(
    target: Target, action: str, field: str
) -> None:
    good = msgspec.msgpack.decode(BODIES[action])
    listed = isinstance(good.get(field), list)
    answered = ANSWERED.get((action, field), lambda name: False)
    for name in NAMES:
        answer = target.act(action, msgspec.msgpack.encode(good | {field: [name] if listed else name}))
        assert isinstance(answer, bytes) == answered(name), name
    if (action, field) == ("model_switch", "name"):
        target.forget_names()


def test_the_bodies_with_text_are_those_that_are_known() -> None:
    assert {action for action, body in BODIES.items() if body} == set(BODY_KINDS)
    assert set(BODY_TEXTS) >= OWN_TEXTS


def test_a_strange_name_of_an_action_is_a_clean_error(target: Target) -> None:
    for name in NAMES:
        if "\0" not in name:  # C++ ends a name there
            assert "no action is called" in str(target.act(name, b""))


def test_a_strange_name_in_an_address_goes_nowhere(target: Target) -> None:
    address = target.daemon.serving.address
    for written in {way for name in NAMES for way in (name, quote(name, safe=""))}:
        try:
            with closing(hw.open(f"{address}/{written}", token=SECRET)) as opened:
                # Python drops line ends from an address, and no name means the only dataset.
                assert written.strip("\n\r /") in ("", "photos"), written
                assert opened.uri == f"{address}/photos"
        except (WrongUse, DatasetNotFound):
            continue


def test_the_audit_log_stays_a_file_of_json_lines(target: Target) -> None:
    for name in NAMES:
        target.send({"dataset": name})
    target.daemon.tick()
    written = target.audit.read_bytes()
    assert not [byte for byte in set(written) if byte != 0x0A and not 0x20 <= byte < 0x7F]
    lines = [json.loads(line) for line in written.splitlines()]
    assert {"time", "action", "caller", "peer", "dataset", "outcome"} <= set.intersection(*map(set, lines))
    told = {line["dataset"] for line in lines}
    assert {"../../../../etc/passwd", "\n", "\0"} <= told
    assert max(map(len, told)) <= 256


class Dice(random.Random):
    """Draws messages."""

    def value(self, depth: int = 0) -> Any:
        kinds: list[Callable[[], Any]] = [
            lambda: None,
            lambda: self.random() < 0.5,
            lambda: self.choice([0, 1, -1, 255, 2**31, 2**63 - 1, 2**64 - 1, -(2**63)]),
            lambda: self.choice([0.0, -1.5, 1e308, float("nan"), float("inf")]),
            lambda: self.choice(NAMES)[:300],
            lambda: self.randbytes(self.choice([0, 1, 7, 8, 16, 31, 32, 800])),
            lambda: msgspec.msgpack.Ext(self.randrange(-128, 128), self.randbytes(5)),
        ]
        if depth < 4:
            kinds += [
                lambda: [self.value(depth + 1) for _ in range(self.randrange(4))],
                lambda: {self.choice(["name", "size", "a", ""]): self.value(depth + 1) for _ in range(3)},
            ]
        return self.choice(kinds)()

    def spoil(self, data: bytes) -> bytes:
        """Some bits flipped, bytes cut out, put in or repeated."""
        spoilt = bytearray(data)
        for _ in range(self.choice([1, 1, 1, 2, 5])):
            place = self.randrange(len(spoilt) or 1)
            how = self.randrange(5)
            if how < 2 and spoilt:
                spoilt[place] ^= 1 << self.randrange(8)
            elif how == 2:
                del spoilt[place : place + self.randrange(1, 9)]
            elif how == 3:
                spoilt[place:place] = self.randbytes(self.randrange(1, 9))
            else:
                spoilt += spoilt[place : place + 9]
        return bytes(spoilt)


@pytest.mark.parametrize("seed", range(4))
def test_spoilt_tickets(target: Target, seed: int) -> None:
    dice = Dice(seed)
    names = target.good.dataset, target.good.version, "caller"
    features = FeatureRequest(*names, target.good.ids, TRUNK)
    within = msgspec.structs.replace(features, cut="b")
    labels = LabelRequest(*names, after=7, rows=5, scores=(0.0, 1.0), sources=["human"], opinions=True)
    counts = LabelRequest(*names, counts=True)
    requests = [target.good, target.cut, IndexRequest(*names, 3, 5), BlocksRequest(*names)]
    requests += [features, within, labels, counts, SelectionRequest(*names, JOB, 1, 2)]
    good = [messages.encode(request) for request in requests]
    assert all(isinstance(target.get(ticket), list) for ticket in good)
    answers = [target.get(dice.spoil(dice.choice(good))) for _ in range(250)]
    assert sum(isinstance(answer, str) for answer in answers) > 100


@pytest.mark.parametrize("seed", range(4))
def test_tickets_with_values_of_any_kind(target: Target, seed: int) -> None:
    dice = Dice(seed)
    cut = target.cut
    fields = [*ReadRequest.__struct_fields__, "type", "start", "rows", "model"]
    for _ in range(200):
        change = {dice.choice(fields): dice.value() for _ in range(dice.choice([1, 1, 2, 5]))}
        target.send(change, base=dice.choice([target.good, cut]))
        target.get(msgspec.msgpack.encode(dice.value()))


@pytest.mark.parametrize("action", ACTIONS)
def test_spoilt_bodies_of_actions(target: Target, action: str) -> None:
    dice = Dice(len(action))
    assert isinstance(target.act(action, BODIES[action]), bytes)
    for _ in range(100):
        target.act(action, dice.spoil(BODIES[action]))
        target.act(action, msgspec.msgpack.encode(dice.value()))
    target.act(action, b"x" * (messages.MOST_TICKET_BYTES + 1))


NESTED = 100_000
BOMBS = {
    "lists in lists": b"\x91" * NESTED,
    "maps in maps": b"\x81\xa1a" * NESTED,
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\xdf\xff\xff\xff\xff\xa4type\xa4read",
    "a text of four billion": b"\x81\xa4type\xdb\xff\xff\xff\xff",
    "an extension of four billion": b"\x81\xa4type\xc9\xff\xff\xff\xff\x01",
    "a million keys": b"\xde\xff\xff" + b"\xa1a\x01" * 65535,
    "nothing": b"",
    "steps in steps": b"\x82\xa4type\xa4read\xa5steps\x91\x81\xa4name" + b"\x91" * NESTED,
    "a ticket beyond the limit": b"\xc0" * (messages.MOST_TICKET_BYTES + 1),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs(target: Target, bomb: str) -> None:
    before = target.memory()
    assert isinstance(target.get(BOMBS[bomb]), str)
    assert target.memory() - before < 64 << 20


def test_labels_without_end_come_in_pages(target: Target) -> None:
    """However many rows are asked for."""
    before = target.memory()
    for rows in (2**31, 2**48):
        (batch,) = target.send({"type": "labels", "rows": rows})
        assert isinstance(batch, pa.RecordBatch)
        assert batch.column("sample").to_pylist() == sorted(hw.open(target.folder).ids.tolist())
    assert target.memory() - before < 64 << 20


def test_a_giant_ticket(target: Target) -> None:
    with (
        Visitor(target.daemon.serving.address, SECRET, seconds=60) as patient,
        pytest.raises(pa.ArrowException) as caught,
    ):
        patient.get(bytes(64 << 20))
    assert complaint_of(caught.value).text.startswith("a ticket of 67,108,864 bytes; at most 1,048,576")


MISFITS: dict[str, dict[str, Any]] = {
    "no id": {"ids": b""},
    "half an id": {"ids": bytes(12)},
    "an id twice": {"ids": bytes(16)},
    "an id that is not there": {"ids": bytes(8)},
    "too many ids": {"ids": np.arange(20_000, dtype=np.int64).tobytes()},
    "fewer cuts than ids": {"cuts": b"\1", "codecs": b"\0", "names": ["none"], "steps": [DECODE]},
    "cuts without codecs": {"cuts": b"\1" * 4, "steps": [DECODE]},
    "a codec that is not named": {
        "cuts": b"\1" * 4,
        "codecs": b"\1" * 4,
        "names": ["none"],
        "steps": [DECODE],
    },
    "too many codecs": {"names": ["none"] * 65},
    "too many steps": {"steps": [DECODE] * 256},
    "a negative epoch": {"epoch": -1},
    "an epoch beyond": {"epoch": 2**62 + 1},
    "a seed beyond": {"seed": 2**63},
    "an offset beyond": {"offset": 256},
    "negative heads": {"heads": -1},
    "a step without a name": in_steps(name=None),
    "a step whose name is a list": in_steps(name=["resize"]),
    "a step whose name is a map": in_steps(name={"a": 1}),
    "a size of nothing": in_steps(size=[0, 0]),
    "a negative size": in_steps(size=[-1, 5]),
    "a size that is no number": in_steps(size=[float("nan"), 5]),
    "a start before the beginning": {"type": "index", "start": -1},
    "a start beyond": {"type": "index", "start": 2**48 + 1},
    "labels after what is no id": {"type": "labels", "after": -2},
    "labels after what is beyond all ids": {"type": "labels", "after": 2**63},
    "a range of scores that holds nothing": {"type": "labels", "scores": [1.0, 0.0]},
    "a range that is no number": {"type": "labels", "margins": [float("nan"), 1.0]},
    "half a range": {"type": "labels", "scores": [0.5]},
    "too many classes": {"type": "labels", "classes": ["ant"] * 65},
    "sources named again and again": {"type": "labels", "sources": ["human"] * 4},
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused(target: Target, misfit: str) -> None:
    assert isinstance(target.send(MISFITS[misfit]), str)


ABSURD: dict[str, list[dict[str, Any]]] = {
    "resize to a billion": [{"name": "resize", "size": 10**9}],
    "resize to a billion squared": [{"name": "resize", "size": [10**9, 10**9]}],
    "a size whose square wraps around": [{"name": "resize", "size": [2**32, 2**32]}],
    "a size beyond 64 bits": [{"name": "resize", "size": [2**63, 2]}],
    "a thin and very long picture": [{"name": "resize", "size": [8, 7_900_000], "interpolation": "bicubic"}],
    "padding without end": [{"name": "pad", "padding": 2**31}],
    "a mirror whose size wraps around": [
        {"name": "pad_to_fit", "size": [2**30, 2**34], "padding_mode": "reflect"}
    ],
    "more pixels than the cap": [{"name": "resize", "size": [60_000, 60_000]}],
    "padding upon padding": [{"name": "pad", "padding": 20_000}] * 7,
    "a crop of a billion": [{"name": "random_box", "size": [10**9, 1]}],
    "an area beyond all areas": [
        {"name": "random_area", "scale": [1e300, 1e308]},
        {"name": "resize", "size": 2**40},
    ],
    "a fill of many numbers": [{"name": "pad", "padding": 1, "fill": [1.0] * 50_000}],
    "two hundred steps": [{"name": "resize", "size": [4000, 4000]}, {"name": "resize", "size": [9, 9]}] * 100,
    "decoded twice": [DECODE],
}


def cut_of(answer: list[pa.RecordBatch] | str) -> list[int]:
    """How many steps the store has done for each sample."""
    assert isinstance(answer, list), answer
    column = answer[0].column("facts")
    assert answer[0].column("error").null_count == len(column)
    done: list[int] = np.frombuffer(column.buffers()[1], FACTS, count=len(column))["done"].tolist()
    return done


def wait_until_steps_are_run(target: Target) -> None:
    """A store that has no CPU to spare would do nothing at all, and prove nothing."""
    end = time.monotonic() + 20
    while cut_of(target.send_steps(STEPS)) != [4] * 4:
        assert time.monotonic() < end, "the store runs no steps any more"


@pytest.mark.parametrize("absurd", ABSURD)
def test_absurd_steps_stay_at_the_trainer(target: Target, absurd: str) -> None:
    wait_until_steps_are_run(target)
    steps = [DECODE, *ABSURD[absurd]]
    before = target.memory()
    assert cut_of(target.send_steps(steps)) == [0] * 4
    assert target.memory() - before < 64 << 20


def test_steps_before_decode_and_offsets_do_no_harm(target: Target) -> None:
    for steps in ([STEPS[3]], [STEPS[2], DECODE], STEPS[1:], [*STEPS, *STEPS]):
        fields = {"steps": steps, "digest": target.digest(steps), "codecs": bytes(4), "names": ["none"]}
        for offset in (0, 1, 255):
            for cut in range(len(steps) + 2):
                assert isinstance(target.send({**fields, "offset": offset, "cuts": bytes([cut]) * 4}), list)


def test_heads_longer_than_any_file_read_no_more_than_the_file(target: Target) -> None:
    (whole,) = target.send({})
    for heads in (2**31, 2**48):
        (batch,) = target.send({"heads": heads})
        assert isinstance(batch, pa.RecordBatch)
        assert batch.column("payload") == whole.column("payload")  # type: ignore[union-attr]


def test_a_worker_has_an_end_to_its_memory(target: Target) -> None:
    """Whatever steps it is given; the kernel, not the checks above, sees to that."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    workers = [child for child in living if "headwater.store.server.worker" in child.cmdline()]
    assert workers
    for worker in workers:
        soft, hard = worker.rlimit(psutil.RLIMIT_DATA)
        assert 1 << 30 < soft == hard <= 8 << 30


def test_nothing_was_quarantined_by_all_this(target: Target) -> None:
    target.daemon.tick()
    metrics = json.loads(target.visitor.act("status"))["metrics"]
    assert metrics["headwater_quarantined_samples"] == 0
    assert metrics["headwater_worker_restarts_total"] == 0
