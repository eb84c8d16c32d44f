"""Spaces and tables in LMDB: environments, bulk reads and writes of its pages."""
