from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.data.image import Limits
from headwater.engine.budget import Budget
from headwater.engine.crew import available_cores
from headwater.errors import WrongUse
from headwater.store.server.config import (
    DatasetConfig,
    ServeConfig,
    load,
    name_datasets,
    name_of,
    show,
    split_address,
)

FULL = """
listen = "[::1]:0"
http = "127.0.0.1:7078"
cores = 1
memory = "2GiB"
requests = 5
request_bytes = "8MB"
request_samples = 100
token_file = "secret/tokens.toml"
tls_cert = "/etc/store.crt"
plaintext = true
audit_log = "~/audit.log"
drain_seconds = 2.5
state = "kept"
labels = "postgresql+psycopg://store@db:5432/labels"
model_bytes = "2GB"
feature_bytes = "20GiB"
inbox_bytes = "1TB"

[limits]
bytes = "1MB"
seconds = 3

[datasets.photos]
uri = "photos"
label = "cls"
fields = ["caption"]

[datasets.shards]
uri = ["a.tar", "s3://bucket/b.tar"]
storage = { endpoint = "http://127.0.0.1:9" }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "store.toml"
    path.write_text(text)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is not the config file's."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_file_sets_everything_and_paths_are_relative_to_it(tmp_path: Path, elsewhere: Path) -> None:
    config = load(write(tmp_path, FULL), {})
    assert config == ServeConfig(
        listen="[::1]:0",
        http="127.0.0.1:7078",
        cores=1.0,
        memory=2 << 30,
        requests=5,
        request_bytes=8_000_000,
        request_samples=100,
        token_file=tmp_path / "secret/tokens.toml",
        tls_cert=Path("/etc/store.crt"),
        plaintext=True,
        audit_log=Path("~/audit.log").expanduser(),
        drain_seconds=2.5,
        state=tmp_path / "kept",
        labels="postgresql+psycopg://store@db:5432/labels",
        model_bytes=2_000_000_000,
        feature_bytes=20 << 30,
        inbox_bytes=10**12,
        limits=Limits(bytes=1_000_000, seconds=3),
        datasets={
            "photos": DatasetConfig(str(tmp_path / "photos"), label="cls", fields=("caption",)),
            "shards": DatasetConfig(
                (str(tmp_path / "a.tar"), "s3://bucket/b.tar"), storage={"endpoint": "http://127.0.0.1:9"}
            ),
        },
    )


def test_labels_may_be_a_file_beside_the_settings(tmp_path: Path, elsewhere: Path) -> None:
    config = load(write(tmp_path, "state = 'kept'\nlabels = 'labels.db'"), {})
    assert config.labels == str(tmp_path / "labels.db")
    assert load(None, {"state": Path("kept")}).state == elsewhere / "kept"


def test_flags_win_over_the_file_and_are_relative_to_the_current_folder(
    tmp_path: Path, elsewhere: Path
) -> None:
    flags = {"memory": "1GiB", "tls_cert": Path("own.crt"), "cores": None, "datasets": ["more=x/photos"]}
    config = load(write(tmp_path, FULL), flags)
    assert config.memory == 1 << 30
    assert config.tls_cert == elsewhere / "own.crt"
    assert config.cores == 1.0
    assert list(config.datasets) == ["photos", "shards", "more"]
    assert config.datasets["more"].uri == str(elsewhere / "x/photos")


def test_what_is_shown_is_read_back_from_anywhere(tmp_path: Path, elsewhere: Path) -> None:
    config = load(write(tmp_path, FULL), {"listen": "stor-a:7077", "datasets": ["more"]})
    (tmp_path / "other").mkdir()
    assert load(write(tmp_path / "other", show(config)), {}) == config


def test_defaults_are_shown_and_read_back(tmp_path: Path) -> None:
    text = show(ServeConfig())
    assert load(write(tmp_path, text), {}) == ServeConfig() == load(None, {})
    assert "\n# not set: http, token_file," in text


def test_what_follows_from_other_settings_is_shown_as_it_will_be() -> None:
    text = show(ServeConfig(memory=100 << 20))
    cores = available_cores()
    assert text.splitlines()[:3] == [
        f"# cores = {cores} (from the machine)",
        f"# requests = {2 * cores + 2} (from cores)",
        f"# request_bytes = {25 << 20} (from memory)",
    ]
    assert "# requests = 5 (from cores)" not in show(ServeConfig(requests=5))
    assert "# requests = 8 (from cores)" in show(ServeConfig(cores=2.5))


@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True).filter(
        lambda name: ".." not in name
    ),
    uri=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda text: "s3://" + text),
    memory=st.integers(1, 1 << 50),
    seconds=st.floats(0, 1e9),
)
def test_any_settings_survive_showing(
    name: str, uri: str, memory: int, seconds: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = ServeConfig(memory=memory, drain_seconds=seconds, datasets={name: DatasetConfig(uri, label=uri)})
    path = tmp_path_factory.getbasetemp() / "shown.toml"
    path.write_text(show(config), encoding="utf-8", newline="")
    assert load(path, {}) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memroy = 5", ["store.toml", "'memroy'", "'memory'"]),
        ("token = 'verysecretvalue'", ["'token'", "'token_file'"]),
        ("xyzzy = 5", ["'xyzzy'", "known: listen, http"]),
        ("[limits]\npixel = 5", ["[limits]", "'pixel'", "'pixels'"]),
        ("[datasets.a]\nurl = 'x'", ["[datasets.a]", "'url'", "'uri'"]),
        ("[datasets.a]\nlabel = 'x'", ["datasets[...]", "`uri`"]),
        ("[datasets.'../a']\nuri = 'x'", ["'../a'", "dataset's name"]),
        ("[datasets.a]\nuri='s3://b'\nstorage={aws_secret_access_key='verysecretvalue'}", ["~/.aws"]),
        (
            "[datasets.a]\nuri='s3://b'\nstorage={account_key='verysecretvalue'}",
            ["account_key looks like a secret"],
        ),
        (
            "[datasets.a]\nuri='s3://b'\nstorage={credential='verysecretvalue'}",
            ["credential looks like a secret"],
        ),
        (
            "[datasets.a]\nuri='s3://b'\nstorage={session_token='verysecretvalue'}",
            ["session_token", "~/.aws"],
        ),
        ("datasets = 5", ["datasets", "`object`"]),
        ("limits = 5", ["limits", "`object`"]),
        ("requests = 'many'", ["store.toml: requests:", "`int"]),
        ("cores = true", ["store.toml: cores:", "`bool`"]),
        ("cores = 0", ["cores"]),
        ("cores = inf", ["cores"]),
        ("requests = 0", ["requests"]),
        ("memory = -1", ["memory"]),
        ("memory = '2 GigaBytes'", ["'2 GigaBytes'", "2GiB"]),
        ("listen = ':7077'", ["':7077'", "HOST:PORT"]),
        ("http = 'here'", ["'here'", "HOST:PORT"]),
        ("drain_seconds = -1", ["drain_seconds"]),
        ("send_seconds = 0", ["send_seconds"]),
        ("send_seconds = inf", ["send_seconds"]),
        ("drain_seconds = nan", ["drain_seconds"]),
        ("predict_milliseconds = 0", ["predict_milliseconds"]),
        ("predict_milliseconds = inf", ["predict_milliseconds"]),
        ("limits = {bytes = 0}", ["limits", "bytes=0"]),
        ("model_bytes = -1", ["model_bytes is -1"]),
        ("inbox_bytes = -1", ["inbox_bytes is -1"]),
        ("feature_bytes = 'much'", ["'much'", "2GiB"]),
        ("labels = 'labels.db'", ["a store with a state", "--state"]),
        (
            "state = 'x'\nlabels = 'postgresql://me:verysecretvalue@db/labels'",
            ["holds a password", "~/.pgpass"],
        ),
        ("state = 'x'\nlabels = 'postgresql://db/x?password=verysecretvalue'", ["holds a password"]),
        ("listen = ", ["store.toml", "no TOML"]),
    ],
)
def test_a_mistake_is_named_with_its_file_and_never_a_secret(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    with pytest.raises(WrongUse) as caught:
        load(write(tmp_path, text), {})
    for word in words:
        assert word in str(caught.value)
    assert "verysecretvalue" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"nothing\.toml cannot be read"):
        load(tmp_path / "nothing.toml", {})
    (tmp_path / "latin.toml").write_bytes(b"listen = '\xff'")
    with pytest.raises(WrongUse, match="no TOML"):
        load(tmp_path / "latin.toml", {})


def test_a_flag_that_is_no_setting_is_wrong_use() -> None:
    with pytest.raises(WrongUse, match="flags has no setting 'memroy'"):
        load(None, {"memroy": 5})
    with pytest.raises(WrongUse, match="list of"):
        load(None, {"datasets": "photos"})


def test_one_name_for_two_datasets_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="two datasets are called 'photos'"):
        name_datasets(["a/photos", "b/photos"])
    path = write(tmp_path, "[datasets.photos]\nuri = 'x'")
    with pytest.raises(WrongUse, match="two datasets are called 'photos'"):
        load(path, {"datasets": ["photos=y"]})


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("photos/", "photos"),
        ("/data/imagenet.v2", "imagenet.v2"),
        ("x/train.parquet", "train"),
        ("x/TRAIN.TAR", "TRAIN"),
        ("x/shards-{000..099}.tar", "shards"),
        ("x/shards_*.tar", "shards"),
        ("x/y/{000..099}.tar", "y"),
        ("x/y/*.parquet", "y"),
        ("s3://bucket/photos", "photos"),
        ("s3://bucket/photos/", "photos"),
        ("s3://bucket", "bucket"),
        ("s3://bucket/{a,b}.tar", "bucket"),
        ("/", ""),
    ],
)
def test_a_name_is_the_stem(uri: str, name: str) -> None:
    assert name_of(uri) == name


def test_the_current_folder_has_its_own_name(elsewhere: Path) -> None:
    assert name_of(".") == "elsewhere"
    assert name_datasets(["."]) == {"elsewhere": DatasetConfig(str(elsewhere))}


@pytest.mark.parametrize(
    ("word", "name", "uri"),
    [
        ("a=s3://b/c", "a", "s3://b/c"),
        ("s3://b/year=2020/c", "c", "s3://b/year=2020/c"),
        ("a=/x/y=1", "a", "/x/y=1"),
        ("/x=1/photos", "photos", "/x=1/photos"),
    ],
)
def test_a_word_may_give_a_name(word: str, name: str, uri: str) -> None:
    assert name_datasets([word]) == {name: DatasetConfig(uri)}


@pytest.mark.parametrize(
    "word", ["..=x", "a..b=x", "-a=x", "/x/my photos", "a=", "", "a" * 65 + "=x", "a\n=x"]
)
def test_a_name_that_is_no_name_is_wrong_use(word: str) -> None:
    with pytest.raises(WrongUse, match="NAME=DATA"):
        name_datasets([word])


@given(name=st.text())
def test_no_name_leaves_its_folder(name: str) -> None:
    try:
        config = ServeConfig(datasets={name: DatasetConfig("/x")})
    except WrongUse:
        return
    (kept,) = config.datasets
    assert os.path.normpath(os.path.join("/root", kept)) == f"/root/{kept}"
    assert kept.isascii()
    assert kept.isprintable()


@pytest.mark.parametrize(
    ("written", "parts"),
    [("127.0.0.1:7077", ("127.0.0.1", 7077)), ("[::1]:0", ("::1", 0)), ("stor-a:65535", ("stor-a", 65535))],
)
def test_split_address(written: str, parts: tuple[str, int]) -> None:
    assert split_address(written) == parts


@pytest.mark.parametrize(
    "written", ["", ":1", "::1:7077", "a:65536", "a:-1", "a:", "a", "a:b", "a:1/x", "a b:1"]
)
def test_what_is_no_address_is_wrong_use(written: str) -> None:
    with pytest.raises(WrongUse, match="HOST:PORT"):
        split_address(written)


def test_the_budget_takes_what_is_set_and_leaves_the_rest_to_the_machine() -> None:
    budget = ServeConfig(
        cores=1.5, memory=1 << 28, requests=3, request_bytes=1 << 20, request_samples=7
    ).budget()
    found = (budget.cores, budget.memory, budget.requests, budget.request_bytes, budget.request_samples)
    assert found == (1.5, 1 << 28, 3, 1 << 20, 7)
    assert ServeConfig(memory=1 << 20).budget() == Budget(memory=1 << 20)


def test_credentials_do_not_show_in_a_repr() -> None:
    dataset = DatasetConfig("s3://b", storage={"secret_access_key": "verysecretvalue"})
    assert "verysecretvalue" not in repr(ServeConfig(datasets={"b": dataset}))


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServeConfig().listen = "x:1"  # type: ignore[misc]
