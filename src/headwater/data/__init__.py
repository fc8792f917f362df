"""Datasets as they lie, and the chain as data: index, sources, randomness, steps, pipeline, codecs."""
