"""Where samples live: in this process, read in place, or behind a link on another machine."""

from headwater.store.client.link import Link
from headwater.store.dataset import Dataset, Sample
from headwater.store.local import LocalStore
from headwater.store.open import open

__all__ = ["Dataset", "Link", "LocalStore", "Sample", "open"]
