from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headwater.errors import Refused, WrongUse
from headwater.store.server.audit import AuditLog
from headwater.store.server.guard import FAILURES, REFILL_SECONDS, REMEMBERED, Caller, Guard
from headwater.store.server.tokens import SCOPES, Tokens

SECRET = "s3cret-of-the-trainer"
SHORT_LIVED = "s3cret-that-ends-soon"
NARROW = "s3cret-for-one-dataset"
HERE, THERE = "ipv4:192.0.2.1:50001", "ipv4:192.0.2.2:50001"
FILE = f"""
[[token]]
name = "trainer"
secret = "{SECRET}"
[[token]]
name = "guest"
secret = "{SHORT_LIVED}"
expires = 2027-01-15T08:00:10Z
[[token]]
name = "narrow"
secret = "{NARROW}"
scopes = ["read", "labels"]
datasets = ["photos"]
"""


@dataclass
class Door:
    guard: Guard
    now: float
    audit: AuditLog
    lines: Callable[[], list[dict[str, object]]]

    def try_in(self, secret: str, peer: str = HERE) -> str:
        try:
            return self.guard.identify(f"Bearer {secret}", peer).name
        except Refused as error:
            return str(error).split(";")[0]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    tokens.write_text(FILE)
    log = tmp_path / "audit.log"

    def lines() -> list[dict[str, object]]:
        return [json.loads(line) for line in log.read_text().splitlines()]

    # 2027-01-15 08:00:00 UTC
    door = Door(None, 1_800_000_000.0, None, lines)  # type: ignore[arg-type]
    door.audit = AuditLog(log, clock=lambda: door.now)
    door.guard = Guard(
        Tokens.load(tokens, {}, clock=lambda: door.now),
        open_to_all=False,
        audit=door.audit,
        clock=lambda: door.now,
    )
    yield door
    door.audit.close()


def exhaust(door: Door, peer: str = HERE) -> None:
    for _ in range(FAILURES):
        assert door.try_in("wrong", peer) == "token not accepted"


def test_a_right_token_becomes_a_caller(door: Door) -> None:
    assert door.guard.identify(f"Bearer {SECRET}", HERE) == Caller("trainer", HERE, frozenset({"read"}))
    caller = door.guard.identify(f"bearer  {NARROW} ", HERE)
    assert (caller.name, caller.scopes, caller.datasets) == ("narrow", {"read", "labels"}, {"photos"})


@pytest.mark.parametrize("header", [None, ""])
def test_without_a_token_nobody_comes_in(door: Door, header: str | None) -> None:
    with pytest.raises(Refused, match=r"^no token; .*authorization: Bearer"):
        door.guard.identify(header, HERE)


@pytest.mark.parametrize(
    "header",
    [
        SECRET,
        "Bearer",
        "Bearer ",
        f"Bearer{SECRET}",
        f"Basic {SECRET}",
        f"Bearer {SECRET} {SECRET}",
        f"Bearer {SECRET}\n",
        f"Bearer\n{SECRET}",
        f"Bearer {SECRET}\0",
        f"Bearer {SECRET}\u00a0",
        f"Bearer {SECRET[:-1]}",
        "Bearer " + "ü" * 20,
        "Bearer \ud800",
        "Bearer " + "x" * 5000,
        f"Bearer {SECRET}" + " " * 5000,
        "x" * 10_000_000,
    ],
)
def test_a_header_that_is_not_quite_right_is_not_accepted(door: Door, header: str) -> None:
    with pytest.raises(Refused, match=r"^token not accepted; ") as caught:
        door.guard.identify(header, HERE)
    assert len(str(caught.value)) < 200


@given(header=st.text(), peer=st.text())
@example(header="Bearer \ud800", peer="ipv6:%5B")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_header_and_no_peer_comes_in_or_breaks_anything(door: Door, header: str, peer: str) -> None:
    for text in (header, "Bearer " + header):
        with pytest.raises(Refused):
            door.guard.identify(text, peer)


