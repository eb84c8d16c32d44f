"""`millpond tag`: names of commits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millpond.cli.options import Json, PondPlace, examples
from millpond.cli.terminal import console
from millpond.cli.versions.output import commit_object, headline, short, when
from millpond.cli.versions.places import (
    NamePrefix,
    RepositoryName,
    parse_pair,
    parse_place,
    parse_repository,
    repository,
)

__all__ = ("create", "delete", "listed", "register")

TagPlace = Annotated[str, typer.Argument(metavar="REPO/TAG", help="The tag, such as flights/v1.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Tags: names of commits that stay.", no_args_is_help=True)
    group.command("list", epilog=examples("millpond tag list flights", "millpond tag list flights --json"))(listed)
    group.command(epilog=examples("millpond tag create flights/v1 main", "millpond tag create flights/v1 3f2a --json"))(
        create
    )
    group.command(epilog=examples("millpond tag delete flights/v1", "millpond tag delete flights/v1 --json"))(delete)
    app.add_typer(group, name="tag")


def listed(
    name: RepositoryName,
    prefix: NamePrefix = "",
    pond: PondPlace = "pond",
    json: Json = False,
) -> None:
    """List the tags of a repository."""
    rows: list[Any] = []
    with repository(pond, parse_repository(name)) as found:
        after = ""
        while True:
            page = found.tags(prefix, after=after, amount=1_000)
            rows += [(named.name, found.ref(named.commit_id).head()) for named in page.results]  # type: ignore[union-attr]
            if not page.has_more:
                break
            after = page.next_offset
    if json:
        console.print_json_list({"tag": tag, "commit": commit_object(commit)} for tag, commit in rows)
    elif not rows:
        console.say("no tags")
    else:
        console.print_table(
            ["tag", "commit", "committed", "message"],
            [[tag, short(commit.id), when(commit.created), headline(commit.message)] for tag, commit in rows],
            whole=("tag", "commit", "committed"),
        )


def create(
    place: TagPlace,
    ref: Annotated[str, typer.Argument(metavar="REF", help="A branch, a tag or a commit of the repository.")],
    pond: PondPlace = "pond",
    json: Json = False,
) -> None:
    """Name the commit of a ref."""
    name, tag, source = parse_pair(place, ref)
    parse_place(place, path=False)
    with repository(pond, name) as found:
        commit = found.create_tag(tag, source)
    if json:
        console.print_json({"tag": tag, "repository": name, "commit": commit_object(commit)})
    else:
        console.say(f"{name}/{tag} is {short(commit.id)}")


def delete(place: TagPlace, pond: PondPlace = "pond", json: Json = False) -> None:
    """Delete a tag. Its commit stays."""
    where = parse_place(place, path=False)
    with repository(pond, where.repository) as found:
        commit = found.tag(where.ref)
        found.delete_tag(where.ref)
    if json:
        console.print_json({"tag": where.ref, "repository": found.name, "deleted": True, "commit": commit})
    else:
        console.say(f"deleted {where}; it was {short(commit)}")
