"""Millpond: the state that data pipelines need."""
