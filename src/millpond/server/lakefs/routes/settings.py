"""Settings of a repository: protected branches, retention, compaction. They hold at once.

Each has a tag, in `ETag`. `If-Match` changes only the setting that has this tag, an empty one only a setting that was
never set.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from millpond.errors import NotFound
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import json_answer
from millpond.server.lakefs.needs import REPOSITORY, administer, change, read
from millpond.server.routes.table import On
from millpond.versions import repository_context as stored

__all__ = ("BranchProtectionRule", "CompactionRules", "GarbageCollectionRule", "GarbageCollectionRules", "routes")

_PROTECTION = f"{REPOSITORY}/settings/branch_protection"
_RETENTION = f"{REPOSITORY}/settings/gc_rules"
_OLD = f"{REPOSITORY}/gc/rules"
"""The path of the rules of retention in older clients."""
_OLD_PROTECTION = f"{REPOSITORY}/branch_protection"
"""The path of protected branches in older clients, which add and remove one pattern."""
_COMPACTION = f"{REPOSITORY}/settings/compaction"
_SET = change("admin", On.REPOSITORY)
_DELETE = change("admin", On.REPOSITORY, 0)
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
routes = operations("settings")


class BranchProtectionRule(msgspec.Struct):
    """Branches that are protected."""

    pattern: str


class GarbageCollectionRule(msgspec.Struct):
    """The retention of a branch."""

    branch_id: str
    retention_days: Count


class GarbageCollectionRules(msgspec.Struct):
    """The retention of branches."""

    default_retention_days: Count
    branches: list[GarbageCollectionRule] = []


class CompactionRules(msgspec.Struct):
    """The thresholds of compactions, and the pause after each."""

    deletions: Count = 0
    sealed_tokens: Count = 0
    pause_ms: Count = 60_000


def _set(call: Call, value: object) -> Response:
    call.check_writable()
    expected = call.request.headers.get("if-match")
    tag = call.repository.set(value, expected=None if expected is None else expected.strip().strip('"'))
    return Response(status_code=204, headers={"ETag": tag})


# -- protected branches -------------------------------------------------------------------------------


@routes.get(_PROTECTION, read(), answer=list[BranchProtectionRule])
@routes.get(_OLD_PROTECTION, read(), answer=list[BranchProtectionRule])
def _get_protection(call: Call) -> Response:
    rules, tag = call.repository.setting(stored.ProtectedBranches)
    patterns = () if rules is None else rules.patterns
    return json_answer(list(map(BranchProtectionRule, patterns)), headers={"ETag": tag})


@routes.put(_PROTECTION, _SET, status=204)
def _set_protection(call: Call, rules: list[BranchProtectionRule]) -> Response:
    return _set(call, stored.ProtectedBranches(tuple(rule.pattern for rule in rules)))


@routes.delete(_PROTECTION, _DELETE, status=204)
def _delete_protection(call: Call) -> None:
    call.check_writable()
    call.repository.clear(stored.ProtectedBranches)


@routes.post(_OLD_PROTECTION, _SET, status=204)
def _protect(call: Call, rule: BranchProtectionRule) -> None:
    call.check_writable()
    rules, tag = call.repository.setting(stored.ProtectedBranches)
    patterns = dict.fromkeys((*(rules.patterns if rules else ()), rule.pattern))
    call.repository.set(stored.ProtectedBranches(tuple(patterns)), expected=tag)


@routes.delete(_OLD_PROTECTION, _SET, status=204)
def _unprotect(call: Call, rule: BranchProtectionRule) -> None:
    call.check_writable()
    rules, tag = call.repository.setting(stored.ProtectedBranches)
    if rules is None or rule.pattern not in rules.patterns:
        raise NotFound("not found", kind="setting_not_found", repository=call.repository.name)
    patterns = tuple(pattern for pattern in rules.patterns if pattern != rule.pattern)
    call.repository.set(stored.ProtectedBranches(patterns), expected=tag)


# -- retention ----------------------------------------------------------------------------------------


@routes.get(_RETENTION, read(), answer=GarbageCollectionRules)
@routes.get(_OLD, read(), answer=GarbageCollectionRules)
def _get_retention(call: Call) -> Response:
    rules, tag = call.repository.setting(stored.Retention)
    if rules is None:
        raise NotFound("not found", kind="setting_not_found", repository=call.repository.name)
    branches = [GarbageCollectionRule(name, days) for name, days in rules.branch_days.items()]
    return json_answer(GarbageCollectionRules(rules.default_days, branches), headers={"ETag": tag})


@routes.put(_RETENTION, _SET, status=204)
@routes.post(_OLD, _SET, status=204)
def _set_retention(call: Call, rules: GarbageCollectionRules) -> Response:
    days = {rule.branch_id: rule.retention_days for rule in rules.branches}
    return _set(call, stored.Retention(rules.default_retention_days, days))


@routes.delete(_RETENTION, _DELETE, status=204)
@routes.delete(_OLD, _DELETE, status=204)
def _delete_retention(call: Call) -> None:
    call.check_writable()
    call.repository.clear(stored.Retention)


@routes.get(f"{_OLD}/set_allowed", administer(), status=204)
@routes.get(f"{_OLD_PROTECTION}/set_allowed", administer(), status=204)
def _may_set(call: Call) -> None:
    """204 for a caller who may change the settings: the route needs that right."""
    call.check_repository()


# -- compaction ---------------------------------------------------------------------------------------


@routes.get(_COMPACTION, read(), answer=CompactionRules)
def _get_compaction(call: Call) -> Response:
    rules, tag = call.repository.setting(stored.CompactionRules)
    return json_answer(rules or stored.CompactionRules(), headers={"ETag": tag})


@routes.put(_COMPACTION, _SET, status=204)
def _set_compaction(call: Call, rules: CompactionRules) -> Response:
    return _set(call, stored.CompactionRules(rules.deletions, rules.sealed_tokens, rules.pause_ms))


@routes.delete(_COMPACTION, _DELETE, status=204)
def _delete_compaction(call: Call) -> None:
    call.repository.clear(stored.CompactionRules)
