"""The operations of the API of versions as the description has them: the query of each, and its answer.

    OPERATIONS["GET", "/repositories/{repository}/branches"]  ─▶  "prefix after amount show_hidden", "200 RefList"

A query is names: `path!` is needed, `type=two_dot|three_dot` is one of these words. An answer is its status, and the
name of a schema or a media type; that with bytes may be a part of them. Bodies are those that
handlers declare with `bodies.takes`.

Invariants: every row of `table.py` has an operation, and every operation a row.
"""

from __future__ import annotations

from typing import Any

__all__ = ("OPERATIONS", "parameters", "split_answer")

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

OPERATIONS: dict[tuple[str, str], tuple[str, str]] = {
    ("GET", "/healthcheck"): ("", "204"),
    ("GET", "/config"): ("", "200 Config"),
    ("GET", "/config/version"): ("", "200 Version"),
    ("GET", "/config/storage"): ("", "200 StorageConfig"),
    ("GET", "/config/garbage-collection"): ("", "200 CollectionConfig"),
    ("GET", "/user"): ("", "200 CurrentUser"),
    ("POST", "/auth/login"): ("", "200 AuthenticationToken"),
    ("GET", "/setup_lakefs"): ("", "200 SetupState"),
    ("POST", "/setup_lakefs"): ("", "204"),
    ("GET", "/usage-report/summary"): ("", "200 UsageReport"),
    ("POST", "/statistics"): ("", "204"),
    ("GET", "/repositories"): (f"{_PAGE} search", "200 RepositoryList"),
    ("POST", "/repositories"): ("", "201 Repository"),
    ("GET", _REPOSITORY): ("", "200 Repository"),
    ("PATCH", _REPOSITORY): ("", "200 Repository"),
    ("DELETE", _REPOSITORY): ("force", "204"),
    ("GET", f"{_REPOSITORY}/metadata"): ("", "200 Metadata"),
    ("POST", f"{_REPOSITORY}/metadata"): ("", "204"),
    ("DELETE", f"{_REPOSITORY}/metadata"): ("", "204"),
    ("GET", f"{_SETTINGS}/branch_protection"): ("", "200 BranchProtectionRules"),
    ("PUT", f"{_SETTINGS}/branch_protection"): ("", "204"),
    ("DELETE", f"{_SETTINGS}/branch_protection"): ("", "204"),
    ("GET", f"{_SETTINGS}/gc_rules"): ("", "200 RetentionRules"),
    ("PUT", f"{_SETTINGS}/gc_rules"): ("", "204"),
    ("DELETE", f"{_SETTINGS}/gc_rules"): ("", "204"),
    ("GET", f"{_SETTINGS}/compaction"): ("", "200 CompactionRules"),
    ("PUT", f"{_SETTINGS}/compaction"): ("", "204"),
    ("DELETE", f"{_SETTINGS}/compaction"): ("", "204"),
    ("GET", f"{_REPOSITORY}/gc/rules"): ("", "200 RetentionRules"),
    ("POST", f"{_REPOSITORY}/gc/rules"): ("", "204"),
    ("DELETE", f"{_REPOSITORY}/gc/rules"): ("", "204"),
    ("GET", f"{_REPOSITORY}/gc/rules/set_allowed"): ("", "204"),
    ("POST", f"{_REPOSITORY}/gc/prepare_commits"): ("", "201 PreparedCommits"),
    ("POST", f"{_REPOSITORY}/gc/prepare_commits/async"): ("", "202 Started"),
    ("GET", f"{_REPOSITORY}/gc/prepare_commits/status"): ("id!", "200 PreparedCommitsStatus"),
    ("POST", f"{_REPOSITORY}/gc/prepare_uncommited"): ("", "201 PreparedUncommitted"),
    ("POST", f"{_REPOSITORY}/gc/collect"): ("", "200 Collection"),
    ("GET", f"{_REPOSITORY}/metadata/meta_range/{{meta_range}}"): ("", "200 Location"),
    ("GET", f"{_REPOSITORY}/metadata/range/{{range}}"): ("", "200 Location"),
    ("GET", f"{_REPOSITORY}/metadata/object/{{type}}/{{object_id}}"): ("presign", f"200 {_BYTES}"),
    ("GET", f"{_REPOSITORY}/refs/dump"): ("", f"200 {_LINES}"),
    ("POST", f"{_REPOSITORY}/refs/restore"): ("force", "201 Restored"),
    ("PUT", f"{_REPOSITORY}/refs/dump"): ("", "201 RefsDump"),
    ("PUT", f"{_REPOSITORY}/refs/restore"): ("", "200"),
    ("POST", f"{_REPOSITORY}/dump"): ("", "202 Started"),
    ("GET", f"{_REPOSITORY}/dump"): ("task_id!", "200 RefsDumpStatus"),
    ("POST", f"{_REPOSITORY}/restore"): ("", "202 Started"),
    ("GET", f"{_REPOSITORY}/restore"): ("task_id!", "200 RefsRestoreStatus"),
    ("GET", _RUNS): ("amount", "200 ActionRunList"),
    ("GET", f"{_RUNS}/{{run_id}}"): ("", ""),
    ("GET", f"{_RUNS}/{{run_id}}/hooks"): ("", ""),
    ("GET", f"{_RUNS}/{{run_id}}/hooks/{{hook_run_id}}/output"): ("", ""),
    ("GET", f"{_REPOSITORY}/branches"): (f"{_PAGE} show_hidden", "200 RefList"),
    ("POST", f"{_REPOSITORY}/branches"): ("", "201 text/plain"),
    ("GET", _BRANCH): ("", "200 Ref"),
    ("DELETE", _BRANCH): ("force", "204"),
    ("GET", f"{_REPOSITORY}/tags"): (_PAGE, "200 RefList"),
    ("POST", f"{_REPOSITORY}/tags"): ("", "201 Ref"),
    ("GET", f"{_REPOSITORY}/tags/{{tag}}"): ("", "200 Ref"),
    ("DELETE", f"{_REPOSITORY}/tags/{{tag}}"): ("force", "204"),
    ("PUT", _BRANCH): ("", "204"),
    ("PUT", f"{_BRANCH}/hard_reset"): ("ref! force", "204"),
    ("POST", f"{_BRANCH}/restore"): ("", "200 RestoredPrefix"),
    ("GET", f"{_BRANCH}/staging"): ("", "200 StagedState"),
    ("POST", f"{_BRANCH}/compact"): ("", "200 Compaction"),
    ("POST", f"{_BRANCH}/commits"): ("source_metarange", "201 Commit"),
    ("POST", f"{_BRANCH}/revert"): ("", "204"),
    ("POST", f"{_BRANCH}/cherry-pick"): ("", "201 Commit"),
    ("GET", f"{_REPOSITORY}/commits/{{commitId}}"): ("", "200 Commit"),
    ("GET", f"{_REPOSITORY}/refs/{{ref}}/commits"): (
        "after amount limit first_parent since stop_at objects prefixes", "200 CommitList",
    ),
    ("GET", f"{_BRANCH}/diff"): (_DIFF, "200 DiffList"),
    ("GET", f"{_REPOSITORY}/refs/{{leftRef}}/diff/{{rightRef}}"): (f"{_DIFF} type=two_dot|three_dot", "200 DiffList"),
    ("GET", _MERGE): ("", "200 FindMergeBaseResult"),
    ("POST", _MERGE): ("", "200 MergeResult"),
    ("GET", _OBJECTS): ("path! presign", f"200 {_BYTES}"),
    ("HEAD", _OBJECTS): ("path!", "200"),
    ("GET", f"{_OBJECTS}/stat"): ("path! user_metadata presign", "200 ObjectStats"),
    ("GET", f"{_OBJECTS}/ls"): (f"{_PAGE} delimiter user_metadata presign reverse", "200 ObjectStatsList"),
    ("GET", f"{_OBJECTS}/underlyingProperties"): ("path!", "200 ObjectProperties"),
    ("POST", f"{_BRANCH}/objects"): ("path! force", "201 ObjectStats"),
    ("PUT", f"{_BRANCH}/objects"): ("path! force", "201 ObjectStats"),
    ("DELETE", f"{_BRANCH}/objects"): ("path! force", "204"),
    ("POST", f"{_BRANCH}/objects/delete"): ("force", "200 ObjectErrorList"),
    ("POST", f"{_BRANCH}/objects/copy"): ("dest_path!", "201 ObjectStats"),
    ("POST", f"{_BRANCH}/objects/copy_prefix"): ("", "200 Copied"),
    ("PUT", f"{_BRANCH}/objects/stat/user_metadata"): ("path! force", "204"),
    ("GET", f"{_BRANCH}/objects/stage_allowed"): ("path! force", "204"),
    ("POST", f"{_BRANCH}/stage"): ("force", "200 Staged"),
    ("GET", f"{_BRANCH}/staging/backing"): ("path! presign", "200 StagingLocation"),
    ("PUT", f"{_BRANCH}/staging/backing"): ("path!", "200 ObjectStats"),
    ("POST", f"{_BRANCH}/staging/pmpu"): ("path! parts", "201 PresignMultipartUpload"),
    ("PUT", _UPLOAD): ("path!", "200 ObjectStats"),
    ("DELETE", _UPLOAD): ("path!", "204"),
    ("PUT", f"{_UPLOAD}/parts/{{partNumber}}"): ("path!", "200 SignedPart"),
    ("PUT", f"{_UPLOAD}/parts/{{partNumber}}/copy"): ("path!", "204"),
    ("GET", _SIGNED): (_ACCESS, f"200 {_BYTES}"),
    ("HEAD", _SIGNED): (_ACCESS, "200"),
    ("PUT", _SIGNED): (_ACCESS, "200"),
    ("POST", f"{_BRANCH}/import"): ("", "202 Started"),
    ("GET", f"{_BRANCH}/import"): ("id!", "200 ImportStatus"),
    ("DELETE", f"{_BRANCH}/import"): ("id!", "204"),
}  # fmt: skip
"""The query and the answer of each operation; where none succeeds the answer is empty."""

