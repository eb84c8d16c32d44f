"""`millpond commit`, `merge`, `revert`, `cherry-pick` and `reset`: what moves the head of a branch, or clears it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.locations import BranchLocation, Metadata, RefPath, items, parse_pair, parse_path, repository
from millpond.cli.versions.output import commit_object, committer_or_user, headline, short
from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from millpond.versions.graph.commits import Commit
    from millpond.versions.merges import Resolution
    from millpond.versions.protocols import BranchLike

__all__ = ("cherry_pick", "commit", "merge", "reset", "revert")

Message = Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="What it is about.")]
OwnMessage = Annotated[
    str | None, typer.Option("--message", "-m", metavar="TEXT", help="What it is about.", show_default="made from both")
]
Committer = Annotated[
    str | None,
    typer.Option("--committer", envvar="MILLPOND_COMMITTER", metavar="NAME", help="Who commits.",
                 show_default="the name of the user"),
]  # fmt: skip
Empty = Annotated[bool, typer.Option("--allow-empty", help="Also when nothing changes.")]
Parent = Annotated[
    int | None,
    typer.Option("--parent", "-p", metavar="N", min=1, help="Of a merge: the parent that it is compared with, from 1."),
]

_RESOLVE = "change one side; or --strategy source-wins or dest-wins; or --take source=PATH"
_CHANGED_SINCE = "the branch changed these paths since: put there what they shall be, and commit"


@contextmanager
def _conflicts_shown(hint: str, *, quiet: bool) -> Iterator[None]:
    """Show the paths of a conflict before its error ends the command; in JSON they are part of the error."""
    from millpond.refs.merges import MapMergeConflict
    from millpond.versions.merges import MergeConflict

    try:
        yield
    except MergeConflict as error:
        if not quiet:
            for path in error.paths[:50]:
                console.say(f"conflict  {path}")
            if len(error.paths) > 50:
                console.say(f"          … {len(error.paths) - 50:,} more")
        if hint == _RESOLVE or not isinstance(error, MapMergeConflict):
            error.hint = hint
        raise


@dataclass(frozen=True, slots=True)
class _Move:
    """A command that moves the head of a branch: what it says while it works and at its end, and of a conflict."""

    working: str
    done: str = "committed to"
    hint: str = _CHANGED_SINCE

    def run(
        self, pond: str, name: str, branch: str, act: Callable[[BranchLike], Commit], *, quiet: bool
    ) -> console.Shown:
        """Move the head by an act, and tell where it is."""
        with (
            repository(pond, name) as repo,
            _conflicts_shown(self.hint, quiet=quiet),
            console.working(self.working, quiet=quiet),
        ):
            commit = act(repo.branch(branch))
        return console.said(
            commit_object(commit),
            f"{self.done} {name}/{branch}: {short(commit.id)} {headline(commit.message)}".rstrip(),
        )


_COMMIT, _REVERT, _PICK = _Move("committing"), _Move("reverting"), _Move("picking")
_MERGE = _Move("merging", "merged into", _RESOLVE)


@verb(
    "commit",
    'millpond commit flights/main -m "January"',
    "millpond commit flights/main -m fix --only 2013/ --meta ticket=7",
)
def commit(
    location: BranchLocation,
    message: Message = "",
    committer: Committer = None,
    meta: Metadata = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PREFIX", help="Only what lies below; the rest stays staged.")
    ] = None,
    allow_empty: Empty = False,
    pond: PondLocation = "pond",
    json: Json = False,
) -> console.Shown:  # fmt: skip
    """Commit what is staged on a branch."""
    where = parse_path(location, path=False)
    options: dict[str, Any] = {"committer": committer_or_user(committer), "metadata": items(meta)}
    return _COMMIT.run(
        pond, where.repository, where.ref, quiet=json,
        act=lambda branch: branch.commit(message, allow_empty=allow_empty, prefixes=only or None, **options),
    )  # fmt: skip


@verb(
    "merge",
    "millpond merge flights/fix main",
    "millpond merge pond/fix main --take source=maps/weather/JFK",
    "millpond merge flights/fix main --strategy source-wins",
    "millpond merge flights/fix main --take source=2013/ --take destination=README",
)
def merge(
    source: Annotated[str, typer.Argument(metavar="[REPO/]SOURCE", help="What to merge: a branch, a tag, a commit.")],
    target: Annotated[str, typer.Argument(metavar="[REPO/]BRANCH", help="The branch that it is merged into.")],
    message: OwnMessage = None,
    committer: Committer = None,
    meta: Metadata = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="NAME", help="Where both changed a path: source-wins or dest-wins.",
                     show_default="such a merge is refused"),
    ] = None,
    take: Annotated[
        list[str] | None,
        typer.Option("--take", metavar="SIDE=PATH",
                     help="Where both changed it: source, destination, base or delete. A PATH/ stands for all below."),
    ] = None,
    squash: Annotated[bool, typer.Option("--squash", help="A commit whose only parent is the branch's head.")] = False,
    allow_empty: Empty = False,
    pond: PondLocation = "pond",
    json: Json = False,
) -> console.Shown:  # fmt: skip
    """Merge a ref into a branch: files by path, maps by key. What both sides changed differently is refused."""
    name, ref, branch = parse_pair(source, target)
    resolutions = [_resolution(text) for text in take or ()]
    options: dict[str, Any] = {
        "committer": committer_or_user(committer), "metadata": items(meta), "strategy": strategy or "",
        "resolutions": resolutions, "squash": squash, "allow_empty": allow_empty,
    }  # fmt: skip
    return _MERGE.run(
        pond, name, branch, quiet=json, act=lambda into: into.merge(ref, message or "", **options)
    )  # fmt: skip


def _resolution(text: str) -> Resolution:
    """The resolution that `source=2013/` writes."""
    from millpond.versions.merges import Resolution

    side, _, path = text.partition("=")
    sides = {"dest": "destination", "theirs": "source", "ours": "destination"}
    try:
        return Resolution.of(path, sides.get(side, side))
    except Invalid as error:
        error.hint = "source, destination, base or delete, such as --take source=2013/01.csv"
        raise


@verb("revert", "millpond revert flights/main main~1", "millpond revert flights/main 3f2a --parent 1")
def revert(
    location: BranchLocation,
    ref: Annotated[str, typer.Argument(metavar="REF", help="The commit to undo.")],
    parent: Parent = None,
    message: OwnMessage = None,
    committer: Committer = None,
    meta: Metadata = None,
    allow_empty: Empty = False,
    pond: PondLocation = "pond",
    json: Json = False,
) -> console.Shown:
    """Undo a commit by a new one on a branch. Of a merge, say with --parent which side stays."""
    name, branch, commit_ref = parse_pair(location, ref)
    options: dict[str, Any] = {"committer": committer_or_user(committer), "metadata": items(meta)}
    return _REVERT.run(
        pond, name, branch, quiet=json,
        act=lambda on: on.revert(
            commit_ref, parent_number=parent, message=message or "", allow_empty=allow_empty, **options
        ),
    )  # fmt: skip


@verb("cherry-pick", "millpond cherry-pick flights/fix~1 main", "millpond cherry-pick flights/3f2a main")
def cherry_pick(
    source: Annotated[str, typer.Argument(metavar="[REPO/]COMMIT", help="The commit whose changes are wanted.")],
    target: Annotated[str, typer.Argument(metavar="[REPO/]BRANCH", help="The branch to make them on.")],
    parent: Parent = None,
    message: OwnMessage = None,
    committer: Committer = None,
    meta: Metadata = None,
    pond: PondLocation = "pond",
    json: Json = False,
) -> console.Shown:
    """Make the changes of one commit again on another branch."""
    name, ref, branch = parse_pair(source, target)
    options: dict[str, Any] = {"committer": committer_or_user(committer), "metadata": items(meta) or None}
    return _PICK.run(
        pond, name, branch, quiet=json,
        act=lambda on: on.cherry_pick(ref, parent_number=parent, message=message, **options),
    )  # fmt: skip


@verb(
    "reset",
    "millpond reset flights/main",
    "millpond reset flights/main/2013/01.csv",
    "millpond reset flights/main/2013/",
    "millpond reset flights/main --hard main~2",
)
def reset(
    location: Annotated[
        str, typer.Argument(metavar="REPO/BRANCH[/PATH]", help="The branch, one path of it, or a folder/.")
    ],
    hard: Annotated[
        str | None, typer.Option("--hard", metavar="REF", help="Move the branch to this commit; nothing may be staged.")
    ] = None,
    pond: PondLocation = "pond",
) -> console.Shown:  # fmt: skip
    """Take back what is staged: on a whole branch, below a prefix, or at one path."""
    where = parse_path(location)
    if hard is not None and where.path:
        raise Invalid("a hard reset moves the whole branch", kind="place_path", place=location,
                      hint="leave out the path")  # fmt: skip
    facts: dict[str, Any] = {"branch": f"{where.repository}/{where.ref}", "path": where.path or None}
    with repository(pond, where.repository) as repo:
        branch = repo.branch(where.ref)
        if hard is not None:
            head = branch.staging.reset_hard(parse_pair(f"{where.repository}/{where.ref}", hard)[2])
        else:
            below = where.path.endswith("/")
            if where.path:
                _check_staged(branch, where)
            branch.reset(path=None if below else where.path or None, prefix=where.path if below else None)
            head = branch.head()
    text = f"{where} is what it is in {short(head.id)}"
    if hard is not None:
        text = f"{where} is at {short(head.id)} {headline(head.message)}".rstrip()
    return console.said(facts | {"head": commit_object(head)}, text)


def _check_staged(branch: BranchLike, where: RefPath) -> None:
    """Refuse to reset a place where nothing is staged: it was probably mistyped.

    Raises: `NotFound`; `Invalid` for a folder without its slash.
    """
    paths = [change.path for change in branch.diff(where.path, amount=1).results]
    if paths and (where.path.endswith("/") or paths[0] == where.path):
        return
    if paths and paths[0].startswith(f"{where.path}/"):
        raise Invalid("this is a folder", kind="path_folder", path=str(where), hint=f"write {where}/")
    raise NotFound(
        "nothing is staged there", kind="entry_not_staged", path=str(where),
        hint=f"'millpond diff {where.repository}/{where.ref}' shows what is",
    )  # fmt: skip
