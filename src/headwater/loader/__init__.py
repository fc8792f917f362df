"""Batches for an ordinary PyTorch loop."""

from headwater.loader.batch import Batch
from headwater.loader.loader import DataLoader
from headwater.loader.offloading import Auto

__all__ = ["Auto", "Batch", "DataLoader"]
