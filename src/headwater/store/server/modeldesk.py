"""What a store answers about models: which it holds, how one comes here, and which is in force.

Every answer may be asked for again: an offer of what is here, a part that came before, a version that was
taken in already find that done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import xxhash

from headwater.engine.budget import Busy
from headwater.errors import HeadwaterError, ModelError, ModelNotFound, ModelRefused
from headwater.models.registry import Registry
from headwater.models.trial import try_out
from headwater.models.version import ModelVersion
from headwater.store.server.guard import Caller
from headwater.store.server.ledger import Ledger
from headwater.store.server.state import State
from headwater.store.server.talk import Answer
from headwater.store.server.uploads import Upload, Uploads
from headwater.store.wire import messages
from headwater.store.wire.messages import Message
from headwater.store.wire.modelmessages import (
    Arrived,
    InForce,
    Inventory,
    ModelOffer,
    ModelPart,
    ModelQuery,
    ModelRollback,
    ModelSeal,
    ModelSwitch,
    ModelTake,
    SealedVersions,
    Shipment,
    VersionFacts,
)

M = TypeVar("M", bound=Message)

_PATIENCE = 5.0  # seconds until who waits for another's model is told to ask again


class ModelDesk:
    """The actions on models. Safe to use from many threads; one changes something at a time.

    `most_bytes` bounds what is sent of a model, and its tensors. `withdraw` is told of a version that is no
    longer to label; it ends the jobs that do so, and gives their ids. Without a state there are no models.
    """

    def __init__(
        self,
        state: State | None,
        ledger: Ledger,
        *,
        most_bytes: int,
        withdraw: Callable[[str], list[str]] = lambda version: [],
    ) -> None:
        self._state, self._ledger, self._withdraw = state, ledger, withdraw
        self._changing = threading.Lock()
        self._uploads = None if state is None else Uploads(state.subfolder("uploads"), most_bytes=most_bytes)

    @property
    def answers(self) -> Mapping[str, Answer]:
        """Action > what answers it."""
        return {
            "models": self._answer(ModelQuery, self._list),
            "model_offer": self._answer(ModelOffer, self._offer),
            "model_part": self._answer(ModelPart, self._part),
            "model_take": self._answer(ModelTake, self._take),
            "model_switch": self._answer(ModelSwitch, self._switch),
            "model_rollback": self._answer(ModelRollback, self._roll_back),
            "model_seal": self._answer(ModelSeal, self._seal),
        }

    def _answer(self, kind: type[M], answer: Callable[[M, Caller], Message]) -> Answer:
        def run(body: bytes, caller: Caller) -> bytes:
            asked: M = messages.decode(kind, body)
            if self._state is None:
                raise ModelError("this store keeps no models; start it with --state FOLDER")
            try:
                return messages.encode(answer(asked, caller))
            except HeadwaterError as error:
                raise self._state.hide(error) from error.__cause__

        return run

    @property
    def registry(self) -> Registry:
        assert self._state is not None
        return self._state.registry

    @property
    def uploads(self) -> Uploads:
        assert self._uploads is not None
        return self._uploads

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One change at a time; raises `Busy` where another takes long."""
        if not self._changing.acquire(timeout=_PATIENCE):
            raise Busy("another model is being taken in; ask again")
        try:
            yield
        finally:
            self._changing.release()

    def _list(self, query: ModelQuery, caller: Caller) -> Inventory:
        registry = self.registry
        current = {name: list(_in_force(registry, name)) for name in registry.in_force()}
        manifest = registry.version(query.version).to_json() if query.version else b""
        sealed = registry.sealed()
        held = [_facts(version) for version in registry.versions() if version.digest not in sealed]
        return Inventory(current, held, manifest)

    def _offer(self, offer: ModelOffer, caller: Caller) -> Arrived:
        version = ModelVersion.from_json(offer.manifest)
        if self._holds(version.digest):
            return Arrived(offer.length, held=True)
        if version.nbytes > self.uploads.most_bytes:
            raise ModelRefused(
                f"version {version.digest[:12]} has tensors of {version.nbytes:,} bytes; this store takes "
                f"{self.uploads.most_bytes:,}: raise model_bytes there"
            )
        if offer.base is not None:
            self.registry.version(offer.base)
        upload = Upload(
            caller=caller.name,
            name=version.name,
            version=version.digest,
            digest=offer.digest,
            length=offer.length,
            base=offer.base,
            manifest=offer.manifest,
        )
        return Arrived(self.uploads.begin(upload))

    def _part(self, part: ModelPart, caller: Caller) -> Arrived:
        if xxhash.xxh3_64_intdigest(part.data) != part.checksum:
            raise ModelRefused(
                f"the {len(part.data):,} bytes from {part.offset:,} on were altered; send them again"
            )
        upload = self.uploads.find(caller.name, part.version, part.digest)
        if upload is None:
            if self._holds(part.version):
                return Arrived(part.offset + len(part.data), held=True)
            raise _not_offered(part.version)
        have, new = self.uploads.add(upload, part.offset, part.data)
        self._ledger.add("headwater_bytes_received_total", new, "model")
        return Arrived(have)

    def _take(self, take: ModelTake, caller: Caller) -> InForce:
        with self._turn():
            upload = self.uploads.find(caller.name, take.version, take.digest)
            if upload is not None:
                self._unpack(upload, switch=take.switch, unmeasured=take.unmeasured)
            elif not self._holds(take.version):
                raise _not_offered(take.version)
            elif take.switch:
                name = self.registry.version(take.version).name
                return self._put_in_force(name, take.version, unmeasured=take.unmeasured)
            return self._in_force(self.registry.version(take.version).name)

    def _unpack(self, upload: Upload, *, switch: bool, unmeasured: bool) -> None:
        """Make a version of what was sent. What is refused is forgotten; what found no room may try again."""
        body = self.uploads.read(upload)
        try:
            shipment = _read_shipment(body)
            del body
            version = ModelVersion.from_json(upload.manifest)
            before = self._in_force(version.name).current
            self.registry.receive(
                version,
                shipment.delta,
                base=upload.base,
                graphs=shipment.graphs,
                switch=switch,
                unmeasured=unmeasured,
                trial=try_out,
            )
        except (ModelRefused, ModelNotFound):
            self.uploads.drop(upload)
            raise
        self.uploads.drop(upload)
        self._count_switch(version.name, before)

    def _switch(self, asked: ModelSwitch, caller: Caller) -> InForce:
        with self._turn():
            return self._put_in_force(asked.name, asked.version, unmeasured=asked.unmeasured)

    def _roll_back(self, asked: ModelRollback, caller: Caller) -> InForce:
        with self._turn():
            before = self._in_force(asked.name).current
            if not before:
                raise ModelNotFound(f"no version of {asked.name!r} is in force, so none can be withdrawn")
            done = before == asked.current
            if done:
                self.registry.rollback(asked.name)
                self._count_switch(asked.name, asked.current)
            found = self._in_force(asked.name)
            # Also if that was done before, by a process that was killed then; not if a newer one came.
            gone = done or (found.current and asked.current not in found.before)
            return self._stopping(found, asked.current if gone else "")

    def _seal(self, asked: ModelSeal, caller: Caller) -> SealedVersions:
        with self._turn():
            fresh = self.registry.seal(asked.versions)
            for version in asked.versions:
                self._withdraw(version)
            return SealedVersions(fresh)

    def _put_in_force(self, name: str, version: str, *, unmeasured: bool) -> InForce:
        """Who puts in force what was so before goes back from what is now."""
        before = self._in_force(name)
        self.registry.switch(name, version, unmeasured=unmeasured)
        self._count_switch(name, before.current)
        return self._stopping(self._in_force(name), before.current if version in before.before else "")

    def _stopping(self, found: InForce, withdrawn: str) -> InForce:
        """The same, with the jobs that were ended: of a version that is in force under no name any more."""
        if not withdrawn or withdrawn in self.registry.in_force().values():
            return found
        return msgspec.structs.replace(found, stopped=self._withdraw(withdrawn))

    def _count_switch(self, name: str, before: str) -> None:
        changed = self._in_force(name).current != before
        self._ledger.add("headwater_model_switches_total", int(changed))

    def _in_force(self, name: str) -> InForce:
        current, *before = _in_force(self.registry, name)
        return InForce(name, current, before)

    def _holds(self, digest: str) -> bool:
        """Whether the version is here and whole; one that is damaged is sent again."""
        try:
            self.registry.get(digest)
        except ModelError:
            return False
        return True


def _in_force(registry: Registry, name: str) -> tuple[str, ...]:
    """The digest in force, and those before it; an empty one where there is none, or it is damaged."""
    try:
        return registry.resolve(name), *registry.history(name)
    except (ModelNotFound, ModelRefused):
        return ("",)


def _facts(version: ModelVersion) -> VersionFacts:
    return VersionFacts(
        digest=version.digest,
        name=version.name,
        parent=version.parent,
        by=str(version.made.get("by", ""))[:128],
        bytes=version.nbytes,
        classes=len(version.classes),
        features=version.features,
        tensors=len(version.tensors),
        time=version.time,
        graphs=list(version.graphs.values()),
    )


def _read_shipment(body: bytes) -> Shipment:
    try:
        found: Shipment = messages.decode(Shipment, body)
    except HeadwaterError as error:
        raise ModelRefused(f"what came is no shipment: {error}") from error
    return found


def _not_offered(version: str) -> ModelNotFound:
    return ModelNotFound(f"nothing of version {version[:32]!r} is on its way here; offer it first")
