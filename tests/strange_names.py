"""Names that a hostile caller sends where a store expects one that it knows."""

from __future__ import annotations

from urllib.parse import quote


def make_names() -> list[str]:
    """About two hundred names that mean something to a file system, a URL, a shell, a log or a terminal."""
    ways = [
        "..",
        "../..",
        "../../../../etc/passwd",
        "/etc/passwd",
        "/",
        "//etc//passwd",
        "./.",
        "~",
        "~root/.ssh",
    ]
    ways += ["photos/..", "photos/../photos", "../photos", "photos/../../etc/shadow", "file:///etc/passwd"]
    ways += [
        "C:\\Windows",
        "..\\..\\windows",
        "\\\\host\\share",
        "photos\\..",
        "/proc/self/environ",
        "/dev/zero",
    ]
    names = [way for one in ways for way in (one, quote(one, safe=""), quote(quote(one, safe=""), safe=""))]
    names += [way.replace(".", dot) for way in ways for dot in ("%2e", "%c0%ae", "\uff0e", "\u2024", "%252e")]
    odd = [
        "\0",
        "\n",
        "\r\n",
        "\x1b[2J",
        "\u202e",
        "\ufeff",
        "\u200b",
        "\x7f",
        "\u2028",
        "\U0001f600",
        "'",
        '"',
        "`",
    ]
    names += [text for one in odd for text in (one, f"photos{one}", f"{one}photos", f"photos{one}../x")]
    names += [
        "",
        " ",
        "photos ",
        "PHOTOS",
        "ph\u043etos",
        "a" * 128,
        "a" * 129,
        "\U0001f600" * 128,
        "a" * 100_000,
        "\U0001f600" * 5000,
    ]
    names += [
        "$(id)",
        "`id`",
        "; id",
        "| id",
        "{0}",
        "%s%s%n",
        "{{7*7}}",
        "${jndi:ldap://x}",
        "<script>",
        "' OR 1=1--",
    ]
    return names


NAMES = make_names()
