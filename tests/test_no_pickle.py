"""Nothing that a store or the data layer loads can turn bytes into code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src"
MODULES = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"),
    *("multiprocessing", "yaml", "code", "runpy", "imp"),
}
"""Importing one is an offence; what `multiprocessing` sends is pickled."""
BUILTINS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    *("torch.load", "torch.jit.load", "torch.package", "torch.hub", "numpy.load", "np.load", "np.save"),
    *("pandas.read_pickle", "pd.read_pickle", "os.system", "os.popen"),
}

ALLOWED = ("headwater/__init__.py", "import_module")
"""The public names that load when they are first used, from a table."""


def offences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        for name in _imported(node):
            if name.partition(".")[0] in MODULES or name in ATTRIBUTES:
                yield node.lineno, f"imports {name}"  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and node.id in BUILTINS:
            yield node.lineno, node.id
        if isinstance(node, ast.Call) and _imports_anything(node):
            yield node.lineno, "import_module"
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ATTRIBUTES:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "shell", "weights_only"):
            yield node.lineno, f"{node.arg}="


def _imports_anything(call: ast.Call) -> bool:
    """Whether it imports a module whose name is not written there."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return name == "import_module" and not all(isinstance(word, ast.Constant) for word in call.args)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def reached(packages: tuple[str, ...]) -> dict[str, ast.AST]:
    """All modules of the packages, and those of our own that they import, also inside functions."""
    waiting = [path for package in packages for path in (ROOT / "headwater" / package).rglob("*.py")]
    found: dict[str, ast.AST] = {}
    while waiting:
        path = waiting.pop()
        name = str(path.relative_to(ROOT))
        if name not in found:
            found[name] = ast.parse(path.read_text(), name)
            for node in ast.walk(found[name]):
                waiting += [file for imported in _imported(node) for file in _files(imported)]
    return found


def _files(module: str) -> list[Path]:
    """The file of `headwater.a.b`, or of `headwater.a` where `b` is a name in it, and those above it."""
    parts = module.split(".")
    if parts[0] != "headwater":
        return []
    paths = [ROOT.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    candidates = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    return [file for file in candidates if file.is_file()]


def test_the_detector_detects() -> None:
    bad = [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import marshal.x",
        "from torch import load",
        "import torch\ntorch.load(x)",
        "eval('1')",
        "f = exec",
        "importlib.import_module(name)",
        "np.load(f)",
        "numpy.fromfile(f, allow_pickle=True)",
        "from multiprocessing.shared_memory import SharedMemory",
        "subprocess.run(x, shell=True)",
    ]
    assert not [text for text in bad if not list(offences(ast.parse(text)))]
    assert not list(
        offences(ast.parse("import re\nre.compile('x')\nmsgspec.msgpack.decode(x)\nself.load(x)"))
    )


def test_the_graph_reaches_what_is_imported_inside_functions() -> None:
    found = set(reached(("store",)))
    assert {
        "headwater/store/server/worker.py",
        "headwater/data/codecs/__init__.py",
        "headwater/engine/chain.py",
        "headwater/errors.py",
        "headwater/__init__.py",
    } <= found


def test_nothing_that_a_store_loads_turns_bytes_into_code() -> None:
    found = [
        f"{name}:{line} {what}"
        for name, tree in reached(("store", "data")).items()
        for line, what in offences(tree)
        if (name, what) != ALLOWED
    ]
    assert not found
