"""Instants, ISO 8601, and the one grammar of durations."""
