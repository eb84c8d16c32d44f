"""Settings of a repository: protected branches, retention, compaction. They hold at once.

Each has a tag, in `ETag`. `If-Match` changes only the setting that has this tag, an empty one only a setting that was
never set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response

from millpond.errors import NotFound
from millpond.server.lakefs.bodies import takes
from millpond.server.lakefs.errors import ApiError, json_answer
from millpond.versions.repository_context import CompactionRules, ProtectedBranches, Retention

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("HANDLERS",)

_SETTINGS = "/repositories/{repository}/settings"
_OLD = "/repositories/{repository}/gc"
"""The path of the rules of retention in older clients."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _BranchProtectionRule:
    pattern: str


@dataclass(frozen=True, slots=True)
class _GarbageCollectionRule:
    branch_id: str
    retention_days: int


@dataclass(frozen=True, slots=True)
class _GarbageCollectionRules:
    default_retention_days: int
    branches: list[_GarbageCollectionRule] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _CompactionRules:
    deletions: int = 0
    sealed_tokens: int = 0
    pause_ms: int = 60_000


def _set(call: Call, value: object) -> Response:
    expected = call.request.headers.get("if-match")
    tag = call.repository.set(value, expected=None if expected is None else expected.strip().strip('"'))
    return Response(status_code=204, headers={"ETag": tag})


def _needed(call: Call, kind: type[T]) -> tuple[T, dict[str, str]]:
    """A setting that must have been set, and the header with its tag."""
    value, tag = call.repository.setting(kind)
    if value is None:
        raise NotFound("not found", kind="setting_not_found", repository=call.repository.name)
    return value, {"ETag": tag}


def _least_zero(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise ApiError(400, f"argument {name}: must not be negative: validation error")


def _get_protection(call: Call) -> Response:
    rules, tag = call.repository.setting(ProtectedBranches)
    patterns = () if rules is None else rules.patterns
    return json_answer([{"pattern": pattern} for pattern in patterns], headers={"ETag": tag})


@takes(list[_BranchProtectionRule])
def _set_protection(call: Call) -> Response:
    rules = call.json_items(_BranchProtectionRule)
    return _set(call, ProtectedBranches(tuple(rule.pattern for rule in rules)))


def _get_retention(call: Call) -> Response:
    rules, headers = _needed(call, Retention)
    branches = [{"branch_id": name, "retention_days": days} for name, days in rules.branch_days.items()]
    return json_answer({"default_retention_days": rules.default_days, "branches": branches}, headers=headers)


@takes(_GarbageCollectionRules)
def _set_retention(call: Call) -> Response:
    rules = call.json(_GarbageCollectionRules)
    _least_zero(default_retention_days=rules.default_retention_days)
    for rule in rules.branches:
        _least_zero(retention_days=rule.retention_days)
    days = {rule.branch_id: rule.retention_days for rule in rules.branches}
    return _set(call, Retention(rules.default_retention_days, days))


def _delete_retention(call: Call) -> Response:
    call.repository.clear(Retention)
    return Response(status_code=204)


def _get_compaction(call: Call) -> Response:
    rules, tag = call.repository.setting(CompactionRules)
    return json_answer(rules or CompactionRules(), headers={"ETag": tag})


@takes(_CompactionRules)
def _set_compaction(call: Call) -> Response:
    rules = call.json(_CompactionRules)
    _least_zero(deletions=rules.deletions, sealed_tokens=rules.sealed_tokens, pause_ms=rules.pause_ms)
    return _set(call, CompactionRules(rules.deletions, rules.sealed_tokens, rules.pause_ms))


def _delete_protection(call: Call) -> Response:
    call.repository.clear(ProtectedBranches)
    return Response(status_code=204)


def _delete_compaction(call: Call) -> Response:
    call.repository.clear(CompactionRules)
    return Response(status_code=204)


def _may_set(call: Call) -> Response:
    """204 for a caller who may change the settings: the route needs that right."""
    call.check_repository()
    return Response(status_code=204)


HANDLERS = {
    ("GET", f"{_OLD}/rules"): _get_retention,
    ("POST", f"{_OLD}/rules"): _set_retention,
    ("DELETE", f"{_OLD}/rules"): _delete_retention,
    ("GET", f"{_OLD}/rules/set_allowed"): _may_set,
    ("GET", f"{_SETTINGS}/branch_protection"): _get_protection,
    ("PUT", f"{_SETTINGS}/branch_protection"): _set_protection,
    ("DELETE", f"{_SETTINGS}/branch_protection"): _delete_protection,
    ("GET", f"{_SETTINGS}/gc_rules"): _get_retention,
    ("PUT", f"{_SETTINGS}/gc_rules"): _set_retention,
    ("DELETE", f"{_SETTINGS}/gc_rules"): _delete_retention,
    ("GET", f"{_SETTINGS}/compaction"): _get_compaction,
    ("PUT", f"{_SETTINGS}/compaction"): _set_compaction,
    ("DELETE", f"{_SETTINGS}/compaction"): _delete_compaction,
}
