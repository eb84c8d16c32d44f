"""The keyspaces of events: every row that streams have in a pond's space, drawn in `docs/format/events.md`."""

from millpond.kernel.keyspace import REGISTRY, Scope

__all__ = (
    "BATCH",
    "CLIENT",
    "CLIENT_DAY",
    "CLOCK",
    "COLLECTING",
    "DUE",
    "HEAD",
    "JOB",
    "JOB_URI",
    "NOTE",
    "LOCATION",
    "QUEUE",
    "SEGMENT",
    "SOURCE",
    "UNNAMED",
)

# A clone copies maps; the streams of a folder stay with the folder.
_FOLDER = Scope.FOLDER

HEAD = REGISTRY.register(
    "events", "head", ("queue", "job set"), _FOLDER, "packed",
    "a stream: its names, last id and day, its open day, and the days for which it is in the registry",
)  # fmt: skip
SEGMENT = REGISTRY.register(
    "events", "segment", ("queue", "job set", "day"), _FOLDER, "JSON",
    "a segment that is open no more: its state and its days, by the last of them",
)  # fmt: skip
BATCH = REGISTRY.register(
    "events", "batch", ("queue", "job set", "last id"), _FOLDER, "batch", "consecutive events, compressed or not"
)  # fmt: skip
SOURCE = REGISTRY.register(
    "events", "source", ("queue", "job set", "source"), _FOLDER, "20 bytes",
    "the position in a source up to which its events are stored, and the day on which the last came, or their own",
)  # fmt: skip
DUE = REGISTRY.register(
    "events", "due", ("work", "day", "queue", "job set"), _FOLDER, "nothing",
    "the registry: the oldest day of a stream that is to be compressed or to expire, or its last one",
)  # fmt: skip
CLOCK = REGISTRY.register(
    "events", "clock", (), _FOLDER, "JSON",
    "the time of day as maintenance saw it last, and since when it is doubted: a clock that jumped drops nothing",
)  # fmt: skip
NOTE = REGISTRY.register(
    "events", "note", ("kind", "name"), _FOLDER, "JSON",
    "ages of a queue or a job set, or a job whose events are being deleted, by the SHA-256 of its names",
)  # fmt: skip
LOCATION = REGISTRY.register(
    "events", "place", (), _FOLDER, "text", "the URL of the Redis with the streams, without its password"
)  # fmt: skip
QUEUE = REGISTRY.register(
    "events", "queue", ("queue",), _FOLDER, "JSON", "a queue that jobs may be submitted to: its name and definition"
)  # fmt: skip
CLIENT = REGISTRY.register(
    "events", "client", ("queue", "client id"), _FOLDER, "JSON",
    "a job that was submitted with an id of the client: submitted again, it is the same job",
)  # fmt: skip
CLIENT_DAY = REGISTRY.register(
    "events", "client_day", ("day", "queue", "client id"), _FOLDER, "nothing", "the day on which a client's id came"
)  # fmt: skip
JOB = REGISTRY.register(
    "events", "job", ("job id",), _FOLDER, "JSON",
    "a job that was submitted: its stream, the last id there before its first event, the day, and its external URI",
)  # fmt: skip
JOB_URI = REGISTRY.register(
    "events", "job_uri", ("queue", "job set", "SHA-256 of the URI", "job id"), _FOLDER, "nothing",
    "the external URI of a job",
)  # fmt: skip
COLLECTING = REGISTRY.register(
    "events", "collecting", (), _FOLDER, "JSON", "the lease of whoever removes objects with events from a bucket"
)  # fmt: skip
UNNAMED = REGISTRY.register(
    "events", "unnamed", (), _FOLDER, "JSON",
    "objects with events that no row names, and when that was first seen: after a grace time they are removed",
)  # fmt: skip
