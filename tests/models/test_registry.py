from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from forks import in_child
from graphs import STEPS, are_same, change, make_int8, make_model, make_tensors, new_head
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import MissingExtra, ModelError, ModelNotFound, ModelRefused, WrongUse
from headwater.models import registry as registries
from headwater.models.delta import encode
from headwater.models.model import Model
from headwater.models.pointer import HISTORY
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion, seal

NONE = "0" * 32


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


def files(registry: Registry, kind: str) -> list[Path]:
    return sorted((registry.folder / kind).iterdir())


def flip(path: Path, place: int = -1) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_what_is_put_is_got(registry: Registry) -> None:
    model = make_model(1)
    version = registry.put(model, name="birds", made={"by": "push", "file": "x.onnx"})
    found = registry.get(version.digest)
    assert are_same(found.tensors, model.tensors)
    assert (found.trunk, found.head, found.classes) == (model.trunk, None, model.classes)
    assert Pipeline.from_spec(found.steps, catalogue()) == Pipeline.from_spec(STEPS, catalogue())
    assert registry.version(version.digest) == version
    assert version.made == {"by": "push", "file": "x.onnx"}
    assert (version.features, version.parent, version.name) == (4, None, "birds")
    assert version.digest in registry
    assert NONE not in registry


def test_what_is_got_is_mapped_and_cannot_be_changed(registry: Registry) -> None:
    version = registry.put(make_model(), name="birds")
    for array in registry.get(version.digest).tensors.values():
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_time_is_given_and_versions_are_in_its_order(registry: Registry) -> None:
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 1, 2)]
    put = [registry.put(make_model(day.day), name="birds", now=day) for day in times]
    assert [version.time for version in put] == [time.isoformat(timespec="milliseconds") for time in times]
    assert registry.versions() == sorted(put, key=lambda version: version.time)


def test_the_same_put_twice_is_one_version(registry: Registry) -> None:
    first = registry.put(make_model(), name="birds", now=datetime(2026, 1, 1, tzinfo=UTC))
    before = {path: path.stat().st_mtime_ns for path in registry.folder.rglob("*.*")}
    assert registry.put(make_model(), name="birds") == first
    assert {path: path.stat().st_mtime_ns for path in registry.folder.rglob("*.*")} == before


def test_a_new_head_adds_one_small_pack(registry: Registry) -> None:
    model = make_model()
    first = registry.put(model, name="birds")
    (large,) = files(registry, "packs")
    second = registry.put(new_head(model, 2), name="birds", parent=first.digest)
    (small,) = set(files(registry, "packs")) - {large}
    assert small.stat().st_size < large.stat().st_size - model.tensors["trunk/conv.weight"].nbytes
    assert len(files(registry, "graphs")) == 1
    assert second.parent == first.digest
    assert second.trunk_digest == first.trunk_digest
    assert are_same(registry.get(second.digest).tensors, new_head(model, 2).tensors)


def test_equal_tensors_of_unrelated_versions_are_kept_once(registry: Registry) -> None:
    registry.put(make_model(), name="birds")
    registry.put(make_model(), name="fish")
    assert len(files(registry, "packs")) == 1
    assert len(registry.versions()) == 2


def test_references(registry: Registry) -> None:
    first = registry.put(make_model(1), name="birds", switch=True)
    second = registry.put(make_model(2), name="birds", switch=True)
    for reference in (second.digest, second.digest[:8], second.digest[:31], "birds"):
        assert registry.resolve(reference) == second.digest
    assert registry.resolve("birds@previous") == first.digest
    assert registry.resolve(NONE) == NONE
    for reference, error in [
        ("fish", ModelNotFound),
        ("00000000", ModelNotFound),
        ("fish@previous", ModelNotFound),
        ("birds@first", WrongUse),
        ("../birds", ModelNotFound),
        ("current/birds", ModelNotFound),
        ("", ModelNotFound),
        ("abc", ModelNotFound),
    ]:
        with pytest.raises(error):
            registry.resolve(reference)
    with pytest.raises(ModelNotFound, match="000000000000"):
        registry.get(NONE)


