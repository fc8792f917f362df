"""Samples that stay at the trainer, so that they need not cross the link again."""

from headwater.engine.cache.cache import Holdings, SampleCache
from headwater.engine.cache.reader import CachedReader
from headwater.engine.cache.settings import Cache

__all__ = ["Cache", "CachedReader", "Holdings", "SampleCache"]
