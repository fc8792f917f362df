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
    "Limits",
    "Link",
    "Offload",
    "Recipe",
    "Sample",
    "Ticket",
    "Tuner",
    "find_duplicates",
    "load_ticket",
    "open",
    "profile",
    "split",
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
    "Limits": "headwater.data.image",
    "Link": "headwater.store",
    "Offload": "headwater.plan.offload",
    "Recipe": "headwater.tune.recipe",
    "Sample": "headwater.store",
    "Ticket": "headwater.train.tickets",
    "Tuner": "headwater.tune.tuner",
    "find_duplicates": "headwater.loader.finding",
    "load_ticket": "headwater.train.tickets",
    "open": "headwater.store",
    "profile": "headwater.loader.probe",
    "split": "headwater.models.split",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
