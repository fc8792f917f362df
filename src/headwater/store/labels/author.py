"""Who writes labels, where nobody says so."""

from __future__ import annotations

import getpass


def user_name() -> str:
    """Who runs the program, as far as the system knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
