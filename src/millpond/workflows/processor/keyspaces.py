"""The keyspaces of a partition's processor, beside those of its store (`store/keyspaces.py`)."""

from __future__ import annotations

from millpond.kernel.keyspace import REGISTRY, Scope

__all__ = ("COMMANDS", "DEFINITION", "FAILED", "QUEUED", "TIMER", "TIMER_TIME")

# A clone copies maps; the runs of a folder stay with the folder.
_FOLDER = Scope.FOLDER

COMMANDS = REGISTRY.register(
    "workflows", "commands", ("position",), _FOLDER, "chain, time, then tenant, id and request",
    "the command log: what was applied, in its order; its head holds the position",
)  # fmt: skip
FAILED = REGISTRY.register(
    "workflows", "failed", ("position",), _FOLDER, "JSON",
    "a command that failed for a mistake of the program: its id, and the reason",
)  # fmt: skip
DEFINITION = REGISTRY.register(
    "workflows", "definition", ("tenant", "kind", "…"), _FOLDER, "01, then a message",
    "specifications, definitions of tasks and events, and other metadata of a tenant",
)  # fmt: skip
QUEUED = REGISTRY.register(
    "workflows", "queued", ("tenant", "task definition", "position", "number"), _FOLDER, "run and id of the task run",
    "the queues of tasks that wait for a worker, in the order in which they were scheduled",
)  # fmt: skip
TIMER = REGISTRY.register(
    "workflows", "timer", ("ms", "tenant", "run", "…"), _FOLDER, "a request",
    "requests that become commands at an instant",
)  # fmt: skip
TIMER_TIME = REGISTRY.register(
    "workflows", "timer time", ("tenant", "run", "…"), _FOLDER, "8 bytes of milliseconds",
    "the instant of a timer, by its name",
)  # fmt: skip
