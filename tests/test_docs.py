"""The documentation against the code: all that is public is described, examples run, links lead somewhere."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import headwater as hw
import referee  # noqa: F401 - an example imports torchvision, which needs its declarations
from datasets import Photo, write_parquets, write_tars
from headwater import errors, select, transforms
from headwater.cli import app, run
from headwater.data.codecs import CODECS
from headwater.data.codecs.excerpts import EXCERPTS
from headwater.data.synthetic import write_photos
from headwater.loader.state import LoaderState
from headwater.measure.signals import Signals
from headwater.measure.stats import Stats
from headwater.measure.verdict import Verdict
from headwater.models.quantise import Quantised
from headwater.models.runtime import Classified, Engine
from headwater.models.split import CutPoint, Split
from headwater.plan.finetune import FinetunePlan
from headwater.plan.memory import MemoryPlan
from headwater.plan.prune import MaskDistance, PrunePlan, SettledMask
from headwater.select.selecting import SELECTORS
from headwater.store.server import tokens
from headwater.store.server.config import DatasetConfig, ServeConfig, load
from headwater.store.server.daemon import Daemon
from headwater.store.server.ledger import METRICS, Metric
from headwater.store.wire import jobmessages, messages, modelmessages, payloads
from headwater.train.replay.outcome import Retrained
from headwater.tune.again import HeadAgain
from headwater.tune.outcome import Finetuned
from pages import DOCS, ROOT, all_pages, find_code, find_commands, find_links, read_reference, run_page
from seaweed import S3Server, free_ports
from stores import make_certificates, running_daemon, write_tokens
from visitors import routes

LONGEST_README = 150
README_CODE_LINES = 12
RUNNABLE = (
    *("datasets", "transforms", "resume", "errors", "performance", "cache", "bring-a-model", "labels"),
    "tickets",
    "replay",
    "memory",
)
"""Pages whose examples need nothing but files; those of Lightning and Accelerate run in tests/loader."""

ERRORS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, errors.HeadwaterError)
]
MESSAGES = [
    kind
    for module in (messages, modelmessages, jobmessages)
    for kind in vars(module).values()
    if inspect.isclass(kind) and issubclass(kind, messages.Message) and kind is not messages.Message
]
SECRET = "an-example-of-a-secret-for-the-pages"


def commands(group: Any = None, words: tuple[str, ...] = ("headwater",)) -> Iterator[tuple[str, Any]]:
    """Every command of the command line with its words, groups left out."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def options(command: Any) -> list[str]:
    return [word for parameter in command.params for word in parameter.opts if word.startswith("--")]


