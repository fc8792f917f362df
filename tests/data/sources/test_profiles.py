"""Settings are found where the AWS tools keep them, and the nearer one wins."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater as hw
from headwater.data.sources.profiles import settings
from headwater.errors import DatasetError
from seaweed import S3Server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and an environment without a word about AWS."""
    import os

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path


def write(home: Path, name: str, text: str) -> None:
    (home / ".aws" / name).write_text(text)


def test_nothing_anywhere_is_nothing() -> None:
    assert settings({}) == {}


def test_the_default_profile(home: Path) -> None:
    write(home, "credentials", "[default]\naws_access_key_id = k\naws_secret_access_key = s%1\n")
    write(home, "config", "[default]\nregion = eu-west-1\nendpoint_url = http://there:1\n")
    assert settings({}) == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s%1",
        "region": "eu-west-1",
        "endpoint": "http://there:1",
    }


def test_a_named_profile_and_one_that_is_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "config", "[default]\nregion = a\n[profile lab]\nregion = b\n")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert settings({}) == {"region": "b"}
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(DatasetError, match="AWS_PROFILE is 'nobody'"):
        settings({})


def test_environment_wins_over_profile_and_arguments_over_both(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, "credentials", "[default]\naws_access_key_id = k\naws_secret_access_key = s\n")
    write(home, "config", "[default]\nregion = a\nendpoint_url = http://profile\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from the environment")
    monkeypatch.setenv("AWS_REGION", "too")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://environment")
    assert settings({}) == {"endpoint": "http://environment"}
    assert settings({"endpoint": "http://given"}) == {"endpoint": "http://given"}


def test_a_broken_file_is_named(home: Path) -> None:
    write(home, "config", "no section\n")
    with pytest.raises(DatasetError, match=r"config cannot be read"):
        settings({})


def test_a_bucket_opens_with_a_profile_alone(home: Path, s3: S3Server, photo_folder: Path) -> None:
    address = s3.upload(photo_folder, "profiles")
    keys = s3.storage
    write(
        home,
        "credentials",
        f"[default]\naws_access_key_id = {keys['access_key_id']}\n"
        f"aws_secret_access_key = {keys['secret_access_key']}\n",
    )
    write(home, "config", f"[default]\nregion = us-east-1\nendpoint_url = {s3.endpoint}\n")
    assert len(hw.open(address)) == len(hw.open(photo_folder))
