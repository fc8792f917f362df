"""What a store and the command line load: not torch, and nothing slow."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

WITHOUT_TORCH = [
    "headwater",
    "headwater.cli",
    "headwater.data.synthetic",
    "headwater.data.translate",
    "headwater.engine.run",
    "headwater.measure.signals",
    "headwater.models",
    "headwater.plan.prune",
    "headwater.report.loader",
    "headwater.store",
    "headwater.transforms",
]


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_loads_without_torch(module: str) -> None:
    assert find_spec("torch") is not None, "this proves nothing where torch is not installed"
    program = f"import sys, {module}; sys.exit('torch was loaded' if 'torch' in sys.modules else 0)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_all_steps_of_the_catalogue_load_without_torch() -> None:
    program = (
        "import sys\n"
        "from headwater.data.steps import catalogue\n"
        "assert len(catalogue()) > 10\n"
        "sys.exit('torch was loaded' if 'torch' in sys.modules else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


@pytest.mark.parametrize("module", ["headwater.models", "headwater.cli", "headwater.store"])
def test_loads_without_the_packages_of_models_and_labels(module: str) -> None:
    packages = ["onnx", "onnxruntime", "safetensors", "sqlalchemy", "torch", "zstandard"]
    assert all(find_spec(name) for name in packages), "this proves nothing where they are not installed"
    program = f"import sys, {module}; sys.exit(' '.join(set({packages}) & set(sys.modules)) or 0)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
