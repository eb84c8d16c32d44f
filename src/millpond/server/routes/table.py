"""The routes of a node: the right that each needs, the largest body it takes, and its class of work.

    ROUTES["POST", "/v1/maps/{name}/scan"]  ─▶  read, on the map of the path; 16 MiB; a large question

Invariants:
* every route of the application stands here, and nothing else: a node with a route that is missing does not start;
* `access.py` decides a request by its row, before any of its body is read;
* the map is known before the body wherever that is possible. Where only the body names the maps, the right on any map
  at all is checked first, and the endpoint checks each map when it has read the body (`On.BODY_MAPS`, `On.OWN_PART`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from millpond.events.operations import EventsOperations
from millpond.kernel.operations import Operation, operations_of
from millpond.maps.parts.stream import HEAD_BYTES_MAX
from millpond.maps.protocols import MapOperations

__all__ = (
    "CREDENTIALS_BYTES_MAX",
    "JSON_BYTES_MAX",
    "LOOKUP_BYTES_MAX",
    "ORDER_BYTES_MAX",
    "WHOLE_LOAD_BYTES_MAX",
    "ROUTES",
    "On",
    "RouteNeeds",
    "WORKS",
    "Work",
    "needs_of",
)

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
_LESS = "send less at once"
_UPLOAD = "upload the parts one by one, then enter them"


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
    """The stream that `queue` and `job_set` of the query name."""
    ANY_STREAM = "any stream"
    """The right on one stream at least. The answer has only what the caller may read."""
    ANY_REPOSITORY = "any repository"
    """The right on one repository at least. The answer has only what the caller may read."""
    BODY_REPOSITORY = "the repository in the body"
    """The right on the repository that the body names; on one at least, before the body is read."""
    OWN_PART = "the part's map"
    """The right on the map of the part that the path names; on one map at least, before the part is looked for."""


class Work(StrEnum):
    """A class of work: requests of one class compete for the same means."""

    SMALL = "small question"
    """Milliseconds, and little memory."""
    LARGE = "large question"
    """As long as the data is large: scans, lookups of many keys, snapshots, files."""
    UPLOAD = "upload"
    """Parts, and the loads that enter them."""
    ADMINISTRATION = "administration"
    """Maintenance, replication, health and changes of maps: a node that is busy needs them more than ever."""


@dataclass(frozen=True, slots=True)
class RouteNeeds:
    """A row of the table."""

    right: str | None
    """`read`, `write` or `admin`; None: none is needed."""
    on: On
    work: Work
    body_bytes_max: int | None = 0
    """The largest body; 0: it takes none; None: it goes to the disk as it comes, up to the largest part."""
    hint: str = _LESS
    """The way out for a body that is too large."""
    memory_bytes: int = 0
    """The memory that the route takes, whatever its body. It is waited for, before the body is read."""
    when_ready: bool = False
    """The route answers from the rows of maps: 503 while the node is not ready."""
    audited: bool = False
    """True when the request changes something: it is a line of the audit log."""
    at_readers: bool = False
    """True when a reading process answers it from the files of maps; all else it hands on (`readers.py`)."""


def _everybody() -> RouteNeeds:
    return RouteNeeds(None, On.NOTHING, Work.ADMINISTRATION)


def _order(on: On) -> RouteNeeds:
    return RouteNeeds("admin", on, Work.ADMINISTRATION, ORDER_BYTES_MAX, audited=True)


ROUTES: dict[tuple[str, str], RouteNeeds] = {
    # -- health and pages
    ("GET", "/healthz"): _everybody(),
    ("HEAD", "/healthz"): _everybody(),
    ("GET", "/readyz"): _everybody(),
    ("HEAD", "/readyz"): _everybody(),
    ("GET", "/v1/node"): _everybody(),
    ("GET", "/metrics"): RouteNeeds("read", On.POND, Work.ADMINISTRATION),
    ("GET", "/"): _everybody(),
    ("GET", "/docs"): _everybody(),
    ("GET", "/docs/versions"): _everybody(),
    ("GET", "/openapi.json"): _everybody(),
    ("GET", "/openapi-versions.json"): _everybody(),
    ("POST", "/v1/oauth/token"): RouteNeeds(None, On.NOTHING, Work.SMALL, CREDENTIALS_BYTES_MAX),
    # -- maps
    ("GET", "/v1/maps"): RouteNeeds("read", On.ANY_MAP, Work.SMALL, at_readers=True),
    ("POST", "/v1/maps"): RouteNeeds("admin", On.BODY_MAPS, Work.ADMINISTRATION, ORDER_BYTES_MAX, audited=True),
    ("GET", "/v1/maps/{name}"): RouteNeeds("read", On.MAP, Work.SMALL, when_ready=True, at_readers=True),
    ("PATCH", "/v1/maps/{name}"): _order(On.MAP),
    ("DELETE", "/v1/maps/{name}"): RouteNeeds("admin", On.MAP, Work.ADMINISTRATION, audited=True),
    ("POST", "/v1/maps/{name}/maintenance"): _order(On.MAP),
    # -- questions
    ("GET", "/v1/maps/{name}/get"): RouteNeeds("read", On.MAP, Work.SMALL, when_ready=True, at_readers=True),
    ("POST", "/v1/maps/{name}/get"): RouteNeeds(
        "read", On.MAP, Work.SMALL, ORDER_BYTES_MAX, when_ready=True, at_readers=True
    ),
    ("POST", "/v1/maps/{name}/lookup"): RouteNeeds(
        "read",
        On.MAP,
        Work.LARGE,
        LOOKUP_BYTES_MAX,
        "ask in several requests, or read a snapshot",
        when_ready=True,
        at_readers=True,
    ),
    ("POST", "/v1/maps/{name}/scan"): RouteNeeds(
        "read", On.MAP, Work.LARGE, JSON_BYTES_MAX, memory_bytes=SCAN_BYTES, when_ready=True, at_readers=True
    ),
    ("GET", "/v1/maps/{name}/snapshot"): RouteNeeds(
        "read", On.MAP, Work.LARGE, memory_bytes=DIGEST_BYTES, when_ready=True
    ),
    ("GET", "/v1/maps/{name}/objects/{file:path}"): RouteNeeds(
        "read", On.MAP, Work.LARGE, memory_bytes=FILE_BYTES, when_ready=True
    ),
    ("HEAD", "/v1/maps/{name}/objects/{file:path}"): RouteNeeds("read", On.MAP, Work.SMALL, when_ready=True),
    ("GET", "/v1/maps/{name}/digest"): RouteNeeds("read", On.MAP, Work.LARGE, memory_bytes=DIGEST_BYTES),
    ("GET", "/v1/maps/{name}/shard"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION),
    # -- parts and loads
    ("GET", "/v1/parts"): RouteNeeds("read", On.QUERY_MAP, Work.SMALL),
    ("POST", "/v1/parts/retry"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION, JSON_BYTES_MAX, audited=True),
    ("GET", "/v1/parts/{part_id}/stream"): RouteNeeds("read", On.OWN_PART, Work.LARGE, memory_bytes=FILE_BYTES),
    ("GET", "/v1/parts/{part_id}/upload"): RouteNeeds("write", On.OWN_PART, Work.UPLOAD),
    ("POST", "/v1/parts/{part_id}/upload"): RouteNeeds(
        "write", On.HEADER_MAP, Work.UPLOAD, HEAD_BYTES_MAX, "the body is the head of a part's stream"
    ),
    ("PUT", "/v1/parts/{part_id}/upload"): RouteNeeds("write", On.HEADER_MAP, Work.UPLOAD, None),
    ("DELETE", "/v1/parts/{part_id}/upload"): RouteNeeds("write", On.OWN_PART, Work.UPLOAD, audited=True),
    ("PUT", "/v1/loads/{load_id}"): RouteNeeds(
        "write", On.BODY_MAPS, Work.UPLOAD, WHOLE_LOAD_BYTES_MAX, _UPLOAD, audited=True
    ),
    ("POST", "/v1/loads"): RouteNeeds("write", On.BODY_MAPS, Work.UPLOAD, JSON_BYTES_MAX, audited=True),
    # -- the log
    ("GET", "/v1/log"): RouteNeeds("read", On.QUERY_MAP_OR_POND, Work.ADMINISTRATION),
    ("POST", "/v1/log/replication"): RouteNeeds("write", On.BODY_MAPS, Work.ADMINISTRATION, JSON_BYTES_MAX),
    ("POST", "/v1/log/acknowledgement"): RouteNeeds("write", On.ANY_MAP, Work.ADMINISTRATION, ORDER_BYTES_MAX),
    ("GET", "/v1/log/state"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION),
    ("GET", "/v1/log/quarantine"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION),
    ("GET", "/v1/log/own"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION),
    ("GET", "/v1/log/objects"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION),
    ("GET", "/v1/log/objects/{name:path}"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION),
    # -- streams of events
    ("POST", "/v1/events"): RouteNeeds("write", On.STREAM, Work.UPLOAD, JSON_BYTES_MAX, audited=True),
    ("GET", "/v1/events"): RouteNeeds("read", On.STREAM, Work.LARGE, memory_bytes=EVENTS_BYTES),
    ("POST", "/v1/events/watch"): RouteNeeds(
        "read", On.ANY_STREAM, Work.LARGE, JSON_BYTES_MAX, memory_bytes=EVENTS_BYTES
    ),
    ("GET", "/v1/events/index"): RouteNeeds("read", On.STREAM, Work.SMALL),
    ("GET", "/v1/events/streams"): RouteNeeds("read", On.ANY_STREAM, Work.SMALL),
    ("POST", "/v1/events/compress"): _order(On.POND),
    ("POST", "/v1/events/expire"): _order(On.POND),
    ("DELETE", "/v1/events"): RouteNeeds("admin", On.STREAM, Work.ADMINISTRATION, audited=True),
    ("GET", "/v1/events/settings"): RouteNeeds("read", On.ANY_STREAM, Work.SMALL),
    ("PUT", "/v1/events/settings"): _order(On.ANY_STREAM),
    ("DELETE", "/v1/events/settings"): RouteNeeds("admin", On.ANY_STREAM, Work.ADMINISTRATION, audited=True),
    ("POST", "/v1/job-set/{queue}/{id:path}"): RouteNeeds("read", On.JOB_SET, Work.SMALL, ORDER_BYTES_MAX),
    # -- nodes
    ("GET", "/v1/nodes/drain"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION),
    ("POST", "/v1/nodes/drain"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION, ORDER_BYTES_MAX),
    ("POST", "/v1/nodes/promote"): _order(On.POND),
    ("POST", "/v1/nodes/add"): _order(On.POND),
    ("POST", "/v1/nodes/remove"): _order(On.POND),
    ("POST", "/v1/nodes/promise"): _order(On.POND),
    ("POST", "/v1/nodes/confirmation"): RouteNeeds("write", On.ANY_MAP, Work.ADMINISTRATION, ORDER_BYTES_MAX),
    ("POST", "/v1/nodes/status"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION, ORDER_BYTES_MAX),
    # -- jobs, checks, repairs
    ("GET", "/v1/jobs"): RouteNeeds("read", On.POND, Work.ADMINISTRATION),
    ("GET", "/v1/jobs/{name}"): RouteNeeds("read", On.POND, Work.ADMINISTRATION),
    ("POST", "/v1/jobs/{name}/run"): _order(On.POND),
    ("POST", "/v1/jobs/{name}/pause"): _order(On.POND),
    ("POST", "/v1/jobs/{name}/resume"): RouteNeeds(
        "admin", On.POND, Work.ADMINISTRATION, ORDER_BYTES_MAX, audited=True
    ),
    ("POST", "/v1/verify"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION, ORDER_BYTES_MAX),
    ("GET", "/v1/repair"): RouteNeeds("admin", On.POND, Work.ADMINISTRATION),
    ("POST", "/v1/repair"): _order(On.POND),
}


def _declared(operation: Operation, on: On) -> RouteNeeds:
    reads = operation.right == "read"
    return RouteNeeds(
        operation.right, on, Work.ADMINISTRATION if not reads else Work.LARGE if operation.large else Work.SMALL,
        0 if operation.method in ("GET", "DELETE") else ORDER_BYTES_MAX,
        memory_bytes=SCAN_BYTES if operation.large and reads else 0, when_ready=reads, audited=not reads,
    )  # fmt: skip


ROUTES |= {
    (operation.method, operation.path): _declared(operation, on)
    for interface, on in ((MapOperations, On.MAP), (EventsOperations, On.STREAM))
    for operation in operations_of(interface)
    if operation.right
}


def needs_of(method: str, path: str) -> RouteNeeds:
    """The row of a route, by its template.

    >>> needs_of("GET", "/v1/maps/{name}").on
    <On.MAP: 'the map'>
    """
    needs = ROUTES.get((method, path))
    assert needs is not None, f"{method} {path} is not in the table of routes"
    return needs
