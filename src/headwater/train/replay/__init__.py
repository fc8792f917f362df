"""Journals of training runs, and what they are for: the weights after a change of the data."""