_FLAGS = frozenset((
    "force", "presign", "show_hidden", "user_metadata", "first_parent", "limit", "reverse", "include_right_stats",
))  # fmt: skip
_NUMBERS = {"amount": (-1, 1000), "parts": (0, 1000)}
_REPEATED = frozenset(("objects", "prefixes"))


def parameters(query: str) -> list[dict[str, Any]]:
    """The parameters of a query.

    >>> [(found["name"], found["required"]) for found in parameters("path! force")]
    [('path', True), ('force', False)]
    """
    return [_parameter(word) for word in query.split()]


def _parameter(word: str) -> dict[str, Any]:
    name, _, choices = word.partition("=")
    required, name = name.endswith("!"), name.rstrip("!")
    schema: dict[str, Any] = {"type": "string"}
    if choices:
        schema["enum"] = choices.split("|")
    elif name in _FLAGS:
        schema["type"] = "boolean"
    elif name in _NUMBERS:
        least, most = _NUMBERS[name]
        schema = {"type": "integer", "minimum": least, "maximum": most}
    elif name in _REPEATED:
        schema = {"type": "array", "items": schema}
    elif required:
        schema["minLength"] = 1
    return {"name": name, "in": "query", "required": required, "schema": schema}


def split_answer(answer: str) -> tuple[str, str]:
    """The status of an answer, and the name of its schema or its media type; empty when it has no body.

    >>> split_answer("201 Ref"), split_answer("204")
    (('201', 'Ref'), ('204', ''))
    """
    status, _, content = answer.partition(" ")
    return status, content
