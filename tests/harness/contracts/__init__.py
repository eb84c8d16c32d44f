"""Suites of what Millpond's own parts promise, each run over every form that a part has."""