def test_an_expired_token_is_told_so_and_a_running_caller_too(door: Door) -> None:
    caller = door.guard.identify(f"Bearer {SHORT_LIVED}", HERE)
    door.now += 9.9
    door.guard.check(caller, "read")
    door.now += 0.1
    told = r"^token 'guest' expired on 2027-01-15 08:00 UTC; "
    with pytest.raises(Refused, match=told):
        door.guard.check(caller, "read")
    with pytest.raises(Refused, match=told):
        door.guard.identify(f"Bearer {SHORT_LIVED}", HERE)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("dataset", [None, "photos", "x-rays", "", "../photos"])
def test_a_caller_may_what_its_scopes_and_datasets_say(door: Door, scope: str, dataset: str | None) -> None:
    caller = door.guard.identify(f"Bearer {NARROW}", HERE)
    allowed = scope in ("read", "labels") and dataset in (None, "photos")
    assert caller.may(scope, dataset) is allowed
    if allowed:
        door.guard.check(caller, scope, dataset)
    else:
        with pytest.raises(Refused, match="'narrow'"):
            door.guard.check(caller, scope, dataset)


def test_a_refusal_names_the_scope_or_the_dataset(door: Door) -> None:
    caller = door.guard.identify(f"Bearer {NARROW}", HERE)
    with pytest.raises(Refused, match="lacks scope 'admin'"):
        door.guard.check(caller, "admin")
    with pytest.raises(Refused, match="not good for dataset 'x-rays'"):
        door.guard.check(caller, "read", "x-rays")
    with pytest.raises(Refused) as caught:
        door.guard.check(caller, "read", "long\n" * 1000)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_admin_implies_nothing() -> None:
    caller = Caller("admin", HERE, frozenset({"admin"}))
    assert [scope for scope in SCOPES if caller.may(scope)] == ["admin"]


def test_one_of_several_scopes_is_enough_and_none_is_not(door: Door) -> None:
    caller = door.guard.identify(f"Bearer {NARROW}", HERE)
    door.guard.check_any(caller, ("admin", "labels"))
    with pytest.raises(Refused, match="token 'narrow' lacks scope 'admin' or 'jobs'"):
        door.guard.check_any(caller, ("admin", "jobs"))
    assert door.lines()[-1]["scope"] == "admin or jobs"
    late = door.guard.identify(f"Bearer {SHORT_LIVED}", HERE)
    door.now += 3600
    with pytest.raises(Refused, match="expired"):
        door.guard.check_any(late, ("read",))


def test_a_scope_that_does_not_exist_is_a_mistake_of_ours(door: Door) -> None:
    with pytest.raises(WrongUse, match="unknown scope 'write'"):
        door.guard.check(door.guard.identify(f"Bearer {SECRET}", HERE), "write")


def test_an_address_that_fails_too_often_waits_even_with_a_right_token(door: Door) -> None:
    exhaust(door)
    assert door.try_in("wrong") == "too many failed attempts from 192.0.2.1"
    assert door.try_in(SECRET, "ipv4:192.0.2.1:9") == "too many failed attempts from 192.0.2.1"
    with pytest.raises(Refused, match=rf"try again in {math.ceil(REFILL_SECONDS)} s"):
        door.guard.identify(f"Bearer {SECRET}", HERE)
    assert door.try_in(SECRET, THERE) == "trainer"


def test_failures_are_forgiven_one_by_one(door: Door) -> None:
    exhaust(door)
    door.now += REFILL_SECONDS - 0.1
    assert door.try_in(SECRET).startswith("too many")
    door.now += 0.2
    assert door.try_in("wrong") == "token not accepted"
    assert door.try_in("wrong").startswith("too many")
    door.now += 1000 * REFILL_SECONDS
    exhaust(door)
    assert door.try_in("wrong").startswith("too many")


def test_a_clock_set_back_neither_forgives_nor_locks_for_ever(door: Door) -> None:
    exhaust(door)
    door.now -= 3600
    with pytest.raises(Refused, match="try again in 6 s"):
        door.guard.identify("Bearer wrong", HERE)
    door.now += 3601
    assert door.try_in(SECRET).startswith("too many")
    door.now += REFILL_SECONDS
    assert door.try_in(SECRET) == "trainer"


