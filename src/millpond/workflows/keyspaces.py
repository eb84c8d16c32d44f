"""The keyspaces of workflows: every row that they have in a space, drawn in `docs/format/workflows.md`.

A pond registers them when it opens, also where the client's messages are not installed.
"""

from millpond.kernel.keyspace import REGISTRY, Scope

__all__ = (
    "COMMANDS", "DEFINITION", "DELETION", "FAILED", "GROUP", "INITIALIZED", "OUTBOX", "OUTPUT", "OWNER", "CURSOR",
    "QUEUED", "RECEIVED", "SENDING", "STORY", "TAG", "TIMER", "TIMER_TIME",
)  # fmt: skip

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
COMMANDS = REGISTRY.register(
    "workflows", "commands", ("position",), _FOLDER, "chain, time, then tenant, id and request",
    "the command log: what was applied, in its order; its head holds the position",
)  # fmt: skip
FAILED = REGISTRY.register(
    "workflows", "failed", ("position", "number"), _FOLDER, "JSON",
    "a command that failed for a mistake of the program, or that another one caused: its id, and the reason",
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
    "workflows", "timer time", ("tenant", "run", "…"), _FOLDER, "8 bytes of milliseconds, twice",
    "the instant of a timer, by its name, and the one at which it was set",
)  # fmt: skip
CURSOR = REGISTRY.register(
    "workflows", "place", (), _FOLDER, "position, then milliseconds, twice",
    "in the store of a partition: the last entry applied of its log, the time of the last command, and the latest",
)  # fmt: skip
OUTBOX = REGISTRY.register(
    "workflows", "outbox", ("position", "number"), _FOLDER, "partition, then an entry",
    "what commands of this partition caused on others, until it is in their logs",
)  # fmt: skip
SENDING = REGISTRY.register(
    "workflows", "sending", ("partition",), _FOLDER, "a number", "how many entries were put out for a partition"
)  # fmt: skip
RECEIVED = REGISTRY.register(
    "workflows", "received", ("partition",), _FOLDER, "a number", "how many entries of a partition were applied"
)  # fmt: skip
OUTPUT = REGISTRY.register(
    "workflows", "output", ("position", "number"), _FOLDER, "tenant, topic, key, then a record",
    "a record that is yet to be written to a topic of output of its tenant",
)  # fmt: skip
STORY = REGISTRY.register(
    "workflows", "story", ("position", "number"), _FOLDER, "JSON: tenant, milliseconds, events",
    "what a command tells of its run, until it is in the stream of events of that run",
)  # fmt: skip
OWNER = REGISTRY.register(
    "workflows", "owner", (), _FOLDER, "JSON: a lease",
    "of a pond in a bucket: the process that does the work of its workflows, by its address",
)  # fmt: skip
