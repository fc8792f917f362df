from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.errors import HeadwaterError, Refused, WrongUse
from headwater.store.server.tokens import SCOPES, Tokens

SECRET = "s3cret-of-the-trainer"
OTHER = "s3cret-of-the-second"
ENTRY = f'[[token]]\nname = "trainer"\nsecret = "{SECRET}"\n'


class Clock:
    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, mode: int = 0o600) -> Path:
        """Replaces the file as editors do: a new inode."""
        fresh = tmp_path / "fresh"
        fresh.write_bytes(text.encode() if isinstance(text, str) else text)
        fresh.chmod(mode)
        return fresh.rename(tmp_path / "tokens.toml")

    return write


def load(path: Path | None, clock: Clock | None = None, **environment: str) -> Tokens:
    return Tokens.load(path, environment, clock=clock or Clock())


def test_a_token_opens_reading_every_dataset_unless_it_says_otherwise(write: Write) -> None:
    token = load(write(ENTRY)).find(SECRET)
    assert token is not None
    assert (token.name, token.scopes, token.datasets, token.expires) == ("trainer", {"read"}, None, None)


def test_every_key_of_an_entry_is_read(write: Write) -> None:
    text = ENTRY + 'scopes = ["jobs", "admin"]\ndatasets = ["photos"]\nexpires = 2027-01-01T02:00:00+02:00\n'
    token = load(write(text)).find(SECRET)
    assert token is not None
    assert token.scopes == {"jobs", "admin"}
    assert token.datasets == {"photos"}
    assert token.expires is not None
    assert token.expires.isoformat() == "2027-01-01T00:00:00+00:00"


def test_the_file_may_hold_the_digest_instead_of_the_secret(write: Write) -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest().upper()
    tokens = load(write(f'[[token]]\nname = "trainer"\nsha256 = "{digest}"\n'))
    assert tokens.find(SECRET) is not None
    assert tokens.find(digest) is None


def test_another_secret_finds_nothing(write: Write) -> None:
    tokens = load(write(ENTRY))
    assert [tokens.find(wrong) for wrong in ("", SECRET[:-1], SECRET + "x", "ü" * 20, "\ud800")] == [None] * 5


def test_the_environment_gives_one_token_for_everything(write: Write) -> None:
    tokens = load(write(ENTRY), HEADWATER_TOKEN=OTHER)
    token = tokens.find(OTHER)
    assert token is not None
    assert (token.name, token.scopes, token.datasets) == ("environment", set(SCOPES), None)
    assert tokens.find(SECRET) is not None


def test_no_file_and_no_variable_are_no_tokens(write: Write) -> None:
    assert not load(None)
    assert load(None, HEADWATER_TOKEN=SECRET)
    assert load(write(ENTRY))


