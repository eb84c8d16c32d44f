"""The keyspaces of runs: every row that a partition's store has in a space, drawn in `docs/format/workflows.md`."""

from __future__ import annotations

from millpond.kernel.keyspace import REGISTRY, Scope

__all__ = ("DELETION", "GROUP", "INITIALIZED", "TAG")

# A clone copies maps; the runs of a folder stay with the folder.
_FOLDER = Scope.FOLDER

GROUP = REGISTRY.register(
    "workflows", "group", ("tenant", "root run", "children", "kind", "…"), _FOLDER, "01, then a message",
    "everything of a run: the run, its nodes, tasks, variables, events; kind 0 lists the tags of each",
)  # fmt: skip
TAG = REGISTRY.register(
    "workflows", "tag", ("tenant", "kind", "…", "ms", "root run", "children", "…"), _FOLDER, "nothing",
    "an object by some of its attributes and its time",
)  # fmt: skip
DELETION = REGISTRY.register(
    "workflows", "deletion", ("tenant", "root run", "children"), _FOLDER, "nothing",
    "a run that is being deleted in slices, and is not gone yet",
)  # fmt: skip
INITIALIZED = REGISTRY.register(
    "workflows", "initialized", (), _FOLDER, "JSON",
    "the initialization log: when the store was made, when it was upgraded, and if its legacy rows are all moved",
)  # fmt: skip
