"""`headwater finetune` on data that lies here: what it prints, refuses and leaves in the registry."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from exports import as_they_are, fitted
from headwater import cli
from headwater.models.registry import Registry
from headwater.store.labels import LabelRows, Source, open_labels
from headwater.store.pushing import push
from headwater.tune.quantise import QuantiseWish, quantise_here
from nets import SIZE
from seaweed import free_ports
from stores import running_daemon
from tunings import make_registry, write_colours


@pytest.fixture(autouse=True)
def cache(tuning_cache: Path) -> Path:
    return tuning_cache


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("pictures") / "colours")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return make_registry(tmp_path / "models")


def run(colours: Path | str, registry: Registry, *words: object) -> int:
    usual = ("--model", "plain", "--registry", registry.folder, "--epochs", 3, "--batch-size", 32)
    return cli.run(["finetune", str(colours), *map(str, usual), *map(str, words)])


def run_json(
    capsys: pytest.CaptureFixture[str], colours: Path | str, registry: Registry, *words: object
) -> dict[str, Any]:
    assert run(colours, registry, *words, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_a_document(colours: Path, registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, colours, registry, "--runs", 2, "--name", "tuned", "--seed", 5)
    version = registry.current("tuned")
    assert found["version"] == version.digest
    assert (found["name"], found["parent"]) == ("tuned", registry.current("plain").digest)
    assert found["accuracy"] == [1.0, 1.0]
    assert (found["failed"], found["resumed"], found["sync"]) == (0, False, [])
    assert (found["plan"]["runs"], found["plan"]["cut"]["name"]) == (2, "images")
    assert set(found["predicted"]) == set(found["measured"]) == {"all", "features", "training", "bytes"}
    assert version.made["seed"] == 5


def test_tables(colours: Path, registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(colours, registry, "--runs", 2) == 0
    shown = capsys.readouterr()
    for text in ("run 2", "100.0%", "predicted", "measured", "training", registry.current("plain").digest):
        assert text in shown.out
    assert "expected:" in shown.err


def test_the_only_model_in_force_need_not_be_named(
    colours: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", str(colours), "--registry", str(registry.folder), "--dry-run"]
    assert cli.run(words) == 0
    registry.put(registry.get("plain"), name="other", parent=None, made={}, switch=True)
    capsys.readouterr()
    assert cli.run(words) == 1
    assert "2 models are in force; name one of other, plain" in capsys.readouterr().err


def test_the_preset_is_the_trunk_beside_what_was_tuned_from_it(
    colours: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    trunk = registry.put(
        registry.get("plain"), name="trunk", made={"by": "preset", "preset": "trunk"}, switch=True
    )
    words = ["finetune", str(colours), "--registry", str(registry.folder), "--epochs", "1", "--json"]
    for name in ("birds", "fish"):
        assert cli.run([*words, "--name", name]) == 0
        assert json.loads(capsys.readouterr().out)["parent"] == trunk.digest
    assert registry.names() == ["birds", "fish", "plain", "trunk"]
    registry.put(registry.get("plain"), name="second", made={"by": "preset"}, switch=True)
    assert cli.run(words) == 1
    shown = json.loads(capsys.readouterr().out)["error"]["message"]
    assert shown == "5 models are in force; name one of birds, fish, plain, second, trunk"


def test_a_dry_run_only_says_what_to_expect(
    colours: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    before = registry.current("plain")
    assert run(colours, registry, "--dry-run") == 0
    shown = capsys.readouterr()
    assert "images *" in shown.out
    assert "expected:" in shown.err
    found = run_json(capsys, colours, registry, "--dry-run")
    assert found["seconds"] > 0
    assert registry.current("plain") == before


def test_variants_are_random_crops_and_flips(
    colours: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_json(capsys, colours, registry, "--variants", 2)
    names = [step["name"] for step in found["made"]["augment"]]
    assert names == ["decode", "random_area", "resize", "random_horizontal_flip", "normalize"]


def test_labels_of_a_database(
    colours: Path, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, place = hw.open(colours), tmp_path / "labels.db"
    database = open_labels(place)
    numbers = database.adopt("colours", ["cold", "warm"])
    some = slice(0, None, 2)
    warm = (np.asarray(data.labels)[some] == 2).astype(int)
    rows = LabelRows.of(np.asarray(data.ids)[some], numbers[warm], source=Source.HUMAN)
    database.write("colours", rows)
    database.close()
    found = run_json(capsys, colours, registry, "--labels", "human+model>=0.9", "--db", place)
    assert (found["made"]["samples"], found["made"]["held"]) == (81, 9)
    assert found["made"]["labels"] == "human+model>=0.9"
    assert registry.current("plain").classes == ("cold", "warm")


def test_labels_that_a_store_keeps(
    colours: Path,
    registry: Registry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are learnt where no database is named; in one that is, they may not be."""
    data, place = hw.open(colours), tmp_path / "state" / "labels.db"
    place.parent.mkdir()
    with closing(open_labels(place)) as database:
        numbers = database.adopt("colours", ["cold", "warm"])
        warm = (np.asarray(data.labels) == 2).astype(int)
        database.write("colours", LabelRows.of(data.ids[::2], numbers[warm[::2]], source=Source.HUMAN))
    open_labels(tmp_path / "mine.db").close()
    monkeypatch.delenv("HEADWATER_LABELS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    with running_daemon({"colours": colours}, state=tmp_path / "state") as daemon:
        address, wish = f"{daemon.serving.address}/colours", ("--labels", "human+model>=0.9")
        found = run_json(capsys, address, registry, *wish, "--cut", "images", "--name", "there")
        assert (found["made"]["samples"], found["made"]["held"], found["made"]["labels"]) == (81, 9, wish[1])
        assert registry.current("there").classes == ("cold", "warm")
        here = run_json(capsys, colours, registry, *wish, "--db", place, "--name", "here")
        assert here["losses"] == found["losses"]
        for name, says in (("none.db", "there is no label database"), ("mine.db", "no labels are kept of")):
            assert run(address, registry, *wish, "--db", tmp_path / name) == 1
            shown = capsys.readouterr().err
            assert says in shown
            assert "leave out --db, and $HEADWATER_LABELS, to learn the labels that the stores" in shown
        assert run(address, registry, *wish, "--dataset", "colours") == 2
        assert "stores keep those of the data by its name" in capsys.readouterr().err
        assert run(address, registry, *wish, "--db", address) == 2
        assert "finetune` without --db learns that" in capsys.readouterr().err
        monkeypatch.setenv("HEADWATER_LABELS", str(tmp_path / "mine.db"))
        assert run(address, registry, *wish) == 1
        assert "no labels are kept of" in capsys.readouterr().err
    assert run(colours, registry, *wish, "--db", tmp_path / "mine.db") == 1
    assert "leave out" not in capsys.readouterr().err, "of what lies here no store knows"


@pytest.mark.parametrize("name", ["plain", "tuned"])
def test_a_result_that_a_store_does_not_take_is_only_delivered_by_the_same_command(
    name: str, colours: Path, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not trained again, and not tuned further; the error says what is done, and what is left."""
    (port,) = free_ports(1)
    settings = {"state": tmp_path / "state", "listen": f"127.0.0.1:{port}"}
    words = ("--sync", "--cut", "features", *(("--name", name) if name != "plain" else ()))
    with running_daemon({"colours": colours}, **settings) as daemon:
        address = daemon.serving.address
        push(registry, [address], "plain")
    parent = registry.current("plain")
    with running_daemon({"colours": colours}, model_bytes=100, **settings):
        assert run(f"{address}/colours", registry, *words) == 4
    made = registry.current(name)
    assert made.parent == parent.digest
    told = capsys.readouterr().err
    assert f"the fine-tuning is done: {made.digest} is in force here as {name}" in told
    assert f"headwater models sync {address} --name {name}" in told
    with running_daemon({"colours": colours}, **settings):
        found = run_json(capsys, f"{address}/colours", registry, *words)
    assert (found["version"], found["resumed"], len(found["sync"])) == (made.digest, True, 1)
    assert registry.current(name) == made
    assert Registry(tmp_path / "state" / "models").current(name).digest == made.digest


def test_the_command_says_whether_int8_layers_stay_under_the_new_head(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = write_colours(tmp_path / "pictures", 60, size=SIZE)
    registry.put(as_they_are(fitted()), name="plain", switch=True)
    quantise_here(hw.open(pictures), registry, QuantiseWish("plain"))
    assert run(pictures, registry) == 0
    before, after = [line for line in capsys.readouterr().err.splitlines() if "int8" in line]
    assert before.endswith("which it gets unless 95.0% of labels stay")
    assert after.startswith("int8: under the new head int8 layers give the label of fp32 for ")
    found = run_json(capsys, pictures, registry, "--seed", "1")
    assert found["said"].startswith("int8: under the new head")
    assert found["made"]["int8"]["accepted"] is True


def test_int8_layers_of_which_nothing_is_known_are_tuned_and_delivered_only_unmeasured(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, state = write_colours(tmp_path / "pictures", 60, size=SIZE), tmp_path / "state"
    registry.put(as_they_are(fitted()), name="first", switch=True)
    quantise_here(hw.open(pictures), registry, QuantiseWish("first"))
    registry.put(registry.get("first"), name="plain", switch=True, unmeasured=True)
    with running_daemon({"pictures": pictures}, state=state) as daemon:
        words = (f"{daemon.serving.address}/pictures", registry, "--sync", "--runs", 1)
        assert run(*words) == 4
        assert "are int8, and nobody knows of which fp32 ones" in capsys.readouterr().err
        found = run_json(capsys, *words, "--unmeasured")
    assert found["made"]["int8"] == {"of": None, "agreement": None}
    assert Registry(state / "models").current("plain").digest == found["version"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--runs", "many"), 2, "--runs is 'many'; give a number of at least 1, or auto"),
        (("--runs", "0"), 2, "--runs is '0'"),
        (("--labels", "people"), 2, "does not say which labels to learn"),
        (("--db", "x.db"), 2, "--db and --dataset are for labels of a database"),
        (
            ("--cut", "middle"),
            2,
            "the model cannot be cut at 'middle'; choose from images, features, getitem",
        ),
        (("--cut", "features"), 2, "no store can make features"),
        (("--sync",), 2, "is not at a store"),
        (("--model", "other"), 1, "other"),
    ],
)
def test_wrong_use(
    words: tuple[str, ...],
    code: int,
    says: str,
    colours: Path,
    registry: Registry,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(colours, registry, *words) == code
    assert says in capsys.readouterr().err
