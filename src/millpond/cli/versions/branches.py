"""`millpond branch`: branches, and their compaction."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millpond.cli.options import Json, PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.locations import (
    BranchLocation,
    NamePrefix,
    RepositoryName,
    opened,
    parse_pair,
    parse_path,
    parse_repository,
    repository,
)
from millpond.cli.versions.output import commit_object, committed, headline, iso, short
from millpond.errors import Invalid
from millpond.json_forms import plain
from millpond.refs.face import POND

__all__ = ("compact", "create", "delete", "listed", "restore", "show")


@verb("branch list", "millpond branch list flights", "millpond branch list flights --json")
def listed(
    name: RepositoryName,
    prefix: NamePrefix = "",
    hidden: Annotated[bool, typer.Option("--hidden", help="Hidden branches too.")] = False,
    pond: PondLocation = "pond",
) -> console.Shown:
    """List the branches of a repository, and what each head is."""
    from millpond.versions.paging import results_of

    with repository(pond, parse_repository(name)) as repo:
        named = results_of(lambda after: repo.branches(prefix, after=after, amount=1_000, hidden=hidden))
        rows = [(branch.name, repo.ref(branch.commit_id).head()) for branch in named]
        default = repo.record.default_branch
    return console.table(
        (
            {"branch": branch, "default": branch == default, "head": commit_object(head)} for branch, head in rows
        ),
        ["branch", "head", "committed", "message"],
        [
            [_marked(branch, default), short(head.id), committed(head), headline(head.message)]
            for branch, head in rows
        ],
        whole=("branch", "head", "committed"),
        nothing="no such branches"
    )  # fmt: skip


def _marked(branch: str, default: str) -> str:
    return f"{branch} *" if branch == default else branch


@verb("branch create", "millpond branch create flights/fix", "millpond branch create flights/old --from v1~2")
def create(
    location: BranchLocation,
    source: Annotated[
        str | None,
        typer.Option("--from", "--source", metavar="REF", help="A branch, a tag or a commit.",
                     show_default="the default branch"),
    ] = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="Leave it out of listings.")] = False,
    pond: PondLocation = "pond",
) -> console.Shown:  # fmt: skip
    """Make a branch at a commit. It costs nothing; what is staged on the other branch stays there."""
    where = parse_path(location, path=False)
    with repository(pond, where.repository) as repo:
        ref = _ref_of(where.repository, source) or repo.record.default_branch
        head = repo.create_branch(where.ref, ref, hidden=hidden).head()
    return console.said(
        {"branch": where.ref, "repository": repo.name, "head": commit_object(head)},
        f"made {where} at {short(head.id)} of {ref}",
    )


def _ref_of(name: str, source: str | None) -> str | None:
    """A ref that was given alone, or with its repository."""
    if source is None or "/" not in source:
        return source
    location = parse_path(source, path=False)
    if location.repository != name:
        raise Invalid(
            "a branch begins at a commit of its own repository", kind="place_repository", repository=name,
            source=source, hint="write the ref alone",
        )  # fmt: skip
    return location.ref


@verb("branch show", "millpond branch show flights/main", "millpond branch show flights/main --json")
def show(location: BranchLocation, pond: PondLocation = "pond") -> console.Shown:
    """Show a branch: its head, and the layers of what is staged on it."""
    where = parse_path(location, path=False)
    with repository(pond, where.repository) as repo:
        branch = repo.branch(where.ref)
        state, head = branch.staging.state(), branch.head()
    begun = state.compaction_start_time
    facts: dict[str, Any] = {
        "branch": str(where), "head": commit_object(head), "uncommitted": state.staged,
        "sealed_layers": state.sealed_layers, "compacted_index": state.compacted_index,
        "compaction_started": None if begun is None else iso(begun // 1000), "hidden": state.hidden,
    }  # fmt: skip
    shown = facts | {
        "head": f"{short(head.id)} {committed(head)} {headline(head.message)}",
        "uncommitted": f"changes: 'millpond diff {where}' shows them" if state.staged else "nothing",
        "compacted_index": state.compacted_index and short(state.compacted_index),
        "hidden": "yes" if state.hidden else None,
    }  # fmt: skip
    return console.facts(facts, {name.replace("_", " "): value for name, value in shown.items()})


@verb("branch compact", "millpond branch compact flights/main", "millpond branch compact flights/main --json")
def compact(location: BranchLocation, pond: PondLocation = "pond", json: Json = False) -> console.Shown:
    """Fold what is staged on a branch into an index, so that reads are as fast as those of a commit.

    The state of the branch stays as it is. It does nothing, harmlessly, when a commit does the same work meanwhile.
    """
    where = parse_path(location, path=False)
    with repository(pond, where.repository) as repo, console.working("compacting", quiet=json):
        done = repo.branch(where.ref).staging.compact()
    folded = f"folded {done.layers} {'layer' if done.layers == 1 else 'layers'} of {where} in {done.ms:,} ms"
    text = folded if done.done else f"nothing was folded: {done.reason}"
    return console.said({"branch": str(where)} | plain(done), text)


@verb(
    "branch restore",
    "millpond branch restore pond/main main~3 --map weather",
    "millpond branch restore pond/main 2026-03-01T00:00Z --json",
)
def restore(
    location: BranchLocation,
    ref: Annotated[str, typer.Argument(metavar="REF", help="A branch, tag, commit or time: main~3.")],
    maps: Annotated[
        list[str] | None, typer.Option("--map", metavar="NAME", help="This map.", show_default="all maps at the ref")
    ] = None,
    message: Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="What the commit says.")] = "",
    pond: PondLocation = "pond",
) -> console.Shown:  # fmt: skip
    """Let maps of a branch of pond be what they were at a ref, by a new commit; also maps that were dropped."""
    name, branch, source = parse_pair(location, ref)
    if name != POND:
        raise Invalid("maps are in the repository pond", kind="place_repository", repository=name,
                      hint=f"write {POND}/{branch}")  # fmt: skip
    with opened(pond) as opened_pond:
        commit = opened_pond.refs.restore(source, branch, maps=maps or (), message=message)
    return console.said(
        commit_object(commit), f"committed to {name}/{branch}: {short(commit.id)} {headline(commit.message)}".rstrip()
    )


@verb("branch delete", "millpond branch delete flights/fix", "millpond branch delete flights/fix --json")
def delete(location: BranchLocation, pond: PondLocation = "pond") -> console.Shown:
    """Delete a branch with what is staged on it. Its commits stay."""
    where = parse_path(location, path=False)
    with repository(pond, where.repository) as repo:
        head = repo.branch(where.ref).staging.state().commit_id
        repo.delete_branch(where.ref)
    return console.said(
        {"branch": where.ref, "repository": repo.name, "deleted": True, "head": head},
        f"deleted {where}; its head was {short(head)}",
    )
