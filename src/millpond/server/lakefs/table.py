"""The routes of the API of versions: what each needs, its query, and its answer.

    ROWS["GET", "/repositories/{repository}/branches"]
      ─▶  read, on the repository of the path; a small question; "prefix after amount show_hidden"; "200 RefList"

Paths are those below `/api/v1`. A query is names: `path!` is needed, `type=two_dot|three_dot` is one of these words. An
answer is its status, and the name of a schema or a media type; that with bytes may be a part of them; where none
succeeds it is empty. Bodies are those that handlers declare with `bodies.takes`. Invariants are those of
`server/routes/table.py`; `api.py` finds the handlers.
"""

from __future__ import annotations

from typing import NamedTuple

from millpond.server.routes.table import JSON_BYTES_MAX, ORDER_BYTES_MAX, On, RouteNeeds, Work

__all__ = ("PREFIX", "ROWS", "Row")

PREFIX = "/api/v1"
_REPOSITORY = "/repositories/{repository}"
_RUNS = f"{_REPOSITORY}/actions/runs"
_BRANCH = f"{_REPOSITORY}/branches/{{branch}}"
_OBJECTS = f"{_REPOSITORY}/refs/{{ref}}/objects"
_SIGNED = "/signed/{repository}/{name}"
_SETTINGS = f"{_REPOSITORY}/settings"
_MERGE = f"{_REPOSITORY}/refs/{{sourceRef}}/merge/{{destinationBranch}}"
_UPLOAD = f"{_BRANCH}/staging/pmpu/{{uploadId}}"
_PAGE = "prefix after amount"
_DIFF = f"{_PAGE} delimiter include_right_stats"
_ACCESS = "method expires type etag address key signature"
_BYTES, _LINES = "application/octet-stream", "application/x-ndjson"
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


class Row(NamedTuple):
    """A route: what it needs, its query and its answer, as words."""

    needs: RouteNeeds
    query: str
    answer: str


