"""Settings for S3 where people keep them: the environment, and the AWS tools' own files.

obstore reads the environment but no files. An explicit setting wins over the environment, which wins over
the profile that AWS_PROFILE names in ~/.aws/credentials and ~/.aws/config.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

from headwater.errors import DatasetError

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


def settings(given: Mapping[str, str]) -> dict[str, str]:
    """What obstore has to be told besides the environment that it reads itself."""
    found = dict(given)
    profile = _profile()
    if not any(key in found for key in (*_KEYS, "access_key_id")) and "AWS_ACCESS_KEY_ID" not in os.environ:
        found |= {key: profile[key] for key in _KEYS if key in profile}
    if not {"region", "aws_region"} & found.keys() and not _environment("AWS_REGION", "AWS_DEFAULT_REGION"):
        found |= {"region": profile["region"]} if "region" in profile else {}
    endpoint = found.get("endpoint") or _environment(*_ENDPOINTS) or profile.get("endpoint_url", "")
    return found | ({"endpoint": endpoint} if endpoint else {})


def _environment(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _profile() -> dict[str, str]:
    name = os.environ.get("AWS_PROFILE", "default")
    config = _read("AWS_CONFIG_FILE", "config")
    credentials = _read("AWS_SHARED_CREDENTIALS_FILE", "credentials")
    section = name if name == "default" else f"profile {name}"
    values: dict[str, str] = {}
    for parser, wanted in ((config, section), (credentials, name)):
        if wanted in parser:
            values.update(parser[wanted])
    if not values and "AWS_PROFILE" in os.environ:
        raise DatasetError(
            f"AWS_PROFILE is {name!r}, and ~/.aws has no such profile; add it or unset AWS_PROFILE"
        )
    return values


def _read(variable: str, name: str) -> configparser.ConfigParser:
    path = Path(os.environ.get(variable) or Path.home() / ".aws" / name)
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path)
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read: {error}; mend it, or pass storage={{...}}") from error
    return parser
