"""`millpond tag`: names of commits."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond.cli.options import PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.locations import (
    NamePrefix,
    RepositoryName,
    parse_pair,
    parse_path,
    parse_repository,
    repository,
)
from millpond.cli.versions.output import commit_object, committed, headline, short

__all__ = ("create", "delete", "listed")

TagLocation = Annotated[str, typer.Argument(metavar="REPO/TAG", help="The tag, such as flights/v1.")]


@verb("tag list", "millpond tag list flights", "millpond tag list flights --json")
def listed(
    name: RepositoryName,
    prefix: NamePrefix = "",
    pond: PondLocation = "pond",
) -> console.Shown:
    """List the tags of a repository."""
    from millpond.versions.paging import results_of

    with repository(pond, parse_repository(name)) as repo:
        named = results_of(lambda after: repo.tags(prefix, after=after, amount=1_000))
        rows = [(tag.name, repo.ref(tag.commit_id).head()) for tag in named]
    return console.table(
        ({"tag": tag, "commit": commit_object(commit)} for tag, commit in rows),
        ["tag", "commit", "committed", "message"],
        [[tag, short(commit.id), committed(commit), headline(commit.message)] for tag, commit in rows],
        whole=("tag", "commit", "committed"),
        nothing="no tags",
    )


@verb("tag create", "millpond tag create flights/v1 main", "millpond tag create flights/v1 3f2a --json")
def create(
    location: TagLocation,
    ref: Annotated[str, typer.Argument(metavar="REF", help="A branch, a tag or a commit of the repository.")],
    pond: PondLocation = "pond",
) -> console.Shown:
    """Name the commit of a ref."""
    name, tag, source = parse_pair(location, ref)
    parse_path(location, path=False)
    with repository(pond, name) as repo:
        commit = repo.create_tag(tag, source)
    return console.said(
        {"tag": tag, "repository": name, "commit": commit_object(commit)}, f"{name}/{tag} is {short(commit.id)}"
    )


@verb("tag delete", "millpond tag delete flights/v1", "millpond tag delete flights/v1 --json")
def delete(location: TagLocation, pond: PondLocation = "pond") -> console.Shown:
    """Delete a tag. Its commit stays."""
    where = parse_path(location, path=False)
    with repository(pond, where.repository) as repo:
        commit = repo.tag(where.ref)
        repo.delete_tag(where.ref)
    return console.said(
        {"tag": where.ref, "repository": repo.name, "deleted": True, "commit": commit},
        f"deleted {where}; it was {short(commit)}",
    )
