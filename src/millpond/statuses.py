"""The kinds of errors that are told apart from their class: their statuses, and words that some callers know.

    Conflict(…, kind="map_changed")   409, ABORTED: those of the class
    Conflict(…, kind="not_primary")   421, FAILED_PRECONDITION: those of the kind

Classes have their statuses in `errors.py`, beside their exit code. Statuses of gRPC are names: no module here needs it.
"""

from __future__ import annotations

from typing import NamedTuple

from millpond import errors
from millpond.errors import AlreadyExists, Conflict, Denied, Internal, Invalid, MillpondError, NotFound, Unavailable

__all__ = ("KINDS", "KindRow", "class_of_grpc", "grpc_status", "http_status", "is_refusal", "lakefs_status", "row_of")


class KindRow(NamedTuple):
    """A kind of error; what is None is as the class has it."""

    error: type[MillpondError]
    """Its class."""
    http: int | None = None
    grpc: str | None = None
    lakefs: int | None = None
    """The status over HTTP for clients of lakeFS, where that is another one."""
    retry_seconds: int | None = None
    """The pause of clients that call again by themselves, over HTTP."""
    passes: bool = False
    """A limit that is over in a moment: clients of gRPC call again by themselves."""
    refused: bool = False
    """Counted as refused, as is every kind with a pause, and every request without the right."""
    words: str | None = None
    """The message that clients of lakeFS may depend on; `{name}` stands for a value of the error, here and below."""
    hint: str | None = None
    """The way out as the command line says it, in other words altogether."""


def _busy(seconds: int) -> KindRow:
    return KindRow(Unavailable, retry_seconds=seconds)


def _full(*, passes: bool = False, refused: bool = False, http: int | None = None) -> KindRow:
    return KindRow(Unavailable, http, "RESOURCE_EXHAUSTED", passes=passes, refused=refused)


_TOO_LARGE = KindRow(Invalid, 413)
_UNKNOWN = KindRow(Denied, 401, "UNAUTHENTICATED", words="error authenticating request")
KINDS = {
    "body_too_large": _TOO_LARGE, "lookup_too_large": _TOO_LARGE, "part_too_large": _TOO_LARGE,
    "upload_too_large": _TOO_LARGE, "method_not_allowed": KindRow(Invalid, 405),
    "token_missing": _UNKNOWN, "token_unknown": _UNKNOWN, "token_expired": _UNKNOWN,
    "right_missing": KindRow(Denied, lakefs=401, words="insufficient permissions"),
    "not_primary": KindRow(Conflict, 421, "FAILED_PRECONDITION"),
    "failed_precondition": KindRow(Conflict, grpc="FAILED_PRECONDITION"),
    "setting_changed": KindRow(Conflict, lakefs=412, words="precondition failed"),
    "precondition_failed": KindRow(Conflict, lakefs=412), "data_missing": KindRow(NotFound, lakefs=410),
    "wait_over": KindRow(Unavailable, grpc="DEADLINE_EXCEEDED"),
    "branch_moved": KindRow(Conflict, lakefs=429), "branch_busy": KindRow(Unavailable, lakefs=429),
    "namespace_used": KindRow(
        Invalid, lakefs=400, words="failed to create repository: storage namespace already in use"),
    "repository_used": KindRow(Conflict, lakefs=400, words="can only restore into a bare repository"),
    "rate_limited": _full(passes=True, http=429), "quota_exceeded": _full(passes=True, refused=True),
    "calls_full": _full(passes=True, refused=True), "commands_full": _full(passes=True, refused=True),
    "watcher_stalled": _full(), "queues_full": _full(), "job_set_large": _full(), "disk_full": _full(http=507),
    "request_memory_full": _full(passes=True)._replace(retry_seconds=1),
    "watchers_full": _full(passes=True)._replace(retry_seconds=2),
    "request_queue_full": _busy(2), "request_queue_slow": _busy(2), "long_polls_full": _busy(2),
    "pond_busy": _busy(1), "map_busy": _busy(1), "upload_busy": _busy(1), "node_starting": _busy(1),
    "node_stopping": _busy(1), "node_not_ready": _busy(1), "nodes_changing": _busy(1),
    "question_slow": KindRow(Unavailable, refused=True), "readers_full": KindRow(Unavailable, refused=True),
    "repository_exists": KindRow(
        AlreadyExists, words="error creating repository: not unique",
        hint="there is one already: 'millpond repo show {repository}'"),
    "repository_name": KindRow(Invalid, words="argument repository: invalid value: validation error"),
    "namespace_place": KindRow(
        Invalid, words="failed to create repository: {place} is no place for one: name local://NAME or s3://bucket/prefix"),
    "namespace_denied": KindRow(
        Denied, words="failed to create repository: {place} is not in versions.namespaces of the node"),
    "source_denied": KindRow(Denied, words="{address} is not in versions.sources of the node"),
    "branch_exists": KindRow(AlreadyExists, words="branch already exists: not unique"),
    "branch_name": KindRow(Invalid, words="argument branch: branch id: invalid value: validation error"),
    "branch_dirty": KindRow(Invalid, words="uncommitted changes (dirty branch)"),
    "tag_exists": KindRow(AlreadyExists, words="tag already exists: not unique"),
    "tag_name": KindRow(Invalid, words="argument tag: tag id: invalid value: validation error"),
    "ref_invalid": KindRow(Invalid, words="ref: invalid value: validation error"),
    "ref_staged": KindRow(Invalid, words="reference '{ref}': reference to staging area with $ is not a commit"),
    "merge_conflict": KindRow(Conflict, words="update branch: conflict found"),
    "merge_strategy": KindRow(Invalid, words="argument strategy: invalid value: validation error"),
    "parent_number": KindRow(Invalid, words="given commit does not have the given parent number: parent {parent}"),
    "branch_not_found": KindRow(
        NotFound, hint="'millpond branch list REPO' shows those that there are; maps are in the REPO pond"),
    "branch_protected": KindRow(
        Denied, hint="commit to another branch, then 'millpond merge'; 'millpond repo settings REPO' shows patterns"),
    "cherry_pick_parent": KindRow(Invalid, hint="such as --parent 1"),
    "entry_not_found": KindRow(NotFound, hint="'millpond fs ls' shows what there is"),
    "no_changes": KindRow(Invalid, hint="--allow-empty makes a commit nevertheless"),
    "ref_not_found": KindRow(
        NotFound, hint="'millpond branch list', 'millpond tag list' and 'millpond log' show what there is"),
    "repository_not_found": KindRow(NotFound, hint="'millpond repo list' shows those that there are"),
    "repository_read_only": KindRow(Denied, hint="'millpond repo settings {repository} --writable' lets it be changed"),
    "revert_parent": KindRow(Conflict, hint="such as --parent 1, which keeps what the branch had before the merge"),
    "tag_not_found": KindRow(NotFound, hint="'millpond tag list REPO' shows those that there are"),
    "log_forked": KindRow(
        Conflict, hint="decide which node is right, and make the other a copy of it: millpond repair --from URL"),
    "maintenance_setting": KindRow(
        Invalid, hint="--before TIME; or set it for good: millpond alter {map} --{setting} 30d"),
    "workflow_object": KindRow(
        NotFound, hint="'millpond runs', and 'list' of workflows, principals, quotas, tenants, show what there is"),
    "published_other": KindRow(Conflict, hint="publish to another place with --to, or take this one with --replace"),
}  # fmt: skip
_NONE = KindRow(MillpondError)
_REFUSED = (401, 403, 413, 429, "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED")


