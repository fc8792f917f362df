"""A call in a forked child, for tests of what may not be used there."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(call: Callable[[], object]) -> str:
    """The name and text of what the call raises in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        answer = "nothing"
        try:
            call()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer
