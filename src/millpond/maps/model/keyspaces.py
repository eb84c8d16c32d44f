"""The keyspaces of maps: all rows that maps have in a pond's space, and what describes the pond itself.

Every row of maps belongs to one of these; `docs/reference/keyspaces.md` lists them from here.
"""

from millpond.kernel.keyspace import REGISTRY, Scope

__all__ = (
    "ABSORBED", "ALERTED", "ALERTS", "ALERT_MARK", "CATALOGUE", "CLONED", "CONFIRMED", "COPIED", "COPY_BEGUN",
    "HANDED_OVER", "HISTORY", "HISTORY_AGE", "JOB", "LOADS", "LOG", "MAINTENANCE", "NAMED", "NODE_LIST",
    "PART_NUMBER", "PART_RETENTION", "POND_ID", "PROMISE", "PURGED", "QUARANTINE", "QUEUE", "RETAINED",
    "RETAINED_INDEXED", "RETAINED_SINCE", "REWRITING", "SNAPSHOT", "STAND_IN", "STREAMS", "TOKENS", "UNNAMED",
)  # fmt: skip

_SHARED, _LOCAL = Scope.SHARED, Scope.LOCAL

CATALOGUE = REGISTRY.register(
    "maps", "catalogue", ("map",), _SHARED, "JSON", "the definition of a map"
)  # fmt: skip
ALERTS = REGISTRY.register(
    "maps", "alerts", ("map", "rule"), _SHARED, "JSON", "a rule of an alert: its condition, and in how many buckets"
)  # fmt: skip
ALERTED = REGISTRY.register(
    "maps", "alerted", ("position", "number"), _LOCAL, "JSON",
    "alerts that the change at a position of the log made: they are told as events, and the row goes",
)  # fmt: skip
ALERT_MARK = REGISTRY.register(
    "maps", "alert_mark", ("map",), _SHARED, "16 bytes",
    "of nodes that replicate, the position and the number up to which the alerts of a map were told",
)  # fmt: skip
LOG = REGISTRY.register(
    "maps", "log", ('position or "head"',), _SHARED, "log", "the log of all changes of the maps' content",
)  # fmt: skip
LOADS = REGISTRY.register(
    "maps", "load", ("load id",), _SHARED, "JSON",
    "what a load brought, for whoever sends it again; it goes with its entry",
)  # fmt: skip
STREAMS = REGISTRY.register(
    "maps", "stream", ("query",), _SHARED, "JSON",
    "the last epoch of a stream, what it brought, and the `maps` it ever brought rows to; it goes when the last of "
    "them is dropped. A node writes `people,weather 5f1c…`: the maps of the load, then the query",
)  # fmt: skip
ABSORBED = REGISTRY.register(
    "maps", "absorbed", ("map", "part id"), _SHARED, "8 bytes",
    "the number under which this part came, also after it was merged",
)  # fmt: skip
PART_NUMBER = REGISTRY.register(
    "maps", "part_number", (), _SHARED, "8 bytes", "the last number given to a part"
)  # fmt: skip
QUEUE = REGISTRY.register(
    "maps", "queue", ("map", "number"), _LOCAL, "JSON",
    "a part that waits to be merged: its id, its rows (`entries`), and `about` it its load, position, time, source, "
    "and the settings of its map when it came",
)  # fmt: skip
MAINTENANCE = REGISTRY.register(
    "maps", "maintenance", ("map", "position"), _LOCAL, "JSON",
    "a maintenance order that waits: `what`, `before`, its time, and the settings of its map when it came",
)  # fmt: skip
RETAINED = REGISTRY.register(
    "maps", "retained", ("part id",), _LOCAL, "JSON",
    "a part that was merged and whose files stay for a while; `queued_ms` says when it was merged",
)  # fmt: skip
RETAINED_SINCE = REGISTRY.register(
    "maps", "retained_since", ("milliseconds", "position", "part id"), _LOCAL, "empty",
    "retained parts in the order in which they go",
)  # fmt: skip
RETAINED_INDEXED = REGISTRY.register(
    "maps", "retained_indexed", (), _LOCAL, "empty", "every retained part is in that order"
)  # fmt: skip
QUARANTINE = REGISTRY.register(
    "maps", "quarantine", ("map", "number"), _LOCAL, "JSON", "a part that could not be merged, and the reason"
)  # fmt: skip
SNAPSHOT = REGISTRY.register(
    "maps", "snapshot", ("map",), _LOCAL, "head",
    "the manifest that bulk lookups answer from, the incarnation of its map and the version of the shard",
)  # fmt: skip
HISTORY = REGISTRY.register(
    "maps", "history", ("map", "version"), _LOCAL, "JSON",
    "a change of a layered map: its time, the manifest that counted from then on, and the entry of the log",
)  # fmt: skip
NAMED = REGISTRY.register(
    "maps", "named", ("folder", "manifest"), _LOCAL, "text",
    "a manifest that commits or branches name: its files stay; the value is another with each naming",
)  # fmt: skip
STAND_IN = REGISTRY.register(
    "maps", "stand in", ("folder", "manifest"), Scope.FOLDER, "JSON",
    "the manifest without purged rows that counts where commits name this one, and its size",
)  # fmt: skip
COLLECTING = REGISTRY.register(
    "maps", "collecting", ("folder",), Scope.FOLDER, "JSON",
    "the lease of whoever removes files of a map from a bucket: its holder, term and beat",
)  # fmt: skip
UNNAMED = REGISTRY.register(
    "maps", "unnamed", ("folder", "manifest"), Scope.FOLDER, "text",
    "a manifest in a bucket that nothing names: the time of the bucket when that was seen first; naming ends the row",
)  # fmt: skip
REWRITING = REGISTRY.register(
    "maps", "rewriting", ("folder", "writer"), Scope.FOLDER, "JSON",
    "the lease of a process that makes new files of the rows of a map in a bucket: a purge waits for its end",
)  # fmt: skip
PURGED = REGISTRY.register(
    "maps", "purged", ("folder",), Scope.FOLDER, "text",
    "the term of the last purge of a map in a bucket: copies of files that a machine has from before it go",
)  # fmt: skip
CLONED = REGISTRY.register(
    "maps", "cloned", (), _LOCAL, "text", "the id of the clone that this pond became last"
)  # fmt: skip
POND_ID = REGISTRY.register(
    "pond", "id", (), _SHARED, "text", "the id of the pond, 16 hexadecimal digits"
)  # fmt: skip
COPIED = REGISTRY.register(
    "pond", "copied", (), Scope.FOLDER, "text",
    "that the pond is a copy: `begun` while its files come, then a digest of what was entered, to see changes by",
)  # fmt: skip
COPY_BEGUN = b"begun"
TOKENS = REGISTRY.register(
    "pond", "tokens", (), Scope.FOLDER, "JSON",
    "of a pond in a bucket, the tokens that its nodes take: as `tokens.json` of a folder has them",
)  # fmt: skip
JOB = REGISTRY.register(
    "pond", "job", ("job",), Scope.FOLDER, "JSON",
    "of a pond in a bucket, the lease of the node that does a job, `job` or `job/map`: its holder, term and beat",
)  # fmt: skip
PART_RETENTION = REGISTRY.register(
    "pond", "part_retention", (), Scope.FOLDER, "text",
    "how long merged parts stay, in milliseconds; no row or 0: not at all",
)  # fmt: skip
HISTORY_AGE = REGISTRY.register(
    "pond", "history", (), Scope.FOLDER, "text",
    "how long the changes of layered maps stay, in milliseconds; no row: 30 days",
)  # fmt: skip
CONFIRMED = REGISTRY.register(
    "pond", "confirmed", ("url",), Scope.FOLDER, "8 bytes",
    "the position of the log that another node had entered: so it is noticed when that node lost its disk",
)  # fmt: skip
NODE_LIST = REGISTRY.register(
    "pond", "nodes", (), _SHARED, "JSON",
    "the list of nodes of the last entry `nodes` of the log: its `epoch`, the `nodes`, the primary first, those that "
    "are `leaving`, and the `position` of the entry; no row: the setting `nodes.urls` counts",
)  # fmt: skip
PROMISE = REGISTRY.register(
    "pond", "promise", (), Scope.FOLDER, "JSON",
    "the promise to follow a `candidate` for primary from an `epoch` on, and nobody of an earlier one",
)  # fmt: skip
HANDED_OVER = REGISTRY.register(
    "pond", "handed_over", (), Scope.FOLDER, "text",
    "the address of the primary that this node handed over to; while the row is there, nothing is appended to the log",
)  # fmt: skip