def test_a_run_that_was_let_in_is_not_locked_out_by_its_neighbour(door: Door) -> None:
    assert door.try_in(SECRET) == "trainer"
    exhaust(door, "ipv4:192.0.2.1:4444")
    assert door.try_in(SECRET, "ipv4:192.0.2.1:5555") == "trainer"
    assert door.try_in(NARROW).startswith("too many"), "a token that was never seen from there has to wait"


def test_successes_and_missing_and_expired_tokens_use_nothing_up(door: Door) -> None:
    door.now += 60
    for _ in range(3 * FAILURES):
        with pytest.raises(Refused, match="no token"):
            door.guard.identify(None, HERE)
        assert door.try_in(SHORT_LIVED).startswith("token 'guest' expired")
        door.guard.identify(f"Bearer {NARROW}", HERE)
    assert door.try_in(SECRET) == "trainer"


def test_an_ipv6_network_shares_its_failures(door: Door) -> None:
    for interface in range(FAILURES):
        door.try_in("wrong", f"ipv6:%5B2001:db8:0:1::{interface:x}%5D:1")
    assert door.try_in(SECRET, "ipv6:[2001:db8:0:1:ffff::9]:1").endswith("from 2001:db8:0:1::/64")
    assert door.try_in(SECRET, "ipv6:[2001:db8:0:2::1]:1") == "trainer"


def test_strangers_cannot_fill_the_memory(door: Door) -> None:
    exhaust(door)
    for number in range(REMEMBERED + 10):
        door.try_in("wrong", f"ipv4:10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1")
    assert len(door.guard._attempts._left._values) == REMEMBERED


def test_a_store_that_is_open_lets_everybody_do_everything(tmp_path: Path) -> None:
    guard = Guard(Tokens.load(None, {}), open_to_all=True, audit=AuditLog(None))
    for header in (None, "Bearer what-a-client-still-sends"):
        caller = guard.identify(header, HERE)
        assert caller.name == "anonymous"
        for scope in SCOPES:
            guard.check(caller, scope, "photos")


def test_a_store_with_tokens_cannot_be_open() -> None:
    tokens = Tokens.load(None, {"HEADWATER_TOKEN": SECRET})
    with pytest.raises(WrongUse, match="cannot be open to all"):
        Guard(tokens, open_to_all=True, audit=AuditLog(None))


def test_a_closed_store_without_tokens_lets_nobody_in() -> None:
    guard = Guard(Tokens.load(None, {}), open_to_all=False, audit=AuditLog(None))
    with pytest.raises(Refused, match="token not accepted"):
        guard.identify(f"Bearer {SECRET}", HERE)


def test_who_came_and_who_was_refused_is_in_the_audit_log(door: Door) -> None:
    for _ in range(3):
        door.try_in(SECRET)
    door.try_in("wrong", THERE)
    caller = door.guard.identify(f"Bearer {NARROW}", HERE)
    with pytest.raises(Refused):
        door.guard.check(caller, "read", "x-rays")
    seen = [(line["action"], line["caller"], line["peer"], line["outcome"]) for line in door.lines()]
    assert seen == [
        ("connect", "trainer", "192.0.2.1", "ok"),
        ("refused", "anonymous", "192.0.2.2", "token not accepted"),
        ("connect", "narrow", "192.0.2.1", "ok"),
        ("refused", "narrow", "192.0.2.1", "dataset"),
    ]
    assert door.lines()[-1]["dataset"] == "x-rays"


def test_no_secret_shows_anywhere(door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    texts = [repr(door.guard.identify(f"Bearer {SECRET}", HERE)), repr(door.guard)]
    for wrong in ("s3cret-but-wrong-one", SECRET + " s3cret", "s3cret" * 1000):
        with pytest.raises(Refused) as caught:
            door.guard.identify(f"Bearer {wrong}", HERE)
        texts.append(repr(caught.value))
    door.now += 60
    texts.append(door.try_in(SHORT_LIVED))
    door.audit.flush()
    texts += [caplog.text, (tmp_path / "audit.log").read_text()]
    assert not any("s3cret" in text for text in texts)
    assert "trainer" in texts[0]
