"""Versions: repositories of objects on branches, with staging, commits, merges and the compaction of staging.

    graph/      commits, tags, names, expressions, history: knows nothing of objects
    objects/    entries: their columns, their staged form, their bytes
    staging/    branches: tokens, layers, reads, writes, turns, compaction
    repositories.py repository.py branch.py reference.py     the front door

The layers of a branch, newest first; the first that holds a path counts:

    staging token ─ sealed tokens and segments ─ compacted index, else the index of the head commit

Invariants and rows are drawn in `docs/format/versions.md`.
"""
