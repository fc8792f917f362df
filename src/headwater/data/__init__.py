"""Datasets as they lie, and the chain of steps as data: index, sources, randomness, steps, pipeline. No torch."""
