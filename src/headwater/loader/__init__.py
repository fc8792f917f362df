"""Batches for an ordinary PyTorch loop."""

from headwater.loader.batch import Batch
from headwater.loader.loader import DataLoader

__all__ = ["Batch", "DataLoader"]
