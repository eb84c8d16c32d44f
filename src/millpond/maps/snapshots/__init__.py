"""Snapshots: the frozen form of a map, written, opened, looked up and leased."""
