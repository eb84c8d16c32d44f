"""`millpond repo`: repositories, their settings, and their garbage."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.declared import commands
from millpond.cli.options import Confirmed, Json, PondLocation, comma_list
from millpond.cli.terminal import console
from millpond.cli.verbs import POND, verb
from millpond.cli.versions.locations import (
    Metadata,
    NamePrefix,
    RepositoryName,
    items,
    opened,
    parse_repository,
    repository,
)
from millpond.cli.versions.output import committed, iso, short, when
from millpond.errors import Invalid
from millpond.maps.protocols import PondLike
from millpond.times.durations import parse_duration
from millpond.versions.protocols import RepositoryOperations

if TYPE_CHECKING:
    from millpond.versions.collect import Garbage
    from millpond.versions.protocols import RepositoryLike
    from millpond.versions.repository_context import RepositoryRecord

__all__ = ("collect", "create", "delete", "listed", "settings", "show")

commands(RepositoryOperations, lambda pond, repository: pond.repository(repository), {"repository": RepositoryName})


@verb("repo create", "millpond repo create flights", "millpond repo create flights s3://bucket/f --branch trunk")
def create(
    name: RepositoryName,
    namespace: Annotated[
        str | None,
        typer.Argument(metavar="[PLACE]", help="Where its bytes lie: s3://bucket/prefix, or a folder.",
                       show_default="beside the pond"),
    ] = None,
    branch: Annotated[str, typer.Option("--branch", metavar="NAME", help="The default branch.")] = "main",
    meta: Metadata = None,
    pond: PondLocation = "pond",
) -> console.Shown:  # fmt: skip
    """Make a repository with one branch and one commit, and the pond if it is not there yet.

    No other repository may ever have its place.
    """
    import millpond

    name = parse_repository(name)
    if namespace is not None and "://" not in namespace:
        namespace = str(Path(namespace).absolute())  # it is opened from other folders, too
    with millpond.open(pond) as opened_pond:
        repo = opened_pond.repositories.create(name, namespace, default_branch=branch, metadata=items(meta))
    return console.said(
        _object(repo.record), f"made {name} with the branch {branch}; its bytes lie in {repo.record.namespace}"
    )


@verb("repo list", "millpond repo list", "millpond repo list --prefix fl --json", on=POND)
def listed(pond: PondLike, prefix: NamePrefix = "") -> console.Shown:
    """List the repositories."""
    from millpond.versions.paging import results_of

    records = list(results_of(lambda after: pond.repositories.list(prefix, after=after, amount=1_000)))
    return console.table(
        map(_object, records),
        ["repository", "default branch", "created", "place", "read-only"],
        [
            [row.name, row.default_branch, when(row.created), row.namespace, "yes" if row.read_only else None]
            for row in records
        ],
        whole=("repository", "created"),
        spared=("read-only",),
        nothing="no repositories; make one with 'millpond repo create NAME'"
    )  # fmt: skip


@verb("repo show", "millpond repo show flights", "millpond repo show flights --json")
def show(name: RepositoryName, pond: PondLocation = "pond") -> console.Shown:
    """Show a repository: its place, its branches and tags, its settings."""
    with repository(pond, parse_repository(name)) as repo:
        head = repo.ref(repo.record.default_branch).head()
        facts = _object(repo.record) | {
            "branches": _count(repo.branches(amount=10_000, hidden=True)),
            "tags": _count(repo.tags(amount=10_000)), "head": head.id, "settings": _settings(repo),
        }  # fmt: skip
    shown = facts | {
        "head": f"{short(head.id)} of {repo.record.default_branch}, {committed(head)}",
        "metadata": ", ".join(f"{key}={value}" for key, value in facts["metadata"].items()) or None,
    }
    del shown["uid"]
    facts_of_settings = shown.pop("settings") | {"read_only": shown.pop("read_only")}
    return console.facts(
        facts, {key.replace("_", " "): value for key, value in shown.items()} | _setting_facts(facts_of_settings)
    )


def _count(page: Any) -> str:
    return f"{len(page.results):,}" + ("+" if page.has_more else "")


def _object(record: RepositoryRecord) -> dict[str, Any]:
    return {
        "repository": record.name, "place": record.namespace, "default_branch": record.default_branch,
        "created": iso(record.created), "read_only": record.read_only, "metadata": record.metadata, "uid": record.uid,
    }  # fmt: skip


# -- settings -----------------------------------------------------------------------------------------


@verb(
    "repo settings",
    "millpond repo settings flights",
    "millpond repo settings flights --protect main,release-*",
    "millpond repo settings flights --retain 30d --retain-branch main=365d",
    "millpond repo settings flights --compact-deletions 50000 --compact-layers 20",
)
def settings(
    name: RepositoryName,
    protect: Annotated[
        list[str] | None,
        typer.Option("--protect", metavar="PATTERN", help="Branches that only merges change: main,rel-*; '' for none."),
    ] = None,
    retain: Annotated[
        str | None,
        typer.Option("--retain", metavar="AGE", help="Time that commits stay active after another took their place."),
    ] = None,
    retain_branch: Annotated[
        list[str] | None, typer.Option("--retain-branch", metavar="BRANCH=AGE", help="The same for one branch.")
    ] = None,
    compact_deletions: Annotated[
        int | None,
        typer.Option("--compact-deletions", min=0, metavar="N", help="Compact a branch after so many; 0 is off."),
    ] = None,
    compact_layers: Annotated[
        int | None,
        typer.Option("--compact-layers", min=0, metavar="N", help="Compact a branch from so many layers on; 0 is off."),
    ] = None,
    read_only: Annotated[
        bool | None, typer.Option("--read-only/--writable", help="Refuse every change, or take changes again.",
                                  show_default=False)
    ] = None,
    pond: PondLocation = "pond",
) -> console.Shown:  # fmt: skip
    """Show the settings of a repository, or change those that are given. They hold at once, for everybody."""
    from millpond.versions.repository_context import CompactionRules, ProtectedBranches, Retention

    with repository(pond, parse_repository(name)) as repo:
        if protect is not None:
            repo.set(ProtectedBranches(tuple(comma_list(protect))))
        if retain is not None or retain_branch:
            before = repo.setting(Retention)[0] or Retention()
            branch_ages = items(retain_branch, "such as --retain-branch main=365d")
            days = _days(retain) if retain is not None else before.default_days
            repo.set(Retention(days, before.branch_days | {key: _days(age) for key, age in branch_ages.items()}))
        if compact_deletions is not None or compact_layers is not None:
            rules = repo.setting(CompactionRules)[0] or CompactionRules()
            changes = {"deletions": compact_deletions, "sealed_tokens": compact_layers}
            repo.set(replace(rules, **{key: number for key, number in changes.items() if number is not None}))
        if read_only is not None:
            repo.alter(read_only=read_only)
        current = _settings(repo) | {"read_only": repo.record.read_only}
    return console.facts({"repository": repo.name} | current, _setting_facts(current))


def _days(age: str) -> int:
    """An age in whole days, of which the retention of commits is counted."""
    days, rest = divmod(parse_duration(age), 24 * 3_600_000)
    if rest:
        raise Invalid("commits are retained for whole days", kind="retention_days", given=age, hint="such as 30d")
    return days


def _settings(repo: RepositoryLike) -> dict[str, Any]:
    from millpond.versions.repository_context import CompactionRules, ProtectedBranches, Retention

    protected = repo.setting(ProtectedBranches)[0] or ProtectedBranches()
    retention, rules = repo.setting(Retention)[0], repo.setting(CompactionRules)[0] or CompactionRules()
    return {
        "protected": list(protected.patterns),
        "retention_days": None if retention is None else {"": retention.default_days, **retention.branch_days},
        "compact_deletions": rules.deletions, "compact_layers": rules.sealed_tokens,
    }  # fmt: skip


def _setting_facts(settings: dict[str, Any]) -> dict[str, Any]:
    days = settings["retention_days"]
    ages = [f"{age} d" + (f" on {branch}" if branch else "") for branch, age in (days or {}).items()]
    return {
        "protected branches": ", ".join(settings["protected"]) or "none",
        "commits retained": ", ".join(ages) or "all, for ever",
        "compacted after": f"{settings['compact_deletions']:,} deletions" if settings["compact_deletions"] else None,
        "compacted from": f"{settings['compact_layers']} sealed layers" if settings["compact_layers"] else None,
        "read-only": "yes" if settings["read_only"] else None,
    }


# -- garbage, deletion --------------------------------------------------------------------------------


@verb("repo gc", "millpond repo gc flights --dry-run", "millpond repo gc flights --grace 2d --json")
def collect(
    name: RepositoryName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and delete nothing.")] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="AGE", help="What is younger stays: a minute at least.")
    ] = "1d",
    pond: PondLocation = "pond",
    json: Json = False,
) -> console.Shown:
    """Collect garbage: delete objects that no active commit and nothing staged names, and ranges that nothing names."""
    grace_ms = parse_duration(grace)
    with repository(pond, parse_repository(name)) as repo, console.working("collecting garbage", quiet=json):
        garbage = repo.collect(grace_ms=grace_ms, dry_run=dry_run)
    verb = "would delete" if dry_run else "deleted"
    text = (
        f"{verb} {console.human_count(garbage.objects, 'object')} ({console.human_bytes(garbage.object_bytes)}), "
        f"{garbage.ranges:,} ranges and {garbage.indexes:,} indexes, "
        f"{garbage.retained:,} more when their readers had time to finish; "
        f"of the commits {garbage.active_commits:,} are active, "
        f"{garbage.expired_commits:,} expired"
    )
    names = [f"  {path}" for path in garbage.names[:20]] if dry_run else []
    names += ["  …; --json shows more"] if dry_run and len(garbage.names) > 20 else []
    return console.said(_garbage(repo.name, garbage), "\n".join([text, *names]))


def _garbage(name: str, garbage: Garbage) -> dict[str, Any]:
    return {
        "repository": name, "dry_run": garbage.dry_run, "objects": garbage.objects, "bytes": garbage.object_bytes,
        "ranges": garbage.ranges, "indexes": garbage.indexes, "retained": garbage.retained,
        "active_commits": garbage.active_commits, "expired_commits": garbage.expired_commits, "names": garbage.names,
    }  # fmt: skip


@verb("repo delete", "millpond repo delete flights", "millpond repo delete flights --yes --json")
def delete(
    name: RepositoryName,
    yes: Confirmed = False,
    pond: PondLocation = "pond",
    json: Json = False,
) -> console.Shown:
    """Delete a repository: its branches, tags and commits. Its bytes stay in their place, which is never used again.

    Asks first; off a terminal, --yes is needed.
    """
    name = parse_repository(name)
    with opened(pond) as opened_pond:
        record = opened_pond.repository(name).record
        if not yes:
            if json or not sys.stdin.isatty():
                raise Invalid("deleting is for ever", kind="not_confirmed", repository=name, hint="say --yes")
            typer.confirm(f"delete {name} with all its commits?", abort=True)
        opened_pond.repositories.delete(name)
    return console.said(
        {"repository": name, "deleted": True, "place": record.namespace},
        f"deleted {name}; its bytes are left in {record.namespace}",
    )