def test_a_short_digest_that_fits_two_versions_is_refused(registry: Registry) -> None:
    registry.put(make_model(), name="birds")
    for number in range(2):
        (registry.folder / "versions" / f"aaaaaaaa{number}{'0' * 23}.json").touch()
    with pytest.raises(WrongUse, match="beginning of 2 digests"):
        registry.resolve("aaaaaaaa")


@pytest.mark.parametrize("name", ["../x", "a/b", "", "deadbeef", "a" * 65, ".hidden"])
def test_a_name_is_never_a_path(registry: Registry, name: str) -> None:
    with pytest.raises(WrongUse, match="cannot be called"):
        registry.put(make_model(), name=name)
    version = registry.put(make_model(), name="birds")
    with pytest.raises(WrongUse, match="cannot be called"):
        registry.switch(name, version.digest)
    with pytest.raises(ModelNotFound):
        registry.current(name)


def test_a_switch_and_the_way_back(registry: Registry) -> None:
    versions = [registry.put(make_model(seed), name="birds") for seed in range(3)]
    digests = [version.digest for version in versions]
    assert registry.names() == []
    for version in versions:
        assert registry.switch("birds", version.digest) == version
    assert registry.names() == ["birds"]
    assert registry.current("birds") == versions[2]
    assert registry.history("birds") == (digests[1], digests[0])
    registry.switch("birds", "birds")
    assert registry.history("birds") == (digests[1], digests[0]), "to where it stands is no switch"
    assert registry.rollback("birds") == versions[1]
    assert registry.rollback("birds") == versions[0]
    assert registry.history("birds") == ()
    with pytest.raises(ModelError, match="was in force before"):
        registry.rollback("birds")
    with pytest.raises(ModelError, match="was in force before"):
        registry.resolve("birds@previous")
    assert registry.current("birds") == versions[0]


def test_the_history_is_bounded(registry: Registry) -> None:
    a, b = (registry.put(make_model(seed), name="birds").digest for seed in range(2))
    for number in range(HISTORY + 5):
        registry.switch("birds", (a, b)[number % 2])
    assert len(registry.history("birds")) == HISTORY


def test_a_damaged_version_does_not_come_in_force(registry: Registry) -> None:
    first = registry.put(make_model(1), name="birds", switch=True)
    second = registry.put(make_model(2), name="birds")
    pack = registry.folder / "packs" / f"{_packs_of(registry, second)[0]}.safetensors"
    flip(pack)
    with pytest.raises(ModelRefused, match="digest"):
        registry.switch("birds", second.digest)
    assert registry.current("birds") == first


def _packs_of(registry: Registry, version: ModelVersion) -> list[str]:
    places = msgspec.json.decode((registry.folder / "places" / f"{version.digest}.json").read_bytes())
    return sorted(set(places.values()))


@pytest.mark.parametrize(
    ("kind", "place", "named"),
    [
        ("packs", -1, r"tensor '(head|trunk)/.*digest"),
        ("packs", 10, "in no pack|safetensors"),
        ("graphs", 20, "a graph should have the digest"),
        ("versions", 30, "versions"),
        ("places", 3, "in no pack"),
    ],
)
def test_damage_on_disk_is_refused_by_name(registry: Registry, kind: str, place: int, named: str) -> None:
    version = registry.put(make_model(), name="birds")
    flip(files(registry, kind)[0], place)
    with pytest.raises(ModelError, match=named):
        registry.get(version.digest)


@pytest.mark.parametrize("kind", ["packs", "graphs", "places"])
def test_a_part_that_is_gone_is_said_so(registry: Registry, kind: str) -> None:
    version = registry.put(make_model(), name="birds")
    files(registry, kind)[0].unlink()
    with pytest.raises(ModelNotFound):
        registry.get(version.digest)


@pytest.mark.parametrize("kind", ["packs", "graphs", "places", "versions"])
@pytest.mark.parametrize("harm", [flip, Path.unlink], ids=["damaged", "gone"])
def test_putting_again_mends(registry: Registry, kind: str, harm: Callable[[Path], None]) -> None:
    model = make_model()
    version = registry.put(model, name="birds")
    harm(files(registry, kind)[0])
    again = registry.put(model, name="birds")
    assert again.digest == version.digest
    assert are_same(registry.get(version.digest).tensors, model.tensors)


