"""What the audit log says of an action: what its body names, never what it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.errors import HeadwaterError
from headwater.models.version import ModelVersion
from headwater.store.server.linefile import Fact
from headwater.store.wire import messages
from headwater.store.wire.jobmessages import JobStart, JobStop
from headwater.store.wire.messages import Forget, InboxSeal, Message, Release
from headwater.store.wire.modelmessages import ModelOffer, ModelRollback, ModelSeal, ModelSwitch, ModelTake

ADDED_UP = frozenset({"status", "models", "model_part", "jobs"})
"""Asked for again and again, by whoever watches or sends: a line tells of many."""
_MOST_IDS = 64
_UNREADABLE = "unreadable"


def facts_in(action: str, body: bytes) -> dict[str, Fact]:
    """What a line of the audit log says of this action beside who and when."""
    if action not in _FACTS:
        return {}
    kind, tell = _FACTS[action]
    try:
        return tell(messages.decode(kind, body))
    except HeadwaterError:
        return {"ids" if action == "release" else "version": _UNREADABLE}


def _release(asked: Release) -> dict[str, Fact]:
    return {"ids": ",".join(map(str, asked.ids[:_MOST_IDS])) or "all"}


def _offer(offer: ModelOffer) -> dict[str, Fact]:
    version = ModelVersion.from_json(offer.manifest)
    return {"model": version.name, "version": version.digest, "base": offer.base, "bytes": offer.length}


def _take(take: ModelTake) -> dict[str, Fact]:
    return {"version": take.version, "switch": take.switch, "unmeasured": take.unmeasured}


def _switch(asked: ModelSwitch) -> dict[str, Fact]:
    return {"model": asked.name, "version": asked.version, "unmeasured": asked.unmeasured}


def _roll_back(asked: ModelRollback) -> dict[str, Fact]:
    return {"model": asked.name, "version": asked.current}


def _start(asked: JobStart) -> dict[str, Fact]:
    return {"job": asked.kind, "model": asked.model, "of": asked.dataset}


def _stop(asked: JobStop) -> dict[str, Fact]:
    return {"jobs": ",".join(asked.ids[:_MOST_IDS])}


def _seal(asked: InboxSeal) -> dict[str, Fact]:
    return {"of": asked.dataset}


def _forget(asked: Forget) -> dict[str, Fact]:
    """Never the ids."""
    return {
        "of": asked.dataset,
        "samples": len(asked.ids) // 8,
        "delete_files": asked.delete_files,
        "dry_run": asked.dry_run,
    }


def _seal_models(asked: ModelSeal) -> dict[str, Fact]:
    return {"versions": ",".join(asked.versions[:_MOST_IDS])}


_FACTS: dict[str, tuple[type[Message], Callable[[Any], dict[str, Fact]]]] = {
    "release": (Release, _release),
    "model_offer": (ModelOffer, _offer),
    "model_take": (ModelTake, _take),
    "model_switch": (ModelSwitch, _switch),
    "model_rollback": (ModelRollback, _roll_back),
    "job_start": (JobStart, _start),
    "job_stop": (JobStop, _stop),
    "inbox_seal": (InboxSeal, _seal),
    "forget": (Forget, _forget),
    "model_seal": (ModelSeal, _seal_models),
}