def section(text: str, title: str) -> str:
    """The part of a page under a heading, up to the next of the same or a higher level."""
    found = re.search(rf"^(#+) `?{re.escape(title)}`?$(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no heading for {title}"
    return found[2]


def public(kind: type) -> list[str]:
    """Names that a class itself gives its users."""
    fields = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    return sorted({name for name in vars(kind) if not name.startswith("_")} | set(fields))


def opposites(command: Any) -> list[str]:
    """What switches an option off."""
    return [word for parameter in command.params for word in parameter.secondary_opts]


COMMANDS = dict(commands())
GROUPS = [words.split()[:2] for words in COMMANDS if len(words.split()) > 2]
"""Commands that have others below them, which a text may name alone."""


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_and_option_is_in_the_reference(words: str) -> None:
    part = section(read_reference("cli"), words)
    assert options(COMMANDS[words])
    for option in options(COMMANDS[words]):
        assert f"`{option}`" in part or f"`{option} " in part, f"{option} of {words}"


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_a_how_to(words: str) -> None:
    assert words in (DOCS / "how-to" / "cli.md").read_text()


def test_the_reference_names_no_option_that_is_gone() -> None:
    known = {option for command in COMMANDS.values() for option in options(command)} | {"--version", "--help"}
    known |= {"--no-refresh", "--no-relabel", "--no-wait"}
    assert set(re.findall(r"`(--[a-z-]+)", read_reference("cli"))) <= known


@pytest.mark.parametrize(
    "page",
    [page for page in all_pages() if page.name != "CHANGELOG.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_commands_on_the_pages_have_the_options_that_they_are_given(page: Path) -> None:
    for words in find_commands(page):
        name = next((" ".join(words[:end]) for end in (3, 2) if " ".join(words[:end]) in COMMANDS), None)
        assert name or words[:2] in GROUPS, " ".join(words)
        if name is not None:
            known = {"--help", *options(COMMANDS[name]), *opposites(COMMANDS[name])}
            given = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
            assert given <= known, " ".join(words)


def test_commands_are_found_on_pages(tmp_path: Path) -> None:
    """In lines of code, with what follows a backslash, and in the text; not in words about the program."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nSay `headwater ls --json` or `HEADWATER_CACHE=x headwater doctor`.\n\n"
        "    $ headwater serve photos \\\n      --http 0.0.0.0:80   # with --words of no command\n"
        "    /opt/headwater/bin/headwater top URL | grep --count x\n"
        "    pip install headwater --user\n"
    )
    assert find_commands(page) == [
        ["headwater", "ls", "--json"],
        ["headwater", "doctor"],
        ["headwater", "serve", "photos", "--http", "0.0.0.0:80"],
        ["headwater", "top", "URL"],
    ]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_meaning_and_a_remedy(kind: type[errors.HeadwaterError]) -> None:
    row = re.search(rf"^\| `{kind.__name__}` \|(.*)\|$", read_reference("errors"), re.MULTILINE)
    assert row, kind.__name__
    code, meaning, remedy = (cell.strip() for cell in row[1].split(" | "))
    assert code == str(kind.exit_code)
    assert len(meaning) > 10
    assert len(remedy) > 10


@pytest.mark.parametrize("name", transforms.__all__)
def test_every_transform_is_in_the_reference_with_its_parameters(name: str) -> None:
    parameters = ", ".join(inspect.signature(getattr(transforms, name)).parameters)
    assert f"`{name}({parameters})`" in read_reference("transforms")


@pytest.mark.parametrize(
    ("page", "title", "call"),
    [
        ("loader", "hw.DataLoader", hw.DataLoader),
        ("datasets", "hw.open", hw.open),
        ("datasets", "hw.Link", hw.Link),
        ("loader", "hw.Limits", hw.Limits),
        ("loader", "hw.Offload", hw.Offload),
        ("loader", "hw.Cache", hw.Cache),
        ("loader", "hw.profile", hw.profile),
        ("inference", "hw.split", hw.split),
        ("tuner", "hw.Tuner", hw.Tuner),
        ("tuner", "hw.Recipe", hw.Recipe),
        ("select", "hw.find_duplicates", hw.find_duplicates),
        ("select", "hw.Duplicates", hw.Duplicates),
        ("select", "hw.Beside", hw.Beside),
        ("tickets", "hw.EarlyBird", hw.EarlyBird),
        ("tickets", "hw.load_ticket", hw.load_ticket),
        ("tickets", "SettledMask", SettledMask),
        ("tickets", "MaskDistance", MaskDistance),
        ("memory", "hw.memory_budget", hw.memory_budget),
        ("memory", "hw.max_batch", hw.max_batch),
        ("replay", "hw.Features", hw.Features),
        ("replay", "hw.FullBatch", hw.FullBatch),
        ("replay", "hw.Minibatches", hw.Minibatches),
        ("replay", "hw.Journal", hw.Journal),
        ("replay", "hw.retrain", hw.retrain),
        ("replay", "hw.compare_methods", hw.compare_methods),
        ("replay", "hw.value_samples", hw.value_samples),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_parameter_is_in_the_reference_with_its_default(page: str, title: str, call: Any) -> None:
    part = section(read_reference(page), title)
    for parameter in inspect.signature(call).parameters.values():
        row = re.search(rf"^\| `{parameter.name}` \| (.*?) \| ", part, re.MULTILINE)
        assert row, parameter.name
        if parameter.default is inspect.Parameter.empty:
            assert row[1] == "required"
        else:
            assert eval(row[1].strip("`")) == parameter.default, parameter.name


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("datasets", hw.Dataset),
        ("datasets", hw.Sample),
        ("loader", hw.DataLoader),
        ("loader", hw.Batch),
        ("loader", Stats),
        ("loader", Signals),
        ("select", select.Selection),
        ("select", hw.Duplicates),
        ("select", hw.Beside),
        ("loader", Verdict),
        ("inference", Split),
        ("inference", CutPoint),
        ("inference", Engine),
        ("inference", Classified),
        ("inference", Quantised),
        ("tuner", hw.Tuner),
        ("tuner", FinetunePlan),
        ("tuner", Finetuned),
        ("tickets", hw.EarlyBird),
        ("tickets", hw.Ticket),
        ("tickets", PrunePlan),
        ("memory", hw.MemoryBudget),
        ("memory", hw.MemoryReport),
        ("memory", MemoryPlan),
        ("replay", hw.Features),
        ("replay", hw.Journal),
        ("replay", Retrained),
        ("replay", HeadAgain),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_public_attribute_is_in_the_reference(page: str, kind: type) -> None:
    for name in public(kind):
        assert re.search(rf"`{name}[`(]", read_reference(page)), f"{kind.__name__}.{name}"


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_is_in_the_reference_with_its_parameters(name: str) -> None:
    selector = SELECTORS[name]()
    kind, page = type(selector), read_reference("select")
    needs = ", ".join(f"`{column}`" for column in selector.needs)
    assert f"| `{name}` | `{kind.__name__}` | {needs}" in page
    assert getattr(select, kind.__name__) is kind
    part = section(page, kind.__name__)
    for field, default in defaults(kind).items():
        row = re.search(rf"^\| `{field}` \| `(.*?)` \| ", part, re.MULTILINE)
        assert row, field
        assert eval(row[1]) == default, field


@pytest.mark.parametrize("name", hw.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert any(f"`hw.{name}`" in page.read_text() for page in (DOCS / "reference").glob("*.md"))


def test_every_field_of_the_state_is_in_the_reference() -> None:
    for name in LoaderState.__struct_fields__:
        assert f"| `{name}` |" in read_reference("state")


def defaults(kind: Any) -> dict[str, Any]:
    """Each field of a dataclass with its default, or MISSING."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(kind)
    }


@pytest.mark.parametrize("kind", [ServeConfig, DatasetConfig], ids=lambda kind: kind.__name__)
def test_every_setting_of_a_store_is_in_the_reference_with_its_default(kind: type) -> None:
    part = section(read_reference("store"), "Settings")
    for name, default in defaults(kind).items():
        written = re.findall(rf"^\| `{name}` \| (.*?) \| ", part, re.MULTILINE)
        assert len(written) == 1, name
        if default is dataclasses.MISSING:
            assert written[0] == "required"
        else:
            assert eval(written[0].strip("`")) == default, name


def test_every_key_and_scope_of_a_token_is_in_the_reference() -> None:
    part = section(read_reference("store"), "Token file")
    keys, scopes = part.split("| scope |")
    for name in tokens._KEYS:
        assert f"| `{name}` |" in keys
    rows = re.findall(r"^\| (`.*?) \|", scopes, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(tokens.SCOPES)


@pytest.mark.parametrize(("name", "metric"), METRICS.items())
def test_every_metric_is_in_the_reference(name: str, metric: Metric) -> None:
    part = section(read_reference("store"), "Metrics")
    row = re.search(rf"^\| `{name}` \| {metric.kind} \| (.*?) ?\| ", part, re.MULTILINE)
    assert row, name
    words = re.findall(r"`(\w+)`", row[1])
    assert words[:1] == ([metric.label] if metric.label else [])
    assert set(metric.values) <= set(words)


def test_the_reference_names_no_metric_that_is_gone() -> None:
    written = re.findall(r"`(headwater_\w+)", read_reference("store"))
    assert set(written) == set(METRICS)


def test_every_action_is_in_the_reference_with_its_scope() -> None:
    part = section(read_reference("store"), "Actions")
    for name in messages.ACTIONS:
        scopes = " or ".join(f"`{scope}`" for scope in messages.SCOPE_OF_ACTION[name])
        assert f"| `{name}` | {scopes or 'any'} |" in part


def test_every_route_is_in_the_reference() -> None:
    part = section(read_reference("store"), "HTTP")
    assert set(re.findall(r"^\| `(GET|POST) (/\w+)` \|", part, re.MULTILINE)) == set(routes())


def test_every_variable_is_in_the_reference() -> None:
    used = {name for file in (ROOT / "src").rglob("*.py") for name in _variables(file)}
    written = set(re.findall(r"`(HEADWATER_\w+)`", section(read_reference("store"), "Environment")))
    assert written == used


def _variables(file: Path) -> list[str]:
    return re.findall(r"""["'](HEADWATER_[A-Z_]+)["']""", file.read_text())


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_field_of_a_message_is_in_the_wire_format(kind: Any) -> None:
    page = section(read_reference("wire"), "Messages")
    assert re.search(rf"\b{kind.__name__}\b", page)
    for name in kind.__struct_fields__:
        assert f"`{name}`" in page, f"{kind.__name__}.{name}"


def test_every_column_and_codec_is_in_the_wire_format() -> None:
    page = section(read_reference("wire"), "Samples")
    for name in (*payloads.CUT.names, *CODECS, *EXCERPTS):
        assert f"| `{name}` |" in page, name
    for name in payloads.FACTS.names:
        assert f"`{name}`" in page, name
    assert f"Protocol {messages.PROTOCOLS[-1]}:" in read_reference("wire")


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    for link in find_links(page):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles
            }


def test_the_readme_is_short() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) < LONGEST_README
    lines = [line for line in find_code(readme)[0].strip().splitlines() if line.strip()]
    assert len(lines) <= README_CODE_LINES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, photos: list[Photo]) -> Path:
    """What the pages' examples open: a folder, tars and Parquet."""
    folder = tmp_path_factory.mktemp("pages")
    write_photos(folder / "photos", count=48, classes=4)
    write_tars(folder / "shards", photos)
    write_parquets(folder / "tables", photos)
    return folder


