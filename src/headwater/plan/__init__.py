"""Decisions on how to run: frozen values, made of numbers alone."""