def test_a_new_version_does_not_lean_on_a_damaged_pack(registry: Registry) -> None:
    model = make_model()
    registry.put(model, name="birds")
    flip(files(registry, "packs")[0])
    version = registry.put(new_head(model, 2), name="birds")
    assert are_same(registry.get(version.digest).tensors, new_head(model, 2).tensors)


def test_places_cannot_lead_out_of_the_registry(registry: Registry) -> None:
    version = registry.put(make_model(), name="birds")
    places = {facts.digest: "../../../etc/passwd" for facts in version.tensors.values()}
    files(registry, "places")[0].write_bytes(msgspec.json.encode(places))
    with pytest.raises(ModelRefused, match="no digest"):
        registry.get(version.digest)
    with pytest.raises(ModelNotFound):
        registry.graph("../versions/x")


def test_a_damaged_pointer_is_refused(registry: Registry) -> None:
    registry.put(make_model(), name="birds", switch=True)
    for content in (b"{}", b"", b'{"digest": "../x", "before": []}'):
        (registry.folder / "current" / "birds").write_bytes(content)
        with pytest.raises(ModelRefused, match="current"):
            registry.current("birds")


def test_a_manifest_under_another_digest_is_refused(registry: Registry) -> None:
    registry.put(make_model(), name="birds")
    files(registry, "versions")[0].rename(registry.folder / "versions" / f"{NONE}.json")
    with pytest.raises(ModelRefused, match="is the manifest of"):
        registry.version(NONE)


def test_nothing_is_written_of_a_model_that_is_refused(registry: Registry) -> None:
    with pytest.raises(ModelRefused):
        registry.put(change(make_model(), head_bias=np.zeros(9, np.float32)), name="birds")
    with pytest.raises(ModelNotFound):
        registry.put(make_model(), name="birds", parent=NONE)
    with pytest.raises(WrongUse, match="plain data"):
        registry.put(make_model(), name="birds", made={"by": object()})
    assert not registry.folder.exists()


