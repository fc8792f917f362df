"""Which versions of models have seen samples that are to be forgotten, and what can be done about each.

A version's journal tells; where there is none, the data that it says it was trained on, whether it is a head
or a whole model. Versions that were made of one that saw them have seen them, too: approximations, int8
layers, slim models, and heads that went on from it. Of one that says nothing of its data nobody can tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.errors import JournalRefused
from headwater.models.evidence import QUANTISED
from headwater.models.registry import Registry
from headwater.models.version import PROXY, ModelVersion
from headwater.store.dataset import Dataset
from headwater.tune.journals import journal_path

_APPROXIMATED, _SLIM = "int8 delta", "early ticket"


@dataclass(frozen=True)
class Affected:
    """Versions that saw the samples, or may have; of those in force, by name, what keeps one from a replay.

    `replay` are those in force that can be replayed, by name. `untold` are versions of which nobody can tell.
    """

    versions: tuple[ModelVersion, ...] = ()
    replay: Mapping[str, ModelVersion] = field(default_factory=dict)
    stuck: Mapping[str, str] = field(default_factory=dict)
    untold: tuple[ModelVersion, ...] = ()

    @property
    def digests(self) -> list[str]:
        return [version.digest for version in self.versions]


class Witnesses:
    """Tells who has seen samples: `registry` has the journals, `versions` are all that are asked about."""

    def __init__(
        self,
        registry: Registry,
        versions: Iterable[ModelVersion],
        ids: NDArray[np.int64],
        *,
        dataset: Dataset,
        data: Collection[str],
        without: Collection[str] = (),
    ) -> None:
        """`data` are versions that `dataset` had while it had the samples, `without` those after that."""
        self._registry, self._ids, self._dataset = registry, ids, dataset
        self._data, self._without = data, without
        self._known = {version.digest: version for version in versions}
        self._found: dict[str, bool] = {}
        self._told: dict[str, bool] = {}
        self._named: dict[str, bool | None] = {}
        self.refused: dict[str, JournalRefused] = {}
        """Journals that are no evidence, by the digests of their versions."""

    def judge(self, in_force: Mapping[str, str]) -> Affected:
        """All that saw them, and those in force, by name, that did."""
        sealed = self._registry.sealed()
        asked = [version for version in self._known.values() if version.digest not in sealed]
        saw = [version for version in asked if self.saw(version.digest)]
        names = {version.name for version in saw}
        older = [version for version in asked if self._may_have(version, names) and version not in saw]
        found = {version.digest: version for version in (*saw, *older)}
        held = {name: found[digest] for name, digest in in_force.items() if digest in found}
        stuck = {name: why for name, version in held.items() if (why := self._obstacle(version))}
        replay = {name: version for name, version in held.items() if name not in stuck}
        rest = [version for version in asked if version.digest not in found]
        untold = tuple(version for version in rest if not self._can_tell(version.digest))
        return Affected(tuple(found.values()), replay, stuck, untold)

    def saw(self, digest: str) -> bool:
        """Whether a version was trained on one of the samples, itself or by what it was made of."""
        if digest not in self._found:
            self._found[digest] = False  # of its own ancestor, if a manifest says something so strange
            version = self._known.get(digest)
            self._found[digest] = version is not None and (self._trained(version) or self._inherited(version))
        return self._found[digest]

    def _trained(self, version: ModelVersion) -> bool:
        named = self._in_journal(version)
        if named is not None:
            return named
        return _data_of(version) in self._data

    def _inherited(self, version: ModelVersion) -> bool:
        return any(self.saw(digest) for digest in _origins(version))

    def _can_tell(self, digest: str) -> bool:
        """Whether it is known what a version was trained on, itself and by what it was made of."""
        if digest not in self._told:
            self._told[digest] = False
            version = self._known.get(digest)
            self._told[digest] = version is not None and (
                (self._knows_own(version) or not _trains(version))
                and all(map(self._can_tell, _origins(version)))
            )
        return self._told[digest]

    def _knows_own(self, version: ModelVersion) -> bool:
        known = _data_of(version) in {*self._data, *self._without}
        return known or self._in_journal(version) is not None

    def _may_have(self, version: ModelVersion, names: Collection[str]) -> bool:
        """Of the same name, of data that are not known, without a journal: nobody can tell."""
        data = _data_of(version)
        if version.made.get("by") == PROXY:  # all have one name, whatever they were trained on
            return False
        other = data is not None and data not in self._without
        return other and version.name in names and self._in_journal(version) is None

    def _obstacle(self, version: ModelVersion) -> str:
        """Why a version in force cannot be replayed; empty if it can."""
        if version.made.get("by") == QUANTISED:
            return "it has int8 layers: put what they were made of in force first, and quantise again after"
        if "head" not in version.made:
            return (
                "it has no head that a journal could make again: train it again on what is left, and put "
                "that in force"
            )
        if self._inherited(version):
            return "its training went on from a head that saw them: fine-tune again from other layers"
        if self._in_journal(version) is None:
            return "it has no journal: fine-tune again without them, with --journal"
        return ""

    def _in_journal(self, version: ModelVersion) -> bool | None:
        """Whether its journal names one of them; None without a journal that is whole, and its own."""
        if version.digest not in self._named:
            self._named[version.digest] = self._look_up(version)
        return self._named[version.digest]

    def _look_up(self, version: ModelVersion) -> bool | None:
        if not journal_path(self._registry, version.digest).exists():
            return None
        from headwater.tune.again import HeadAgain

        try:
            again = HeadAgain(self._dataset, version.digest, registry=self._registry)
        except JournalRefused as error:
            self.refused[version.digest] = error
            return None
        return bool(np.isin(self._ids, again.ids).any())


def _data_of(version: ModelVersion) -> str | None:
    """The version of the data that it was trained on, None if it does not say; those that int8 layers were
    calibrated on have given them ranges, and no more."""
    data = version.made.get("data")
    return str(data) if data and _trains(version) else None


def _trains(version: ModelVersion) -> bool:
    """Whether it was trained, and not computed from others."""
    return version.made.get("by") not in (_APPROXIMATED, QUANTISED)


def _origins(version: ModelVersion) -> list[str]:
    """Digests of the versions whose weights went into it; empty for one that is not known."""
    made, parent = version.made, version.parent or ""
    if made.get("by") == _APPROXIMATED:
        return [str(made.get("of")), parent]
    if made.get("by") == QUANTISED or made.get("start") == "parent":
        return [parent]
    return [parent] if made.get("by") == _SLIM and parent else []
