"""Measurements as values: what a run cost, and what was learned about each sample."""
