from __future__ import annotations

import subprocess
import sys

from headwater.cli.cpu import cpu_seconds, tree_cpu_seconds

_BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
_FAMILY = f"""
import subprocess, sys
burn = {_BURN!r}
subprocess.run([sys.executable, "-c", burn], check=True)
words = [sys.executable, "-c", burn + "print(flush=True)\\ninput()"]
living = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
living.stdout.readline()
print("burnt", flush=True)
input()
living.communicate(b"\\n")
"""


def test_children_count_living_or_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "burnt\n"
        whole, alone = tree_cpu_seconds(parent.pid), cpu_seconds([parent.pid])
        parent.communicate("\n")
    assert 0.55 < whole < 5.0
    assert 0.25 < alone <= whole - 0.25  # without the child that lives


def test_a_process_that_is_gone_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert tree_cpu_seconds(child.pid) == 0.0
    assert cpu_seconds([child.pid]) == 0.0
