"""What the audit log is told of an action: names and digests, and of what cannot be read, that."""

from __future__ import annotations

import pytest

from headwater.store.server.linefile import Fact
from headwater.store.server.noting import ADDED_UP, facts_in
from headwater.store.wire.messages import ACTIONS, SCOPE_OF_ACTION
from held import NAME
from visitors import BODIES, BODY, MODEL

TOLD: dict[str, dict[str, Fact]] = {
    "release": {"ids": "all"},
    "model_offer": {"model": NAME, "version": MODEL.digest, "base": None, "bytes": 1},
    "model_take": {"version": MODEL.digest, "switch": False, "unmeasured": False},
    "model_switch": {"model": NAME, "version": MODEL.digest, "unmeasured": False},
    "model_rollback": {"model": NAME, "version": BODY},
}


@pytest.mark.parametrize("action", TOLD)
def test_what_a_line_says(action: str) -> None:
    assert facts_in(action, BODIES[action]) == TOLD[action]
    (unreadable,) = facts_in(action, b"\xc1").values()
    assert unreadable == "unreadable"


def test_an_offer_of_what_is_no_manifest_is_unreadable() -> None:
    spoilt = BODIES["model_offer"].replace(NAME.encode(), b"c0lours")
    assert facts_in("model_offer", spoilt) == {"version": "unreadable"}


def test_every_action_that_needs_a_scope_is_told_of() -> None:
    for action in ACTIONS:
        if SCOPE_OF_ACTION[action] and action not in ADDED_UP:
            assert facts_in(action, BODIES[action]), action
