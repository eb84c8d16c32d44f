"""Layered maps: the snapshot form as the store of record. `head.py` says what counts, and how it changes."""
