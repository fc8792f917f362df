"""Models beside the data: versions in a registry, their graphs and tensors, and what it takes to send them.

Nothing here knows stores or networks. torch, onnx, onnxruntime, safetensors and zstandard are loaded when a
call needs them; they come with the extra `models`.
"""

from __future__ import annotations

from headwater.models.model import Model
from headwater.models.path import Part, Path, cheapest
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion, TensorFacts

__all__ = ["Model", "ModelVersion", "Part", "Path", "Registry", "TensorFacts", "cheapest"]