def test_an_expired_token_is_still_found_so_that_its_owner_is_told(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    token = load(write(ENTRY + "expires = 2020-01-01T00:00:00Z\n")).find(SECRET)
    assert token is not None
    assert token.expired(Clock().now)
    assert "expired on 2020-01-01" in caplog.text


DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
BAD = {
    "": "holds no token",
    "token = []\n": "holds no token",
    "token = 3\n": "holds no token",
    "token = [3]\n": "entry 1 is not a table",
    ENTRY + "[trainer]\n": "unknown key 'trainer'",
    ENTRY + 'scope = ["read"]\n': "unknown key 'scope'",
    ENTRY + 'scopes = ["write"]\n': "unknown scope 'write'",
    ENTRY + 'scopes = "read"\n': "scopes must be a list",
    ENTRY + "datasets = [1]\n": "datasets must be a list",
    ENTRY + 'datasets = [""]\n': "datasets must be a list",
    ENTRY + "expires = 2027-01-01T00:00:00\n": "expires must be",
    ENTRY + "expires = 2027-01-01\n": "expires must be",
    ENTRY + 'expires = "2027-01-01T00:00:00Z"\n': "expires must be",
    ENTRY + "expires = 9999-12-31T23:59:59-10:00\n": "beyond the calendar",
    ENTRY + f'sha256 = "{DIGEST}"\n': "either secret or sha256",
    '[[token]]\nname = "trainer"\n': "either secret or sha256",
    '[[token]]\nname = "trainer"\nsecret = ""\n': "must have 16",
    '[[token]]\nname = "trainer"\nsecret = "s3cret-of-fiftee"\nname = "x"\n': "is not TOML at line 4",
    '[[token]]\nname = "trainer"\nsecret = "s3cret-of-15-ch"\n': "must have 16",
    '[[token]]\nname = "trainer"\nsecret = "s3cret of the trainer"\n': "without blanks",
    '[[token]]\nname = "trainer"\nsecret = "s3cret-of-the-trainör"\n': "printable ASCII",
    f'[[token]]\nname = "trainer"\nsecret = "{SECRET}\\n"\n': "without blanks",
    f'[[token]]\nname = "trainer"\nsha256 = "{DIGEST[:-1]}"\n': "64 hex digits",
    f'[[token]]\nsecret = "{SECRET}"\n': "needs a name",
    f'[[token]]\nname = "a b"\nsecret = "{SECRET}"\n': "needs a name",
    f'[[token]]\nname = "a\\n"\nsecret = "{SECRET}"\n': "needs a name",
    f'[[token]]\nname = "anonymous"\nsecret = "{SECRET}"\n': "choose another name",
    ENTRY + ENTRY.replace(SECRET, OTHER): "both named 'trainer'",
    ENTRY + ENTRY.replace("trainer", "second", 1): "same secret",
    ENTRY + f'[[token]]\nname = "second"\nsha256 = "{DIGEST}"\n': "same secret",
    f'[[token]]\nname = "trainer"\nsecret = "{SECRET}': "is not TOML at end of document",
    f"[[token]]\nname = 'trainer'\nsecret = {SECRET}\n": "is not TOML at line 3",
    f"{SECRET}\n": "is not TOML at line 1",
    "a = " + "[" * 5000 + "\n": "is not TOML",
}


@pytest.mark.parametrize(("text", "fact"), BAD.items(), ids=BAD.values())
def test_a_file_that_cannot_be_right_is_refused_without_its_secrets(
    write: Write, text: str, fact: str
) -> None:
    path = write(text)
    with pytest.raises(WrongUse) as caught:
        load(path)
    assert fact in str(caught.value)
    assert str(path) in str(caught.value)
    assert_silent(repr(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def assert_silent(text: str) -> None:
    assert "s3cret" not in text
    assert DIGEST not in text.lower()


def test_a_file_that_is_not_text_is_refused(write: Write) -> None:
    with pytest.raises(WrongUse, match="not UTF-8"):
        load(write(b"\xff" + ENTRY.encode()))
    with pytest.raises(WrongUse, match="larger than"):
        load(write(b"#" * ((1 << 20) + 1)))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644, 0o777])
def test_a_file_that_others_may_use_is_refused(write: Write, mode: int) -> None:
    path = write(ENTRY, mode)
    with pytest.raises(Refused, match=f"mode {mode:03o}.*chmod 600 {path}"):
        load(path)


def test_only_a_regular_file_will_do(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    with pytest.raises(Refused, match="not a regular file"):
        load(tmp_path / "pipe")
    with pytest.raises(HeadwaterError, match="folder"):
        load(tmp_path / "folder")
    with pytest.raises(WrongUse, match="No such file"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("secret", ["", "short", "s3cret of the trainer"])
def test_a_variable_that_is_set_must_hold_a_secret(secret: str) -> None:
    with pytest.raises(WrongUse, match="HEADWATER_TOKEN must have 16") as caught:
        load(None, HEADWATER_TOKEN=secret)
    assert_silent(repr(caught.value))


def test_file_and_variable_cannot_share_a_secret(write: Write) -> None:
    with pytest.raises(WrongUse, match="repeats the secret of HEADWATER_TOKEN") as caught:
        load(write(ENTRY), HEADWATER_TOKEN=SECRET)
    assert_silent(repr(caught.value))


def test_nothing_prints_a_secret_or_its_digest(write: Write) -> None:
    tokens = load(write(ENTRY))
    token = tokens.find(SECRET)
    assert repr(tokens) == "Tokens(trainer)"
    assert "trainer" in repr(token)
    assert_silent(repr(token))
    assert repr(hashlib.sha256(SECRET.encode()).digest()) not in repr(token)


def test_a_changed_file_takes_effect_within_a_second(write: Write) -> None:
    clock = Clock()
    tokens = load(write(ENTRY), clock)
    write(ENTRY.replace(SECRET, OTHER))
    clock.now += 0.9
    assert tokens.find(SECRET) is not None, "looked at the file too early"
    clock.now += 0.2
    assert tokens.find(SECRET) is None
    assert tokens.find(OTHER) is not None


def test_a_clock_set_back_does_not_stop_the_rotation(write: Write) -> None:
    clock = Clock()
    tokens = load(write(ENTRY), clock)
    write(ENTRY.replace(SECRET, OTHER))
    clock.now -= 3600
    assert tokens.find(OTHER) is not None


def test_a_file_edited_in_place_takes_effect(write: Write) -> None:
    clock = Clock()
    path = write(ENTRY)
    tokens = load(path, clock, HEADWATER_TOKEN="the-one-of-the-environment")
    path.write_text(ENTRY + f'[[token]]\nname = "second"\nsecret = "{OTHER}"\n')
    clock.now += 1
    assert tokens.find(OTHER) is not None
    assert tokens.find(SECRET) is not None
    assert tokens.find("the-one-of-the-environment") is not None


@pytest.mark.parametrize("bad", [f"{SECRET}\n", "", ENTRY + "[[token]]\n", None])
def test_a_file_that_goes_bad_keeps_the_old_tokens_and_says_so_once(
    write: Write, caplog: pytest.LogCaptureFixture, bad: str | None
) -> None:
    clock = Clock()
    path = write(ENTRY)
    tokens = load(path, clock)
    if bad is None:
        path.unlink()
    else:
        write(bad)
    for _ in range(5):
        clock.now += 2
        assert tokens.find(SECRET) is not None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "stay in force" in caplog.text
    assert_silent(caplog.text)
    write(ENTRY.replace(SECRET, OTHER))
    clock.now += 2
    assert tokens.find(SECRET) is None


def test_a_file_whose_mode_is_healed_is_read_although_its_content_is_old(write: Write) -> None:
    clock = Clock()
    tokens = load(write(ENTRY), clock)
    path = write(ENTRY.replace(SECRET, OTHER), 0o644)
    clock.now += 2
    assert tokens.find(OTHER) is None
    path.chmod(0o600)
    clock.now += 2
    assert tokens.find(OTHER) is not None


def test_the_file_is_not_parsed_again_while_it_does_not_change(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headwater")
    clock = Clock()
    tokens = load(write(ENTRY), clock)
    for _ in range(3):
        clock.now += 2
        tokens.find(SECRET)
    assert caplog.records == []
    write(ENTRY)
    clock.now += 2
    tokens.find(SECRET)
    assert len(caplog.records) == 1