class Sent:
    """A version as a sender has it."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.model = model
        self.version = Registry(folder / "sender").put(model, name="birds")
        self.graphs = {self.version.graphs["trunk"]: model.trunk}
        self.whole = encode(None, model.tensors)


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    return Sent(tmp_path, make_model(7))


def test_a_version_is_received_whole(registry: Registry, sent: Sent) -> None:
    found = registry.receive(sent.version, sent.whole, graphs=sent.graphs, switch=True)
    assert found == sent.version == registry.current("birds")
    assert are_same(registry.get("birds").tensors, sent.model.tensors)


def test_a_version_is_received_as_a_delta_without_the_graph(registry: Registry, sent: Sent) -> None:
    base = registry.put(make_model(3), name="other")
    data = encode(make_model(3).tensors, sent.model.tensors)
    assert registry.receive(sent.version, data, base=base.digest) == sent.version
    assert are_same(registry.get(sent.version.digest).tensors, sent.model.tensors)


def with_field(version: ModelVersion, **fields: Any) -> ModelVersion:
    return seal(msgspec.structs.replace(version, **fields))


def test_what_is_sent_wrongly_is_refused_and_leaves_nothing(registry: Registry, sent: Sent) -> None:
    other = encode(None, make_tensors(8))
    graph = next(iter(sent.graphs))
    for version, data, graphs, error in [
        (msgspec.structs.replace(sent.version, name="fish"), sent.whole, sent.graphs, ModelRefused),
        (sent.version, other, sent.graphs, ModelRefused),
        (sent.version, sent.whole[:-1], sent.graphs, ModelRefused),
        (sent.version, sent.whole, {}, ModelNotFound),
        (sent.version, sent.whole, {graph: sent.model.trunk + b"\0"}, ModelRefused),
        (with_field(sent.version, features=5), sent.whole, sent.graphs, ModelRefused),
        (with_field(sent.version, classes=("a",)), sent.whole, sent.graphs, ModelRefused),
        (with_field(sent.version, steps=({"name": "evil"},)), sent.whole, sent.graphs, ModelRefused),
    ]:
        with pytest.raises(error):
            registry.receive(version, data, graphs=graphs, switch=True)
    with pytest.raises(ModelNotFound):
        registry.receive(sent.version, sent.whole, base=NONE, graphs=sent.graphs)
    assert not registry.folder.exists()


def test_a_sent_graph_is_checked_like_any_other(registry: Registry, sent: Sent) -> None:
    import onnx
    from onnx import helper

    evil = onnx.load_from_string(sent.model.trunk)
    evil.graph.node.append(helper.make_node("Loop", ["a"], ["z"]))
    data = evil.SerializeToString()
    digest = registries.digest_of(data)
    version = with_field(sent.version, graphs={"trunk": digest})
    with pytest.raises(ModelRefused, match="'Loop'"):
        registry.receive(version, sent.whole, graphs={digest: data})


def test_garbage_is_collected_and_nothing_else(registry: Registry) -> None:
    versions = [registry.put(make_model(seed), name="birds") for seed in range(5)]
    for place in (0, 1, 3):
        registry.switch("birds", versions[place].digest)
    registry.delta(versions[0].digest, versions[1].digest)
    registry.delta(versions[1].digest, versions[4].digest)
    (registry.folder / "packs" / ".half-written").write_bytes(b"x" * 100)
    before = sum(path.stat().st_size for path in registry.folder.rglob("*") if path.is_file())
    freed = registry.collect()
    after = sum(path.stat().st_size for path in registry.folder.rglob("*") if path.is_file())
    assert freed == before - after > 100
    assert {version.digest for version in registry.versions()} == {
        versions[place].digest for place in (0, 1, 3)
    }
    assert set(registry.deltas()) == {(versions[0].digest, versions[1].digest)}
    for place in (0, 1, 3):
        assert are_same(registry.get(versions[place].digest).tensors, make_tensors(place))
    assert registry.rollback("birds") == versions[1]
    assert registry.collect() > 0
    assert registry.collect() == 0


def test_parents_and_named_versions_can_be_kept(registry: Registry) -> None:
    parent: str | None = None
    digests = []
    for seed in range(5):
        parent = registry.put(make_model(seed), name="birds", parent=parent).digest
        digests.append(parent)
    registry.switch("birds", digests[4])
    registry.collect(ancestors=2, keep=[digests[0][:10]])
    assert {version.digest for version in registry.versions()} == {digests[place] for place in (0, 2, 3, 4)}
    registry.collect(ancestors=1)
    assert {version.digest for version in registry.versions()} == {digests[3], digests[4]}


def test_approximations_of_kept_versions_are_kept(registry: Registry) -> None:
    kept = registry.put(make_model(1), name="birds", switch=True)
    near = registry.put(make_model(2), name="birds", made={"by": "int8 delta", "of": kept.digest})
    registry.put(make_model(3), name="birds", made={"by": "int8 delta", "of": NONE})
    registry.put(make_model(4), name="birds", made={"of": ["a", {"list": 1}]})
    registry.collect()
    assert {version.digest for version in registry.versions()} == {kept.digest, near.digest}


def test_shared_packs_outlive_the_version_that_brought_them(registry: Registry) -> None:
    model = make_model()
    first = registry.put(model, name="birds")
    second = registry.put(new_head(model, 2), name="birds", parent=first.digest, switch=True)
    registry.collect()
    assert first.digest not in registry
    assert are_same(registry.get(second.digest).tensors, new_head(model, 2).tensors)


def test_a_mapped_model_outlives_its_files(registry: Registry) -> None:
    model = registry.get(registry.put(make_model(), name="birds").digest)
    registry.collect()
    assert not registry.versions()
    assert are_same(model.tensors, make_tensors())


def test_deltas_are_kept_and_made_again_when_damaged(registry: Registry) -> None:
    old, new = (registry.put(make_model(seed), name="birds").digest for seed in range(2))
    data = registry.delta(old, new)
    path = registry.folder / "deltas" / f"{old}-{new}"
    assert path.read_bytes() == data == encode(make_tensors(0), make_tensors(1))
    assert registry.deltas() == {(old, new): len(data)}
    flip(path)
    assert registry.delta(old[:10], new[:10]) == data == path.read_bytes()
    assert registry.delta(None, new) == encode(None, make_tensors(1))
    assert registry.deltas() == {(old, new): len(data)}, "the whole is a delta from nothing"


def test_a_registry_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot write to the registry"):
        Registry(tmp_path / "file" / "models").put(make_model(), name="birds")


def test_a_full_disk_leaves_the_version_before(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    first = registry.put(make_model(1), name="birds", switch=True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match="No space left"):
        registry.put(make_model(2), name="birds", switch=True)
    monkeypatch.undo()
    assert registry.current("birds") == first
    assert len(registry.versions()) == 1
    assert not [path for path in registry.folder.rglob(".*") if path.is_file()]


def test_a_lock_that_does_not_come_is_an_error(tmp_path: Path) -> None:
    holder, waiting = Registry(tmp_path), Registry(tmp_path, lock_seconds=0.1)
    with (
        holder._shelf.writing(),
        pytest.raises(ModelError, match=r"another process has been writing.*0\.1 s"),
    ):
        waiting.put(make_model(), name="birds")
    waiting.put(make_model(), name="birds")


def test_reading_needs_no_lock(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    version = registry.put(make_model(), name="birds", switch=True)
    with registry._shelf.writing():
        assert Registry(tmp_path).current("birds") == version
        assert are_same(Registry(tmp_path).get("birds").tensors, make_tensors())


def test_processes_write_at_once(tmp_path: Path) -> None:
    """Each puts versions of its own and one that all put, and switches one name, while all the others do."""

    def work(number: int) -> Callable[[], object]:
        def call() -> None:
            registry = Registry(tmp_path / "models")
            for seed in range(3):
                registry.put(make_model(100 + 10 * number + seed), name=f"own-{number}", switch=True)
                registry.put(make_model(seed), name="shared", switch=True)
                registry.collect()

        return call

    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            os._exit(0 if in_child(work(number)) == "nothing" else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    registry = Registry(tmp_path / "models")
    assert registry.names() == ["own-0", "own-1", "own-2", "own-3", "shared"]
    for name in registry.names():
        registry.get(name)
    for number in range(4):
        assert are_same(registry.get(f"own-{number}").tensors, make_tensors(102 + 10 * number))
    assert any(are_same(registry.get("shared").tensors, make_tensors(seed)) for seed in range(3))


@pytest.mark.parametrize("package", ["onnx", "safetensors.numpy", "zstandard"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    registry: Registry, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtra, match=rf"{package}; pip install 'headwater\[models\]'"):
        registry.delta(None, registry.put(model, name="birds").digest)


def test_the_only_model_need_not_be_named(registry: Registry) -> None:
    with pytest.raises(ModelNotFound, match="0 models are in force; push one first"):
        registry.choose()
    first = registry.put(make_model(), name="first", switch=True)
    assert registry.choose() == registry.choose("first") == first
    second = registry.put(make_model(1), name="second", switch=True)
    with pytest.raises(ModelNotFound, match="name one of first, second"):
        registry.choose()
    assert registry.choose(second.digest[:8]) == second


def damage(registry: Registry, kind: str, name: str) -> Path:
    """Cut a file of the registry short."""
    (path,) = (registry.folder / kind).glob(f"{name}*")
    path.write_bytes(path.read_bytes()[:-2])
    return path


def test_one_damaged_manifest_hides_no_other(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    lost = registry.put(make_model(1), name="birds", switch=True)
    kept = registry.put(make_model(2), name="fish", switch=True)
    path = damage(registry, "versions", lost.digest)
    assert registry.versions() == [kept]
    assert str(path) in caplog.text
    assert registry.find(lost.digest) is None
    assert registry.find(kept.digest) == kept
    assert registry.find("../versions/" + kept.digest) is None
    with pytest.raises(ModelRefused, match=str(path)):
        registry.version(lost.digest)
    assert registry.collect() == 0, "what is in force is not thrown away for that"
    assert registry.put(make_model(1), name="birds", switch=True).digest == lost.digest
    assert are_same(registry.get("birds").tensors, make_tensors(1))


def test_a_damaged_list_of_packs_stops_no_collection(registry: Registry) -> None:
    lost = registry.put(make_model(1), name="birds", switch=True)
    registry.put(make_model(2), name="birds")
    kept = registry.put(make_model(3), name="fish", switch=True)
    damage(registry, "places", lost.digest)
    assert registry.collect() > 0
    assert {version.digest for version in registry.versions()} == {lost.digest, kept.digest}
    assert are_same(registry.get("fish").tensors, make_tensors(3))


def test_a_damaged_pointer_can_be_switched_again(registry: Registry) -> None:
    versions = [registry.put(make_model(seed), name="birds") for seed in range(3)]
    for version in versions[:2]:
        registry.switch("birds", version.digest)
    other = registry.put(make_model(9), name="fish", switch=True)
    damage(registry, "current", "birds")
    assert registry.in_force() == {"fish": other.digest}
    assert registry.collect() == 0, "which of its versions is in force is not known, so all stay"
    registry.switch("birds", versions[2].digest)
    assert registry.current("birds") == versions[2]
    assert registry.history("birds") == ()
    assert registry.in_force() == {"birds": versions[2].digest, "fish": other.digest}


def test_a_trial_may_refuse_what_was_sent(registry: Registry, sent: Sent) -> None:
    tried: list[Model] = []

    def refuse(model: Model) -> None:
        tried.append(model)
        raise ModelRefused("it does not run")

    with pytest.raises(ModelRefused, match="it does not run"):
        registry.receive(sent.version, sent.whole, graphs=sent.graphs, switch=True, trial=refuse)
    assert are_same(tried[0].tensors, sent.model.tensors)
    assert not registry.folder.exists()


def test_versions_that_are_dropped_are_gone_but_none_that_is_or_was_in_force(registry: Registry) -> None:
    model = make_model()
    first = registry.put(model, name="birds", switch=True)
    second = registry.put(new_head(model, 1), name="birds", switch=True)
    loose = [registry.put(new_head(model, seed), name="birds") for seed in (2, 3)]
    registry.delta(second.digest, loose[0].digest)
    registry.delta(loose[0].digest, loose[1].digest)
    freed = registry.drop([first.digest, second.digest, loose[0].digest, NONE])
    assert freed > 0
    assert {one.digest for one in registry.versions()} == {first.digest, second.digest, loose[1].digest}
    assert are_same(registry.get(loose[1].digest).tensors, new_head(model, 3).tensors)
    assert [new for _, new in registry.deltas()] == [loose[1].digest]
    assert registry.drop([]) == 0


MEASURED = {"by": "quantise", "agreement": 0.97, "images": 256, "bound": 0.95, "data": NONE}


def test_int8_layers_that_nobody_measured_may_be_held_and_do_not_come_into_force(
    registry: Registry, tmp_path: Path
) -> None:
    sent = Sent(tmp_path, make_int8())
    with pytest.raises(ModelRefused, match="are int8, and nothing says that"):
        registry.put(make_int8(), name="birds", switch=True)
    with pytest.raises(ModelRefused, match="are int8, and nothing says that"):
        registry.receive(sent.version, sent.whole, graphs=sent.graphs, switch=True)
    assert not registry.folder.exists(), "nothing was kept"
    held = registry.put(make_int8(), name="birds")
    with pytest.raises(ModelRefused, match="are int8, and nothing says that"):
        registry.switch("birds", held.digest)
    assert registry.names() == []
    assert registry.put(make_int8(), name="birds", made=MEASURED, switch=True) == registry.current("birds")


def test_they_come_into_force_unmeasured_where_that_is_said_and_stay(
    registry: Registry, tmp_path: Path
) -> None:
    sent = Sent(tmp_path, make_int8())
    first = registry.receive(sent.version, sent.whole, graphs=sent.graphs, switch=True, unmeasured=True)
    assert registry.switch("birds", first.digest) == first, "it is in force: nothing comes into force"
    assert registry.put(make_int8(), name="birds", switch=True) == first
    other = registry.put(make_int8(3), name="birds", switch=True, unmeasured=True)
    with pytest.raises(ModelRefused, match=first.digest[:12]):
        registry.switch("birds", first.digest)
    assert registry.rollback("birds") == first, "back at once, whatever is known of it"
    with pytest.raises(ModelRefused, match=other.digest[:12]):
        registry.switch("second", other.digest)
    assert registry.switch("second", other.digest, unmeasured=True) == registry.current("second")
