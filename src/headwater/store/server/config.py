"""What a store is told: a TOML file, flags on top of it, and the one frozen value that comes of both.

No secret belongs here. Tokens are named by the path of their file; credentials of a bucket come from the
environment or ~/.aws. So the settings can be shown, and sent with a report of a fault.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from headwater.data.bytecount import parse_bytes
from headwater.data.image import Limits
from headwater.engine.budget import Budget
from headwater.errors import MissingExtra, WrongUse
from headwater.store.wire.messages import DATASET_NAME

_ADDRESS = re.compile(r"(\[[^\[\]/]+\]|[^\[\]:/\s]+):(\d{1,5})")
_SCHEME = re.compile(r"[a-z][a-z0-9+]*://")
_SHARD = re.compile(r"(?i)\.(tar|parquet)$")
_SECRET = re.compile(r"(?i)secret|token|password|passphrase|key|credential")
_PASSWORD = re.compile(r"(?i)^[^/]*://[^/]*:[^/]*@|[?&][^=]*pass[^=]*=")
_PLACE = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_PATHS = ("token_file", "tls_cert", "tls_key", "tls_client_ca", "audit_log", "state", "labels")
_SIZES = ("memory", "request_bytes", "model_bytes", "feature_bytes", "image_bytes", "inbox_bytes")
_BUDGET = ("cores", "memory", "requests", "request_bytes", "request_samples")
_FOLLOWS = {"cores": "from the machine", "requests": "from cores", "request_bytes": "from memory"}


@dataclass(frozen=True)
class DatasetConfig:
    """One dataset to serve: where it lies, and how `hw.open` is to read it."""

    uri: str | tuple[str, ...]
    split: str | None = None
    image: str | None = None
    label: str | None = None
    fields: tuple[str, ...] = ()
    storage: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The settings of a store.

    `listen` and `http` are HOST:PORT, port 0 takes any free one; no `http` means no HTTP at all. Where
    `cores`, `requests` or `request_bytes` is None it follows from the machine and the other numbers.
    `memory`, `request_bytes`, `model_bytes`, `feature_bytes`, `image_bytes` and `inbox_bytes` are bytes.
    `limits` are the caps on one image. `state` is the folder of what the store keeps; without it the store
    serves data and nothing else. `labels` is the URL of a label database elsewhere. `predict_milliseconds` is
    how long a prediction may take once its image is here. `may_delete` lets who may forget samples have their
    files deleted, too.
    """

    listen: str = "127.0.0.1:7077"
    http: str | None = None
    cores: float | None = None
    memory: int = 1 << 30
    requests: int | None = None
    request_bytes: int | None = None
    request_samples: int = 16_384
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    plaintext: bool = False
    audit_log: Path | None = None
    drain_seconds: float = 30.0
    send_seconds: float = 60.0
    state: Path | None = None
    labels: str | None = None
    model_bytes: int = 1 << 30
    feature_bytes: int = 1 << 30
    image_bytes: int = 0
    inbox_bytes: int = 1 << 34
    predict_milliseconds: float = 500.0
    may_delete: bool = False
    limits: Limits = field(default_factory=Limits)
    datasets: dict[str, DatasetConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for address in (self.listen, self.http):
            if address is not None:
                split_address(address)
        if not (isfinite(self.drain_seconds) and self.drain_seconds >= 0):
            raise WrongUse(f"drain_seconds is {self.drain_seconds}; give seconds, 0 for no waiting at all")
        if not (isfinite(self.send_seconds) and self.send_seconds > 0):
            raise WrongUse(f"send_seconds is {self.send_seconds}; give the seconds that a reply may take")
        if not (isfinite(self.predict_milliseconds) and self.predict_milliseconds > 0):
            raise WrongUse(f"predict_milliseconds is {self.predict_milliseconds}; give a number above 0")
        for name in ("model_bytes", "feature_bytes", "image_bytes", "inbox_bytes"):
            if getattr(self, name) < 0:
                raise WrongUse(f"{name} is {getattr(self, name)}; give bytes, 0 for none at all")
        _check_labels(self.labels, kept=self.state is not None)
        for name in self.datasets:
            _check_name(name)

    def budget(self) -> Budget:
        """What the store may spend; raises `WrongUse` for what cannot be."""
        given = {name: getattr(self, name) for name in _BUDGET}
        return Budget(**{name: value for name, value in given.items() if value is not None})


def load(path: Path | None, overrides: Mapping[str, object]) -> ServeConfig:
    """The settings of a file with `overrides` on top, where None means "not given".

    `overrides` has the names of the settings; its `datasets` are words [NAME=]DATA, which are added to the
    file's. Relative paths are relative to the file, or to the current folder where they are overrides; the
    result holds absolute ones. Raises `WrongUse`.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    words = given.pop("datasets", ())
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise WrongUse(f"datasets are {words!r}; give a list of [NAME=]DATA")
    settings = _read(path) if path else {}
    where = str(path) if path else "settings"
    _check_keys(settings, where)
    _check_keys(given, "flags")
    merged = _place(settings, path.parent if path else Path()) | _place(given, Path())
    merged["datasets"] = _join(merged.get("datasets", {}), name_datasets(words))
    config = _convert(merged, where)
    config.budget()
    return config


def show(config: ServeConfig) -> str:
    """The settings as TOML, which `load` reads back to an equal value."""
    try:
        import tomli_w
    except ImportError as error:
        raise MissingExtra(
            f"TOML is written with tomli-w ({error}); pip install 'headwater[serve]'"
        ) from error
    return "".join(f"# {remark}\n" for remark in _remarks(config)) + tomli_w.dumps(to_plain(config))


def _remarks(config: ServeConfig) -> list[str]:
    """What is in force where nothing is set, and what is not set at all."""
    unset = [entry.name for entry in dataclasses.fields(config) if getattr(config, entry.name) is None]
    budget = config.budget()
    numbers = {name: getattr(budget, name) for name in unset if name in _FOLLOWS}
    found = [
        f"{name} = {int(number) if number == int(number) else number} ({_FOLLOWS[name]})"
        for name, number in numbers.items()
    ]
    rest = [name for name in unset if name not in _FOLLOWS]
    return [*found, f"not set: {', '.join(rest)}"] if rest else found


def to_plain(config: ServeConfig) -> dict[str, Any]:
    """The settings as plain data, without those that are not set."""
    # `asdict` first: msgspec sees only what an instance was given, not what its class defaults to.
    plain = _without_none(msgspec.to_builtins(dataclasses.asdict(config), enc_hook=str))
    assert isinstance(plain, dict)
    return plain


def split_address(written: str) -> tuple[str, int]:
    """HOST and PORT of `127.0.0.1:7077`, `[::1]:7077` or `name:0`."""
    match = _ADDRESS.fullmatch(written)
    if not match or int(match[2]) > 65535:
        raise WrongUse(f"{written!r} is no address to listen on; write HOST:PORT, or [::1]:PORT for IPv6")
    return match[1].strip("[]"), int(match[2])


def name_datasets(words: Iterable[str]) -> dict[str, DatasetConfig]:
    """Datasets from words [NAME=]DATA, relative to the current folder; a name is a folder's or file's stem.

    A path whose first part has a `=` is written with a `./` before it.
    """
    named: dict[str, DatasetConfig] = {}
    for word in words:
        name, equals, uri = word.partition("=")
        if not (equals and DATASET_NAME.fullmatch(name)):
            name, uri = name_of(word), word
        if not uri:
            raise WrongUse(f"{word!r} names no data; write NAME=DATA or DATA")
        _check_name(name, of=word)
        named = _join(named, {name: DatasetConfig(_absolute(uri, Path()))})
    return named


def name_of(uri: str) -> str:
    """The name of data that is given none: `shards` for `x/shards-{000..099}.tar`; "" if nothing is left."""
    path = _absolute(uri, Path()).split("://", 1)[-1]
    for part in reversed(path.split("/")):
        stem = _SHARD.sub("", part)
        plain = re.split(r"[{*?\[]", stem, maxsplit=1)[0]
        name = stem if plain == stem else plain.rstrip("-_.")
        if name:
            return name
    return ""


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise WrongUse(f"{path} cannot be read: {error.strerror}; check --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongUse(f"{path} is no TOML: {error}; mend it") from error


def _check_keys(settings: Mapping[str, Any], where: str) -> None:
    _check_known(settings, _names(ServeConfig), where=where)
    _check_known(settings.get("limits"), _names(Limits), where=f"{where}, [limits]")
    datasets = settings.get("datasets")
    for name, dataset in datasets.items() if isinstance(datasets, dict) else ():
        place = f"{where}, [datasets.{name}]"
        _check_known(dataset, _names(DatasetConfig), where=place)
        _check_secrets(dataset, place)


def _check_known(table: object, known: Collection[str], *, where: str) -> None:
    for key in table if isinstance(table, Mapping) else ():
        if key not in known:
            near = get_close_matches(str(key), known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise WrongUse(f"{where} has no setting {key!r}; {hint}")


def _check_secrets(dataset: object, where: str) -> None:
    storage = dataset.get("storage") if isinstance(dataset, Mapping) else None
    for key in storage if isinstance(storage, Mapping) else ():
        if _SECRET.search(key):
            raise WrongUse(
                f"{where}: storage.{key} looks like a secret; set it in the environment or in ~/.aws"
            )


def _place(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings with sizes as numbers and paths made absolute, from `folder`."""
    placed = dict(settings)
    for name in _PATHS:
        if isinstance(placed.get(name), str | Path):
            placed[name] = _absolute(str(placed[name]), folder)
    for name in _SIZES:
        if isinstance(placed.get(name), str):
            placed[name] = parse_bytes(placed[name])
    limits = placed.get("limits")
    if isinstance(limits, dict) and isinstance(limits.get("bytes"), str):
        placed["limits"] = limits | {"bytes": parse_bytes(limits["bytes"])}
    datasets = placed.get("datasets")
    if isinstance(datasets, dict):
        placed["datasets"] = {name: _place_dataset(dataset, folder) for name, dataset in datasets.items()}
    return placed


def _place_dataset(dataset: object, folder: Path) -> object:
    uri = dataset.get("uri") if isinstance(dataset, dict) else None
    if isinstance(dataset, dict) and isinstance(uri, str):
        return dataset | {"uri": _absolute(uri, folder)}
    if isinstance(dataset, dict) and isinstance(uri, list):
        return dataset | {"uri": [_absolute(one, folder) if isinstance(one, str) else one for one in uri]}
    return dataset


def _absolute(path: str, folder: Path) -> str:
    if _SCHEME.match(path):
        return path
    return os.path.abspath(os.path.join(folder, os.path.expanduser(path)))


def _join(first: Any, second: Mapping[str, Any]) -> Any:
    """Both; one name for two datasets is a mistake that would hide one of them."""
    both = first.keys() & second.keys() if isinstance(first, dict) else ()
    if both:
        raise WrongUse(f"two datasets are called {min(both)!r}; write NAME=DATA to give one another name")
    return {**first, **second} if isinstance(first, dict) else first


def _check_name(name: str, *, of: str = "") -> None:
    if not DATASET_NAME.fullmatch(name):
        origin = f"{of!r} would be served as {name!r}, which" if of else repr(name)
        raise WrongUse(
            f"{origin} cannot be a dataset's name; write NAME=DATA with 1 to 64 letters, digits and . _ -,"
            " a letter or digit first, and no two dots in a row"
        )


def _check_labels(url: str | None, *, kept: bool) -> None:
    if url is None:
        return
    if not kept:
        raise WrongUse("labels are kept by a store with a state; give the folder as state, or --state")
    if _PASSWORD.search(url):
        raise WrongUse("the URL of the label database holds a password; use PGPASSWORD or ~/.pgpass instead")


def _convert(settings: Mapping[str, Any], where: str) -> ServeConfig:
    plain = {**settings, "datasets": msgspec.to_builtins(settings["datasets"])}
    try:
        return msgspec.convert(plain, ServeConfig, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        fact = f"{match[2]}: {match[1]}" if match and match[2] else str(error)
        raise WrongUse(f"{where}: {fact}") from error


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(entry.name for entry in dataclasses.fields(kind))


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return value
