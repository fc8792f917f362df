"""Where samples live. The local store reads in place, in this process."""

from headwater.store.dataset import Dataset, Sample
from headwater.store.local import LocalStore
from headwater.store.open import open

__all__ = ["Dataset", "LocalStore", "Sample", "open"]