ROWS: dict[tuple[str, str], Row] = {
    # -- the installation
    ("GET", "/healthcheck"): Row(_anybody(), "", "204"),
    ("GET", "/config"): Row(_known(), "", "200 Config"),
    ("GET", "/config/version"): Row(_known(), "", "200 Version"),
    ("GET", "/config/storage"): Row(_known(), "", "200 StorageConfig"),
    ("GET", "/config/garbage-collection"): Row(_known(), "", "200 CollectionConfig"),
    ("GET", "/user"): Row(_known(), "", "200 CurrentUser"),
    ("POST", "/auth/login"): Row(_anybody(ORDER_BYTES_MAX), "", "200 AuthenticationToken"),
    ("GET", "/setup_lakefs"): Row(_anybody(), "", "200 SetupState"),
    ("POST", "/setup_lakefs"): Row(_anybody(ORDER_BYTES_MAX), "", "204"),
    ("GET", "/usage-report/summary"): Row(_known(), "", "200 UsageReport"),
    ("POST", "/statistics"): Row(
        RouteNeeds("read", On.ANY_REPOSITORY, Work.ADMINISTRATION, ORDER_BYTES_MAX), "", "204"
    ),
    # -- repositories
    ("GET", "/repositories"): Row(_read(On.ANY_REPOSITORY), f"{_PAGE} search", "200 RepositoryList"),
    ("POST", "/repositories"): Row(_change("admin", On.BODY_REPOSITORY), "", "201 Repository"),
    ("GET", _REPOSITORY): Row(_read(), "", "200 Repository"),
    ("PATCH", _REPOSITORY): Row(_change("admin", On.REPOSITORY), "", "200 Repository"),
    ("DELETE", _REPOSITORY): Row(_change("admin", On.REPOSITORY, 0), "force", "204"),
    ("GET", f"{_REPOSITORY}/metadata"): Row(_read(), "", "200 Metadata"),
    ("POST", f"{_REPOSITORY}/metadata"): Row(_change("admin", On.REPOSITORY), "", "204"),
    ("DELETE", f"{_REPOSITORY}/metadata"): Row(_change("admin", On.REPOSITORY), "", "204"),
    ("GET", f"{_SETTINGS}/branch_protection"): Row(_read(), "", "200 BranchProtectionRules"),
    ("PUT", f"{_SETTINGS}/branch_protection"): Row(_change("admin", On.REPOSITORY), "", "204"),
    ("DELETE", f"{_SETTINGS}/branch_protection"): Row(_change("admin", On.REPOSITORY, 0), "", "204"),
    ("GET", f"{_SETTINGS}/gc_rules"): Row(_read(), "", "200 RetentionRules"),
    ("PUT", f"{_SETTINGS}/gc_rules"): Row(_change("admin", On.REPOSITORY), "", "204"),
    ("DELETE", f"{_SETTINGS}/gc_rules"): Row(_change("admin", On.REPOSITORY, 0), "", "204"),
    ("GET", f"{_SETTINGS}/compaction"): Row(_read(), "", "200 CompactionRules"),
    ("PUT", f"{_SETTINGS}/compaction"): Row(_change("admin", On.REPOSITORY), "", "204"),
    ("DELETE", f"{_SETTINGS}/compaction"): Row(_change("admin", On.REPOSITORY, 0), "", "204"),
    ("GET", f"{_REPOSITORY}/gc/rules"): Row(_read(), "", "200 RetentionRules"),
    ("POST", f"{_REPOSITORY}/gc/rules"): Row(_change("admin", On.REPOSITORY), "", "204"),
    ("DELETE", f"{_REPOSITORY}/gc/rules"): Row(_change("admin", On.REPOSITORY, 0), "", "204"),
    ("GET", f"{_REPOSITORY}/gc/rules/set_allowed"): Row(_administer(), "", "204"),
    ("POST", f"{_REPOSITORY}/gc/prepare_commits"): Row(_change("admin", On.REPOSITORY), "", "201 PreparedCommits"),
    ("POST", f"{_REPOSITORY}/gc/prepare_commits/async"): Row(_change("admin", On.REPOSITORY), "", "202 Started"),
    ("GET", f"{_REPOSITORY}/gc/prepare_commits/status"): Row(_administer(), "id!", "200 PreparedCommitsStatus"),
    ("POST", f"{_REPOSITORY}/gc/prepare_uncommited"): Row(
        _change("admin", On.REPOSITORY), "", "201 PreparedUncommitted"
    ),
    ("POST", f"{_REPOSITORY}/gc/collect"): Row(_change("admin", On.REPOSITORY), "", "200 Collection"),
    ("GET", f"{_REPOSITORY}/metadata/meta_range/{{meta_range}}"): Row(_read(), "", "200 Location"),
    ("GET", f"{_REPOSITORY}/metadata/range/{{range}}"): Row(_read(), "", "200 Location"),
    ("GET", f"{_REPOSITORY}/metadata/object/{{type}}/{{object_id}}"): Row(
        _read(large=True), "presign", f"200 {_BYTES}"
    ),
    ("GET", f"{_REPOSITORY}/refs/dump"): Row(_administer(large=True), "", f"200 {_LINES}"),
    ("POST", f"{_REPOSITORY}/refs/restore"): Row(_change("admin", On.REPOSITORY, None), "force", "201 Restored"),
    ("PUT", f"{_REPOSITORY}/refs/dump"): Row(_change("admin", On.REPOSITORY, 0), "", "201 RefsDump"),
    ("PUT", f"{_REPOSITORY}/refs/restore"): Row(_change("admin", On.REPOSITORY), "", "200"),
    ("POST", f"{_REPOSITORY}/dump"): Row(_change("admin", On.REPOSITORY, 0), "", "202 Started"),
    ("GET", f"{_REPOSITORY}/dump"): Row(_administer(), "task_id!", "200 RefsDumpStatus"),
    ("POST", f"{_REPOSITORY}/restore"): Row(_change("admin", On.REPOSITORY), "", "202 Started"),
    ("GET", f"{_REPOSITORY}/restore"): Row(_administer(), "task_id!", "200 RefsRestoreStatus"),
    ("GET", _RUNS): Row(_read(), "amount", "200 ActionRunList"),
    ("GET", f"{_RUNS}/{{run_id}}"): Row(_read(), "", ""),
    ("GET", f"{_RUNS}/{{run_id}}/hooks"): Row(_read(), "", ""),
    ("GET", f"{_RUNS}/{{run_id}}/hooks/{{hook_run_id}}/output"): Row(_read(), "", ""),
    # -- branches and tags
    ("GET", f"{_REPOSITORY}/branches"): Row(_read(), f"{_PAGE} show_hidden", "200 RefList"),
    ("POST", f"{_REPOSITORY}/branches"): Row(_change("write", On.BODY_BRANCH), "", "201 text/plain"),
    ("GET", _BRANCH): Row(_read(), "", "200 Ref"),
    ("DELETE", _BRANCH): Row(_change("write", On.BRANCH, 0), "force", "204"),
    ("GET", f"{_REPOSITORY}/tags"): Row(_read(), _PAGE, "200 RefList"),
    ("POST", f"{_REPOSITORY}/tags"): Row(_change("write", On.REPOSITORY), "", "201 Ref"),
    ("GET", f"{_REPOSITORY}/tags/{{tag}}"): Row(_read(), "", "200 Ref"),
    ("DELETE", f"{_REPOSITORY}/tags/{{tag}}"): Row(_change("write", On.REPOSITORY, 0), "force", "204"),
    ("PUT", _BRANCH): Row(_change("write", On.BRANCH), "", "204"),
    ("PUT", f"{_BRANCH}/hard_reset"): Row(_change("write", On.BRANCH, 0), "ref! force", "204"),
    ("POST", f"{_BRANCH}/restore"): Row(_change("write", On.BRANCH), "", "200 RestoredPrefix"),
    ("GET", f"{_BRANCH}/staging"): Row(_read(), "", "200 StagedState"),
    ("POST", f"{_BRANCH}/compact"): Row(_change("write", On.BRANCH), "", "200 Compaction"),
    # -- commits, differences, merges
    ("POST", f"{_BRANCH}/commits"): Row(_change("write", On.BRANCH), "source_metarange", "201 Commit"),
    ("POST", f"{_BRANCH}/revert"): Row(_change("write", On.BRANCH), "", "204"),
    ("POST", f"{_BRANCH}/cherry-pick"): Row(_change("write", On.BRANCH), "", "201 Commit"),
    ("GET", f"{_REPOSITORY}/commits/{{commitId}}"): Row(_read(), "", "200 Commit"),
    ("GET", f"{_REPOSITORY}/refs/{{ref}}/commits"): Row(
        _read(), "after amount limit first_parent since stop_at objects prefixes", "200 CommitList"
    ),
    ("GET", f"{_BRANCH}/diff"): Row(_read(large=True), _DIFF, "200 DiffList"),
    ("GET", f"{_REPOSITORY}/refs/{{leftRef}}/diff/{{rightRef}}"): Row(
        _read(large=True), f"{_DIFF} type=two_dot|three_dot", "200 DiffList"
    ),
    ("GET", _MERGE): Row(_read(), "", "200 FindMergeBaseResult"),
    ("POST", _MERGE): Row(_change("write", On.BRANCH), "", "200 MergeResult"),
    # -- objects, read
    ("GET", _OBJECTS): Row(_read(), "path! presign", f"200 {_BYTES}"),
    ("HEAD", _OBJECTS): Row(_read(), "path!", "200"),
    ("GET", f"{_OBJECTS}/stat"): Row(_read(), "path! user_metadata presign", "200 ObjectStats"),
    ("GET", f"{_OBJECTS}/ls"): Row(_read(), f"{_PAGE} delimiter user_metadata presign reverse", "200 ObjectStatsList"),
    ("GET", f"{_OBJECTS}/underlyingProperties"): Row(_read(), "path!", "200 ObjectProperties"),
    # -- objects, written
    ("POST", f"{_BRANCH}/objects"): Row(_write(None), "path! force", "201 ObjectStats"),
    ("PUT", f"{_BRANCH}/objects"): Row(_write(), "path! force", "201 ObjectStats"),
    ("DELETE", f"{_BRANCH}/objects"): Row(_write(0), "path! force", "204"),
    ("POST", f"{_BRANCH}/objects/delete"): Row(
        _change("write", On.BRANCH, PATHS_BYTES_MAX), "force", "200 ObjectErrorList"
    ),
    ("POST", f"{_BRANCH}/objects/copy"): Row(_write(), "dest_path!", "201 ObjectStats"),
    ("POST", f"{_BRANCH}/objects/copy_prefix"): Row(_change("write", On.BRANCH), "", "200 Copied"),
    ("PUT", f"{_BRANCH}/objects/stat/user_metadata"): Row(_write(), "path! force", "204"),
    ("GET", f"{_BRANCH}/objects/stage_allowed"): Row(_write(0), "path! force", "204"),
    ("POST", f"{_BRANCH}/stage"): Row(_change("write", On.BRANCH, None), "force", "200 Staged"),
    # -- bytes that clients store themselves
    ("GET", f"{_BRANCH}/staging/backing"): Row(_write(0), "path! presign", "200 StagingLocation"),
    ("PUT", f"{_BRANCH}/staging/backing"): Row(_write(), "path!", "200 ObjectStats"),
    ("POST", f"{_BRANCH}/staging/pmpu"): Row(_write(0), "path! parts", "201 PresignMultipartUpload"),
    ("PUT", _UPLOAD): Row(_write(), "path!", "200 ObjectStats"),
    ("DELETE", _UPLOAD): Row(_write(), "path!", "204"),
    ("PUT", f"{_UPLOAD}/parts/{{partNumber}}"): Row(_write(), "path!", "200 SignedPart"),
    ("PUT", f"{_UPLOAD}/parts/{{partNumber}}/copy"): Row(_write(), "path!", "204"),
    ("GET", _SIGNED): Row(RouteNeeds(None, On.NOTHING, Work.LARGE), _ACCESS, f"200 {_BYTES}"),
    ("HEAD", _SIGNED): Row(RouteNeeds(None, On.NOTHING, Work.SMALL), _ACCESS, "200"),
    ("PUT", _SIGNED): Row(RouteNeeds(None, On.NOTHING, Work.UPLOAD, None), _ACCESS, "200"),
    # -- imports
    ("POST", f"{_BRANCH}/import"): Row(_change("write", On.BRANCH, JSON_BYTES_MAX), "", "202 Started"),
    ("GET", f"{_BRANCH}/import"): Row(_read(), "id!", "200 ImportStatus"),
    ("DELETE", f"{_BRANCH}/import"): Row(_change("write", On.BRANCH, 0), "id!", "204"),
}
