"""The routes of the API of versions: the right that each needs, the largest body it takes, and its class of work.

    ROWS["GET", "/repositories/{repository}"]  ─▶  read, on the repository of the path; no body; a small question

Paths are those below `/api/v1`. Invariants are those of `server/routes/table.py`; `api.py` finds the handlers.
"""

from __future__ import annotations

from millpond.server.routes.table import JSON_BYTES_MAX, ORDER_BYTES_MAX, On, RouteNeeds, Work

__all__ = ("PREFIX", "ROWS")

PREFIX = "/api/v1"
_REPOSITORY = "/repositories/{repository}"
_RUNS = f"{_REPOSITORY}/actions/runs"
_BRANCH = f"{_REPOSITORY}/branches/{{branch}}"
_OBJECTS = f"{_REPOSITORY}/refs/{{ref}}/objects"
_SIGNED = "/signed/{repository}/{name}"
PATHS_BYTES_MAX = 8 << 20
"""A thousand paths, each letter escaped."""


def _anybody(body_bytes_max: int = 0) -> RouteNeeds:
    """A route without a right."""
    return RouteNeeds(None, On.NOTHING, Work.ADMINISTRATION, body_bytes_max)


def _known(on: On = On.ANY_REPOSITORY) -> RouteNeeds:
    """A route for whoever has a pair."""
    return RouteNeeds("read", on, Work.ADMINISTRATION)


def _read(on: On = On.REPOSITORY, *, large: bool = False) -> RouteNeeds:
    """A question."""
    return RouteNeeds("read", on, Work.LARGE if large else Work.SMALL, when_ready=True)


def _administer(*, large: bool = False) -> RouteNeeds:
    """A question that only an administrator may ask."""
    return RouteNeeds("admin", On.REPOSITORY, Work.LARGE if large else Work.SMALL, when_ready=True)


def _change(right: str, on: On, body_bytes_max: int | None = ORDER_BYTES_MAX) -> RouteNeeds:
    """A change; it may wait for its turn."""
    return RouteNeeds(right, on, Work.UPLOAD, body_bytes_max, when_ready=True, audited=True)


def _write(body_bytes_max: int | None = ORDER_BYTES_MAX) -> RouteNeeds:
    """A change of one object, of which there are too many for the audit log; None: the body is streamed."""
    return RouteNeeds("write", On.BRANCH, Work.UPLOAD, body_bytes_max, when_ready=True)


