"""`millpond log`: the commits from a ref back, as a table or as a graph."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.options import Json, PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.graph import Graph
from millpond.cli.versions.locations import opened, parse_path, repository
from millpond.cli.versions.output import commit_object, committed, headline, short
from millpond.errors import Invalid
from millpond.times.instants import parse_instant

if TYPE_CHECKING:
    from millpond.versions.graph.commits import Commit
    from millpond.versions.protocols import RepositoryLike

__all__ = ("log",)

_ASCII = str.maketrans({"●": "*", "◎": "*", "│": "|", "─": "-"} | dict.fromkeys("├┤┼┬┴╮╯╭╰", "+"))
_NAMES_MAX = 10_000


@verb(
    "log",
    "millpond log flights/main",
    "millpond log flights/main --graph",
    "millpond log --map weather",
    "millpond log flights/main/2013/ -n 5",
    "millpond log flights/v1 --since 2013-02-08T00:00Z --json",
)
def log(
    location: Annotated[
        str,
        typer.Argument(metavar="REPO[/REF[/PATH]]",
                       help="The ref to begin at; with a path, only commits that changed it, or what lies below it."),
    ] = "pond/main",
    map_name: Annotated[
        str | None,
        typer.Option("--map", metavar="MAP", help="The changes of a layered map, with their rows and sources."),
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw how the commits hang together.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many.",
                                              show_default="50; with --json all")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only commits of this time or later.")
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Leave out what merges brought.")
    ] = False,
    pond: PondLocation = "pond",
    json: Json = False,
) -> None:  # fmt: skip
    """Show commits, the newest first. A path that ends with / stands for all that lies below it."""
    from millpond.versions.graph.history import Window

    where = parse_path(location, ref=False)
    if map_name is not None:
        bounded = bool(graph or since or first_parent or where.path)
        _map_log(pond, where.ref or "main", map_name, limit, bounded=bounded, as_json=json)
        return
    if graph and (where.path or since):
        raise Invalid(
            "a graph shows every commit",
            kind="graph_filter",
            place=location,
            hint="leave out --graph, or path and --since",
        )
    window = Window(first_parent, None if since is None else -(-parse_instant(since) // 1000))
    paths = (where.path,) if where.path and not where.path.endswith("/") else ()
    prefixes = (where.path,) if where.path.endswith("/") else ()
    count = limit if limit is not None or json else 50
    with repository(pond, where.repository) as repo:
        commits = repo.ref(where.ref or repo.record.default_branch).log(window, paths=paths, prefixes=prefixes)
        shown = list(islice(commits, None if count is None else count + 1)) if not json else islice(commits, count)
        if json:
            console.print_json_list(map(commit_object, shown))
            return
        names = _names(repo)
    rows = list(shown)
    more = count is not None and len(rows) > count
    rows = rows[:count]
    if not rows:
        console.say("no commits" + (f" changed {where.path}" if where.path else ""))
    elif graph:
        _draw(rows, names, first_parent=first_parent)
    else:
        _table(rows, names)
    if more:
        console.note(f"there are more: -n {2 * (count or 0)}")


def _map_log(pond: str, ref: str, name: str, limit: int | None, *, bounded: bool, as_json: bool) -> None:
    from millpond.cli import rows

    if bounded:
        raise Invalid(
            "of a map, all changes are shown from a ref back", kind="map_log_filter", map=name,
            hint="leave out --graph, --since, --first-parent and the path, or --map",
        )  # fmt: skip
    with opened(pond) as opened_pond:
        table = opened_pond.refs.history(name, ref, limit=limit)
    if not as_json:
        at, names = table.schema.get_field_index("commit"), table["commit"].to_pylist()
        table = table.set_column(at, "commit", [list(map(short, names))])
    rows.show(table.schema, table.to_batches(), as_json=as_json, empty=f"no commits changed {name}")


def _names(repo: RepositoryLike) -> dict[str, list[str]]:
    """The branches and tags at each commit; of very many, the first."""
    names: dict[str, list[str]] = {}
    for page in (repo.branches(amount=_NAMES_MAX), repo.tags(amount=_NAMES_MAX)):
        for named in page.results:
            names.setdefault(named.commit_id, []).append(named.name)  # type: ignore[union-attr]
    return names


def _table(rows: Iterable[Commit], names: Mapping[str, list[str]]) -> None:
    console.print_table(
        ["commit", "committed", "by", "message", "at"],
        [
            [
                short(row.id), committed(row), row.committer, headline(row.message),
                ", ".join(names.get(row.id, ())) or None,
            ]
            for row in rows
        ],
        whole=("commit", "committed"), spared=("at", "by"),
    )  # fmt: skip


def _draw(rows: Iterable[Commit], names: Mapping[str, list[str]], *, first_parent: bool) -> None:
    from rich.text import Text

    plain = not _can_draw()
    drawing, printer = Graph(), console.console()
    for commit in rows:
        parents = commit.parents[:1] if first_parent else commit.parents
        for row in drawing.add(commit.id, parents):
            line = Text(row.lines.translate(_ASCII) if plain else row.lines, style="blue")
            if row.commit is not None:
                line.append(f" {short(commit.id)}", style="yellow")
                if commit.id in names:
                    line.append(console.neutral(f" ({', '.join(names[commit.id])})"), style="bold green")
                line.append(console.neutral(f" {headline(commit.message)}"), style="default")
                line.append(console.neutral(f"  {committed(commit)} {commit.committer}").rstrip(), style="dim")
            printer.print(line, soft_wrap=True)


def _can_draw() -> bool:
    """True when standard output takes lines that are not ASCII."""
    try:
        "●╯".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
