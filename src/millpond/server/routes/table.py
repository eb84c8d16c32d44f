"""The needs of a route, and of a method of gRPC: the right on what, the largest body, the class of work.

    @router.post("/scan", RouteNeeds("read", On.MAP, Work.LARGE, JSON_BYTES_MAX), summary=…)
    "Watch": Row(pb.WatchRequest, _watch, RouteNeeds("read", On.STREAM, Work.WATCH, LASTING_BYTES_MAX))

Invariants:
* `access.py` decides a request by the needs of its route, before any of its body is read;
* the map is known before the body wherever that is possible. Where only the body names the maps, the right on any map
  at all is checked first, and the endpoint checks each map when it has read the body (`On.BODY_MAPS`, `On.OWN_PART`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = (
    "CREDENTIALS_BYTES_MAX", "DIGEST_BYTES", "EVENTS_BYTES", "EVERYBODY", "FILE_BYTES", "JSON_BYTES_MAX",
    "LOOKUP_BYTES_MAX", "MONITOR", "OPERATOR", "ORDER_BYTES_MAX", "SCAN_BYTES", "WHOLE_LOAD_BYTES_MAX", "WORKS", "On",
    "RouteNeeds", "Work", "order", "read", "write",
)  # fmt: skip

JSON_BYTES_MAX = 16 << 20
"""A load of a hundred thousand parts fits into it, and a condition with a long list."""
LOOKUP_BYTES_MAX = 256 << 20
"""The largest lookup: some millions of keys."""
SCAN_BYTES = 24 << 20
"""The memory of a scan: the rows of a batch, twice, and those that wait to be sent."""
FILE_BYTES = 2 << 20
"""The memory of a file that is sent: a piece that is read, and one that is sent."""
DIGEST_BYTES = 16 << 20
"""The memory of a digest, or of the manifest of a new snapshot."""
EVENTS_BYTES = 64 << 10
"""The memory of a reader of events that waits; a page is larger, but few readers have one at a time."""
ORDER_BYTES_MAX = 1 << 20
"""An order to the node (a map's settings, an act of maintenance, a repair), or the key of one value."""
CREDENTIALS_BYTES_MAX = 8 << 10
"""The name of a token and the token, in a form."""
WORKS = "millpond.work"
"""The key of a scope whose request is counted as work: what to call when the request has ended."""
WHOLE_LOAD_BYTES_MAX = 4 << 20
"""The largest load that comes with its parts in one request, which is held in memory."""


class On(StrEnum):
    """The object of a right."""

    NOTHING = "nothing"
    """Everybody may."""
    POND = "*"
    """The right on all maps."""
    MAP = "the map"
    """The map that the path names."""
    HEADER_MAP = "the map in `Upload-Map`"
    QUERY_MAP = "the map in `map`, else any map"
    """The map that the query names. Without one, as `ANY_MAP`."""
    QUERY_MAP_OR_POND = "the map in `map`, else `admin` on *"
    """The map that the query names. Without one, `admin` on everything."""
    ANY_MAP = "any map"
    """The right on one map at least. The answer has only what the caller may read."""
    BODY_MAPS = "the maps in the body"
    """The right on each map that the body names; on one map at least, before the body is read."""
    JOB_SET = "the job set"
    """The stream that the path names."""
    REPOSITORY = "the repository"
    """The repository that the path names: to read it, a right on any of its branches; else on all of them."""
    BRANCH = "the branch"
    """The branch that the path names."""
    BODY_BRANCH = "the branch in the body"
    """The right on the branch that the body names; on one of the repository's at least, before the body is read."""
    STREAM = "the stream"
    """The stream that `queue` and `job_set` of the query name, or the message."""
    ANY_STREAM = "any stream"
    """The right on one stream at least. The answer has only what the caller may read."""
    SHOWN_STREAMS = "the streams shown"
    """The answer has only what the caller may read."""
    QUEUE = "the queue"
    """To see it, the right on any of its streams; else on all of them, whatever their names."""
    ANY_REPOSITORY = "any repository"
    """The right on one repository at least. The answer has only what the caller may read."""
    BODY_REPOSITORY = "the repository in the body"
    """The right on the repository that the body names; on one at least, before the body is read."""
    TENANT = "the tenant"
    """The tenant of workflows that `tenant` of the query names, or the metadata; without one, `default`."""
    EVERY_TENANT = "every tenant"
    """The right on all tenants."""
    ANY_TENANT = "any tenant"
    """The right on one tenant at least. The answer has only what the caller may read."""
    TOKEN = "any token"
    """No right, but a token."""
    OWN_PART = "the part's map"
    """The right on the map of the part that the path names; on one map at least, before the part is looked for."""


class Work(StrEnum):
    """A class of work: requests of one class compete for the same means, and so do calls over gRPC."""

    SMALL = "small question"
    """Milliseconds, and little memory."""
    LARGE = "large question"
    """As long as the data is large: scans, lookups of many keys, snapshots, files."""
    UPLOAD = "upload"
    """Parts, and the loads that enter them."""
    ADMINISTRATION = "administration"
    """Maintenance, replication, health and changes of maps: a node that is busy needs them more than ever."""
    CALL = "calls"
    """A message, and one that answers it."""
    POLL = "workers"
    """A stream of messages, each answered by one."""
    WATCH = "watchers"
    """One message, and many that answer it. Its handler counts those that there are."""


@dataclass(frozen=True, slots=True)
class RouteNeeds:
    """The needs of a route or a method, which its handler is declared with."""

    right: str | None
    """`read`, `write` or `admin`; None: none is needed."""
    on: On
    work: Work
    body_bytes_max: int | None = 0
    """The largest body; 0: it takes none; None: it goes to the disk as it comes, up to the largest part."""
    hint: str = "send less at once"
    """The way out for a body that is too large."""
    memory_bytes: int = 0
    """The memory that the route takes, whatever its body. It is waited for, before the body is read."""
    confined: bool = False
    """True when a process of its own takes that memory (`confined.py`): it is waited for among such processes."""
    when_ready: bool = False
    """The route answers from the rows of maps: 503 while the node is not ready."""
    audited: bool = False
    """True when the request changes something: it is a line of the audit log."""
    at_readers: bool = False
    """True when a reading process answers it from the files of maps; all else it hands on (`readers.py`)."""


EVERYBODY = RouteNeeds(None, On.NOTHING, Work.ADMINISTRATION)
MONITOR = RouteNeeds("read", On.POND, Work.ADMINISTRATION)
OPERATOR = RouteNeeds("admin", On.POND, Work.ADMINISTRATION)


def read(on: On, body_bytes_max: int = 0, *, memory_bytes: int = 0, **more: Any) -> RouteNeeds:
    """The needs of a question: a large one, if it takes memory."""
    work = Work.LARGE if memory_bytes else Work.SMALL
    return RouteNeeds("read", on, work, body_bytes_max, memory_bytes=memory_bytes, **more)


def write(on: On, body_bytes_max: int | None = 0, **more: Any) -> RouteNeeds:
    """The needs of an upload."""
    return RouteNeeds("write", on, Work.UPLOAD, body_bytes_max, **more)


def order(on: On = On.POND, body_bytes_max: int = ORDER_BYTES_MAX, *, audited: bool = True) -> RouteNeeds:
    """The needs of an order to the node."""
    return RouteNeeds("admin", on, Work.ADMINISTRATION, body_bytes_max, audited=audited)