ROWS: dict[tuple[str, str], RouteNeeds] = {
    # -- the installation
    ("GET", "/healthcheck"): _anybody(),
    ("GET", "/config"): _known(),
    ("GET", "/config/version"): _known(),
    ("GET", "/config/storage"): _known(),
    ("GET", "/config/garbage-collection"): _known(),
    ("GET", "/user"): _known(),
    ("POST", "/auth/login"): _anybody(ORDER_BYTES_MAX),
    ("GET", "/setup_lakefs"): _anybody(),
    ("POST", "/setup_lakefs"): _anybody(ORDER_BYTES_MAX),
    ("GET", "/usage-report/summary"): _known(),
    ("POST", "/statistics"): RouteNeeds("read", On.ANY_REPOSITORY, Work.ADMINISTRATION, ORDER_BYTES_MAX),
    # -- repositories
    ("GET", "/repositories"): _read(On.ANY_REPOSITORY),
    ("POST", "/repositories"): _change("admin", On.BODY_REPOSITORY),
    ("GET", _REPOSITORY): _read(),
    ("PATCH", _REPOSITORY): _change("admin", On.REPOSITORY),
    ("DELETE", _REPOSITORY): _change("admin", On.REPOSITORY, 0),
    ("GET", f"{_REPOSITORY}/metadata"): _read(),
    ("POST", f"{_REPOSITORY}/metadata"): _change("admin", On.REPOSITORY),
    ("DELETE", f"{_REPOSITORY}/metadata"): _change("admin", On.REPOSITORY),
    ("GET", f"{_REPOSITORY}/settings/branch_protection"): _read(),
    ("PUT", f"{_REPOSITORY}/settings/branch_protection"): _change("admin", On.REPOSITORY),
    ("DELETE", f"{_REPOSITORY}/settings/branch_protection"): _change("admin", On.REPOSITORY, 0),
    ("GET", f"{_REPOSITORY}/settings/gc_rules"): _read(),
    ("PUT", f"{_REPOSITORY}/settings/gc_rules"): _change("admin", On.REPOSITORY),
    ("DELETE", f"{_REPOSITORY}/settings/gc_rules"): _change("admin", On.REPOSITORY, 0),
    ("GET", f"{_REPOSITORY}/settings/compaction"): _read(),
    ("PUT", f"{_REPOSITORY}/settings/compaction"): _change("admin", On.REPOSITORY),
    ("DELETE", f"{_REPOSITORY}/settings/compaction"): _change("admin", On.REPOSITORY, 0),
    ("GET", f"{_REPOSITORY}/gc/rules"): _read(),
    ("POST", f"{_REPOSITORY}/gc/rules"): _change("admin", On.REPOSITORY),
    ("DELETE", f"{_REPOSITORY}/gc/rules"): _change("admin", On.REPOSITORY, 0),
    ("GET", f"{_REPOSITORY}/gc/rules/set_allowed"): _administer(),
    ("POST", f"{_REPOSITORY}/gc/prepare_commits"): _change("admin", On.REPOSITORY),
    ("POST", f"{_REPOSITORY}/gc/prepare_commits/async"): _change("admin", On.REPOSITORY),
    ("GET", f"{_REPOSITORY}/gc/prepare_commits/status"): _administer(),
    ("POST", f"{_REPOSITORY}/gc/prepare_uncommited"): _change("admin", On.REPOSITORY),
    ("POST", f"{_REPOSITORY}/gc/collect"): _change("admin", On.REPOSITORY),
    ("GET", f"{_REPOSITORY}/metadata/meta_range/{{meta_range}}"): _read(),
    ("GET", f"{_REPOSITORY}/metadata/range/{{range}}"): _read(),
    ("GET", f"{_REPOSITORY}/metadata/object/{{type}}/{{object_id}}"): _read(large=True),
    ("GET", f"{_REPOSITORY}/refs/dump"): _administer(large=True),
    ("POST", f"{_REPOSITORY}/refs/restore"): _change("admin", On.REPOSITORY, None),
    ("PUT", f"{_REPOSITORY}/refs/dump"): _change("admin", On.REPOSITORY, 0),
    ("PUT", f"{_REPOSITORY}/refs/restore"): _change("admin", On.REPOSITORY),
    ("POST", f"{_REPOSITORY}/dump"): _change("admin", On.REPOSITORY, 0),
    ("GET", f"{_REPOSITORY}/dump"): _administer(),
    ("POST", f"{_REPOSITORY}/restore"): _change("admin", On.REPOSITORY),
    ("GET", f"{_REPOSITORY}/restore"): _administer(),
    ("GET", _RUNS): _read(),
    ("GET", f"{_RUNS}/{{run_id}}"): _read(),
    ("GET", f"{_RUNS}/{{run_id}}/hooks"): _read(),
    ("GET", f"{_RUNS}/{{run_id}}/hooks/{{hook_run_id}}/output"): _read(),
    # -- branches and tags
    ("GET", f"{_REPOSITORY}/branches"): _read(),
    ("POST", f"{_REPOSITORY}/branches"): _change("write", On.BODY_BRANCH),
    ("GET", _BRANCH): _read(),
    ("DELETE", _BRANCH): _change("write", On.BRANCH, 0),
    ("GET", f"{_REPOSITORY}/tags"): _read(),
    ("POST", f"{_REPOSITORY}/tags"): _change("write", On.REPOSITORY),
    ("GET", f"{_REPOSITORY}/tags/{{tag}}"): _read(),
    ("DELETE", f"{_REPOSITORY}/tags/{{tag}}"): _change("write", On.REPOSITORY, 0),
    ("PUT", _BRANCH): _change("write", On.BRANCH),
    ("PUT", f"{_BRANCH}/hard_reset"): _change("write", On.BRANCH, 0),
    ("POST", f"{_BRANCH}/restore"): _change("write", On.BRANCH),
    ("GET", f"{_BRANCH}/staging"): _read(),
    ("POST", f"{_BRANCH}/compact"): _change("write", On.BRANCH),
    # -- commits, differences, merges
    ("POST", f"{_BRANCH}/commits"): _change("write", On.BRANCH),
    ("POST", f"{_BRANCH}/revert"): _change("write", On.BRANCH),
    ("POST", f"{_BRANCH}/cherry-pick"): _change("write", On.BRANCH),
    ("GET", f"{_REPOSITORY}/commits/{{commitId}}"): _read(),
    ("GET", f"{_REPOSITORY}/refs/{{ref}}/commits"): _read(),
    ("GET", f"{_BRANCH}/diff"): _read(large=True),
    ("GET", f"{_REPOSITORY}/refs/{{leftRef}}/diff/{{rightRef}}"): _read(large=True),
    ("GET", f"{_REPOSITORY}/refs/{{sourceRef}}/merge/{{destinationBranch}}"): _read(),
    ("POST", f"{_REPOSITORY}/refs/{{sourceRef}}/merge/{{destinationBranch}}"): _change("write", On.BRANCH),
    # -- objects, read
    ("GET", _OBJECTS): _read(),
    ("HEAD", _OBJECTS): _read(),
    ("GET", f"{_OBJECTS}/stat"): _read(),
    ("GET", f"{_OBJECTS}/ls"): _read(),
    ("GET", f"{_OBJECTS}/underlyingProperties"): _read(),
    # -- objects, written
    ("POST", f"{_BRANCH}/objects"): _write(None),
    ("PUT", f"{_BRANCH}/objects"): _write(),
    ("DELETE", f"{_BRANCH}/objects"): _write(0),
    ("POST", f"{_BRANCH}/objects/delete"): _change("write", On.BRANCH, PATHS_BYTES_MAX),
    ("POST", f"{_BRANCH}/objects/copy"): _write(),
    ("POST", f"{_BRANCH}/objects/copy_prefix"): _change("write", On.BRANCH),
    ("PUT", f"{_BRANCH}/objects/stat/user_metadata"): _write(),
    ("GET", f"{_BRANCH}/objects/stage_allowed"): _write(0),
    ("POST", f"{_BRANCH}/stage"): _change("write", On.BRANCH, None),
    # -- bytes that clients store themselves
    ("GET", f"{_BRANCH}/staging/backing"): _write(0),
    ("PUT", f"{_BRANCH}/staging/backing"): _write(),
    ("POST", f"{_BRANCH}/staging/pmpu"): _write(0),
    ("PUT", f"{_BRANCH}/staging/pmpu/{{uploadId}}"): _write(),
    ("DELETE", f"{_BRANCH}/staging/pmpu/{{uploadId}}"): _write(),
    ("PUT", f"{_BRANCH}/staging/pmpu/{{uploadId}}/parts/{{partNumber}}"): _write(),
    ("PUT", f"{_BRANCH}/staging/pmpu/{{uploadId}}/parts/{{partNumber}}/copy"): _write(),
    ("GET", _SIGNED): RouteNeeds(None, On.NOTHING, Work.LARGE),
    ("HEAD", _SIGNED): RouteNeeds(None, On.NOTHING, Work.SMALL),
    ("PUT", _SIGNED): RouteNeeds(None, On.NOTHING, Work.UPLOAD, None),
    # -- imports
    ("POST", f"{_BRANCH}/import"): _change("write", On.BRANCH, JSON_BYTES_MAX),
    ("GET", f"{_BRANCH}/import"): _read(),
    ("DELETE", f"{_BRANCH}/import"): _change("write", On.BRANCH, 0),
}
