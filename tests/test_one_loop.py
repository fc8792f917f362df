"""Only the engine iterates samples: no other package reads files or runs chains on its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import headwater

ROOT = Path(headwater.__file__).parent
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
READING = {"read", "read_heads", "read_fields", "apply", "decode"}
RECEIVERS = {"store", "source", "reader", "dataset", "step", "chain"}


def repeated(loop: ast.AST) -> Iterator[ast.AST]:
    """What a loop does again and again; what it loops over is computed once."""
    once = {loop.iter} if isinstance(loop, ast.For | ast.AsyncFor) else set()
    once |= {loop.generators[0].iter} if hasattr(loop, "generators") else set()
    skipped = {node for part in once for node in ast.walk(part)}
    return (node for node in ast.walk(loop) if node not in skipped)


def offences(tree: ast.AST) -> Iterator[int]:
    """Lines inside loops that read samples from a store or put them through a step."""
    for loop in ast.walk(tree):
        if not isinstance(loop, LOOPS):
            continue
        for node in repeated(loop):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in READING
            ):
                receiver = node.func.value
                name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
                if name.strip("_") in RECEIVERS:
                    yield node.lineno


def test_the_detector_detects() -> None:
    assert list(offences(ast.parse("for i in ids:\n    self._store.read(i)"))) == [2]
    assert list(offences(ast.parse("[step.apply(x, r) for x in xs]"))) == [1]
    assert not list(offences(ast.parse("store.read(ids)")))
    assert not list(offences(ast.parse("[x for x in store.read(ids)]")))


def test_no_package_but_the_engine_loops_over_samples() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in ("measure", "models", "store", "loader", "tune", "report", "cli")
        for path in (ROOT / package).rglob("*.py")
        for line in offences(ast.parse(path.read_text()))
    ]
    assert not found
