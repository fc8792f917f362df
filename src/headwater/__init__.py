"""Headwater: near-storage training for PyTorch.

    data = hw.open("photos/")
    loader = hw.DataLoader(data, transforms.Compose([...]), batch_size=256, shuffle=True)

Names are loaded when they are first used, so that `import headwater` is quick and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.data.image import Limits
    from headwater.engine.cache import Cache
    from headwater.loader import Auto, Batch, DataLoader
    from headwater.loader.beside import Beside
    from headwater.loader.duplicates import Duplicates
    from headwater.loader.finding import find_duplicates
    from headwater.loader.probe import profile
    from headwater.models.split import split
    from headwater.plan.offload import Offload
    from headwater.store import Dataset, Link, Sample, open
    from headwater.train.memory import MemoryBudget, MemoryReport, max_batch, memory_budget
    from headwater.train.replay.batches import FullBatch, Minibatches
    from headwater.train.replay.comparing import compare_methods
    from headwater.train.replay.features import Features
    from headwater.train.replay.journal import Journal
    from headwater.train.replay.retraining import retrain
    from headwater.train.replay.valuation import value_samples
    from headwater.train.tickets import EarlyBird, Ticket, load_ticket
    from headwater.tune.recipe import Recipe
    from headwater.tune.tuner import Tuner

__version__ = version("headwater")
__all__ = [
    "Auto",
    "Batch",
    "Beside",
    "Cache",
    "DataLoader",
    "Dataset",
    "Duplicates",
    "EarlyBird",
    "Features",
    "FullBatch",
    "Journal",
    "Limits",
    "Link",
    "MemoryBudget",
    "MemoryReport",
    "Minibatches",
    "Offload",
    "Recipe",
    "Sample",
    "Ticket",
    "Tuner",
    "compare_methods",
    "find_duplicates",
    "load_ticket",
    "max_batch",
    "memory_budget",
    "open",
    "profile",
    "retrain",
    "split",
    "value_samples",
]

_HOMES = {
    "Auto": "headwater.loader",
    "Batch": "headwater.loader",
    "Beside": "headwater.loader.beside",
    "Cache": "headwater.engine.cache",
    "DataLoader": "headwater.loader",
    "Dataset": "headwater.store",
    "Duplicates": "headwater.loader.duplicates",
    "EarlyBird": "headwater.train.tickets",
    "Features": "headwater.train.replay.features",
    "FullBatch": "headwater.train.replay.batches",
    "Journal": "headwater.train.replay.journal",
    "Limits": "headwater.data.image",
    "Link": "headwater.store",
    "MemoryBudget": "headwater.train.memory",
    "MemoryReport": "headwater.train.memory",
    "Minibatches": "headwater.train.replay.batches",
    "Offload": "headwater.plan.offload",
    "Recipe": "headwater.tune.recipe",
    "Sample": "headwater.store",
    "Ticket": "headwater.train.tickets",
    "Tuner": "headwater.tune.tuner",
    "compare_methods": "headwater.train.replay.comparing",
    "find_duplicates": "headwater.loader.finding",
    "load_ticket": "headwater.train.tickets",
    "max_batch": "headwater.train.memory",
    "memory_budget": "headwater.train.memory",
    "open": "headwater.store",
    "profile": "headwater.loader.probe",
    "retrain": "headwater.train.replay.retraining",
    "split": "headwater.models.split",
    "value_samples": "headwater.train.replay.valuation",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
