"""Which samples an epoch visits, and how much each counts: pure numpy, no clock, no files, no torch.

A selector is a file; `selecting` has them all by name, and the one way from a selector to a `Selection`.
Objectives and the ways to maximise them are families of their own.
"""