def row_of(kind: str) -> KindRow:
    """The row of a kind; of one that has none, an empty one."""
    return KINDS.get(kind, _NONE)


def http_status(error: MillpondError) -> int:
    """The status over HTTP.

    >>> http_status(Conflict("no")), http_status(Conflict("no", kind="not_primary"))
    (409, 421)
    """
    return row_of(error.kind).http or error.http_status


def lakefs_status(error: MillpondError) -> int:
    """The status over HTTP for clients of lakeFS."""
    return row_of(error.kind).lakefs or http_status(error)


def grpc_status(error: MillpondError) -> str:
    """The name of the status of gRPC.

    >>> grpc_status(Conflict("no")), grpc_status(Conflict("no", kind="not_primary"))
    ('ABORTED', 'FAILED_PRECONDITION')
    """
    return row_of(error.kind).grpc or error.grpc_status


def is_refusal(error: MillpondError, status: int | str) -> bool:
    """True for an error that is counted as refused: the right is missing, a limit is met, or the node is busy."""
    row = row_of(error.kind)
    return status in _REFUSED or row.retry_seconds is not None or row.refused


def class_of_grpc(status: str) -> type[MillpondError]:
    """The class that a status of gRPC stands for, the most general one; `Internal` for one that no error has.

    >>> [class_of_grpc(status).__name__ for status in ("ABORTED", "UNAVAILABLE", "UNAUTHENTICATED", "OUT_OF_RANGE")]
    ['Conflict', 'Unavailable', 'Denied', 'Internal']
    """
    return _OF_GRPC.get(status, Internal)


_CLASSES: tuple[type[MillpondError], ...] = tuple(getattr(errors, name) for name in errors.__all__)
_OF_GRPC: dict[str, type[MillpondError]] = {
    **{row.grpc: row.error for row in KINDS.values() if row.grpc is not None},
    # A class that is closed is told from one that is busy by its kind.
    **{cls.grpc_status: cls for cls in _CLASSES if MillpondError in cls.__bases__ and cls is not errors.Closed},
}
