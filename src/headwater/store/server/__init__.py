"""The daemon beside the data: a local store behind Arrow Flight, within a budget, for those with a token."""
