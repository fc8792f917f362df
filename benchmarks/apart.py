"""A venv over the project's own, for packages that would change what is installed there."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path

FPGA = ("brevitas", "onnxoptimizer", "qonnx")
"""The extra `fpga`; qonnx wants an older setuptools than others bring."""
_CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
_FOLDER = Path(__file__).parent / "fpga" / ".venv"
_STAMP = _FOLDER / ".installed"


def go_there(packages: tuple[str, ...] = FPGA) -> None:
    """Start this program again where the packages are, unless they are here."""
    if not all(find_spec(name) for name in packages):
        python = str(_make(packages))
        os.execv(python, [python, *sys.argv])


def _make(packages: tuple[str, ...]) -> Path:
    """The interpreter; all that the project has is there too, after what is installed there."""
    python, wanted = _FOLDER / "bin" / "python", " ".join((*packages, _CONSTRAINTS.read_text()))
    if not _STAMP.exists() or _STAMP.read_text() != wanted:
        print(f"installing {', '.join(packages)} into benchmarks/fpga/.venv", file=sys.stderr, flush=True)
        venv.create(_FOLDER, clear=True)
        folders = [sysconfig.get_path("purelib", vars={"base": base}) for base in (str(_FOLDER), sys.prefix)]
        (Path(folders[0]) / "project.pth").write_text(f"import site; site.addsitedir({folders[1]!r})\n")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        words = ["--constraint", str(_CONSTRAINTS), *packages]
        subprocess.run([*pip, *words], check=True, stdout=sys.stderr)
        _STAMP.write_text(wanted)
    return python


if __name__ == "__main__":
    print(_make(FPGA))