@pytest.fixture
def workplace(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, because examples may change what they find, and the current folder."""
    place = tmp_path / "place"
    shutil.copytree(made, place)
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize("name", ["README.md", *(f"docs/how-to/{name}.md" for name in RUNNABLE)])
def test_examples_run(name: str, workplace: Path) -> None:
    run_page(ROOT / name)


@pytest.mark.slow
def test_the_tutorial_runs_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / "tutorial.md")


def test_the_page_on_ranks_sees_every_id_once(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    settings = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    seen = run_page(DOCS / "how-to" / "distributed.md")["main"]()
    assert sorted(seen) == sorted(hw.open("photos").ids.tolist())


def test_the_page_on_s3_reads_a_bucket(
    workplace: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert s3.upload(workplace / "photos", "flowers") == "s3://photos/flowers"
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.storage["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.storage["secret_access_key"])
    names = run_page(DOCS / "how-to" / "s3.md")
    assert names["data"].version == hw.open("photos").version


@pytest.mark.slow
def test_the_page_on_stores_reads_from_two(workplace: Path, tmp_path: Path) -> None:
    secure = make_certificates(tmp_path / "certificates")
    settings = {**secure.serve, "token_file": write_tokens(tmp_path, trainer={"secret": SECRET})}
    shutil.copy(secure.ca, workplace / "ca.pem")
    (workplace / "trainer.token").write_text(SECRET)
    write_photos(workplace / "north", count=8, classes=2, seed=1)
    _write_shard(workplace / "south", beside=workplace / "north")
    with (
        running_daemon({"photos": workplace / "photos", "north": workplace / "north"}, **settings) as a,
        running_daemon({"photos": workplace / "photos", "south": workplace / "south"}, **settings) as b,
    ):
        page = _readdressed("how-to/read-from-a-store", tmp_path, {"store-a:7077": a, "store-b:7077": b})
        names = run_page(page)
        # Under load a store may send files after all.
        assert 0 < names["stats"].bytes_moved <= names["stats"].bytes_raw
        assert len(names["data"]) == 16
        names["data"].close()


def _write_shard(folder: Path, *, beside: Path) -> None:
    """The files of another folder under other names, so that their ids differ."""
    for photo in beside.rglob("*.jpg"):
        copy = folder / photo.parent.name / f"south-{photo.name}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, copy)


@pytest.mark.slow
def test_other_clients_speak_to_a_store(workplace: Path, tmp_path: Path) -> None:
    token_file = write_tokens(tmp_path, operator={"secret": SECRET, "scopes": ["read", "admin"]})
    with running_daemon({"photos": workplace / "photos"}, token_file=token_file) as daemon:
        page = _readdressed("reference/wire", tmp_path, {"127.0.0.1:7077": daemon})
        wire = run_page(page, {"token": SECRET.encode()})
        wire["client"].close()
    photos = [path.read_bytes() for path in (workplace / "photos").rglob("*.jpg")]
    assert len(wire["files"]) == 2
    assert all(row["payload"] in photos for row in wire["files"])


def _readdressed(name: str, folder: Path, daemons: dict[str, Daemon]) -> Path:
    """A copy of a page in which the addresses are those of stores that run."""
    text = (DOCS / f"{name}.md").read_text()
    for written, daemon in daemons.items():
        text = text.replace(written, f"127.0.0.1:{daemon.serving.address.rpartition(':')[2]}")
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_the_settings_on_the_page_can_be_read(tmp_path: Path) -> None:
    (toml,) = re.findall(
        r"^    # /etc/headwater/store\.toml\n(.*?)^$\n    headwater serve",
        (DOCS / "how-to" / "operate-a-store.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    path = tmp_path / "store.toml"
    path.write_text(textwrap.dedent(toml))
    assert set(load(path, {}).datasets) == {"photos", "scans"}


def started_by(page: str) -> dict[str, list[str]]:
    """What the systemd unit and the container on a page run, word by word."""
    (unit,), (entry,), (words,) = (
        re.findall(rf"^    {key}[= ](.*)$", page, re.MULTILINE) for key in ("ExecStart", "ENTRYPOINT", "CMD")
    )
    return {"unit": shlex.split(unit), "container": [*json.loads(entry), *json.loads(words)]}


@pytest.mark.parametrize("what", ["unit", "container"])
def test_the_unit_and_the_container_start_a_store(what: str, tmp_path: Path) -> None:
    """With flags that `serve` has; what it would do is shown, with a config of the test's."""
    program, verb, *words = started_by((DOCS / "how-to" / "operate-a-store.md").read_text())[what]
    assert (Path(program).name, verb) == ("headwater", "serve")
    assert {word for word in words if word.startswith("-")} <= set(options(COMMANDS["headwater serve"]))
    config = tmp_path / "store.toml"
    config.write_text(f'[datasets.photos]\nuri = "{tmp_path}"\n')
    assert "/etc/headwater/store.toml" in words
    given = [str(config) if word == "/etc/headwater/store.toml" else word for word in words]
    assert run(["serve", *given, "--show-config"]) == 0


def test_nothing_names_a_page_that_the_site_lacks() -> None:
    """mkdocs warns of a page outside its navigation; this finds it without building the site."""
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
