"""Places in repositories, as they are typed: `flights/main/2013/01.csv`.

    REPO             flights
    REPO/REF         flights/main   flights/v1   flights/main~2   flights/3f2a
    REPO/REF/PATH    flights/main/2013/01.csv   flights/main/2013/

No ref holds a slash, so the first two slashes tell where each part ends. `lakefs://` may stand in front, as other tools
have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.options import existing_pond
from millpond.errors import Invalid

if TYPE_CHECKING:
    from millpond.maps.protocols import PondLike
    from millpond.versions.protocols import RepositoryLike

__all__ = (
    "AnyLocation", "BranchLocation", "Limit", "Metadata", "NamePrefix", "RefPath", "Recursive", "RefLocation",
    "RepositoryName", "items", "opened", "parse_pair", "parse_path", "parse_repository", "repository",
)  # fmt: skip

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FORM = "write REPO/REF/PATH, such as flights/main/2013/01.csv"

RepositoryName = Annotated[str, typer.Argument(metavar="REPO", help="The repository's name.")]
BranchLocation = Annotated[str, typer.Argument(metavar="REPO/BRANCH", help="The branch, such as flights/main.")]
RefLocation = Annotated[
    str, typer.Argument(metavar="REPO/REF", help="A branch, a tag or a commit, such as flights/main~2.")
]
AnyLocation = Annotated[
    str, typer.Argument(metavar="REPO/REF/PATH", help="A place, such as flights/main/2013/; lakefs:// may precede it.")
]
Metadata = Annotated[
    list[str] | None, typer.Option("--meta", metavar="NAME=VALUE", help="User metadata; may be repeated.")
]
NamePrefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that begin so.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="All that lies below.")]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many.", show_default="all"),
]


@dataclass(frozen=True, slots=True)
class RefPath:
    """A repository; a ref in it, or none; a path on that, or none."""

    repository: str
    ref: str = ""
    path: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.repository, self.ref, self.path) if part)


def parse_path(text: str, *, ref: bool = True, path: bool | None = True, hint: str = "") -> RefPath:
    """The place that a text names. `ref`: a ref must be in it. `path`: None when it needs one, False when it has none.

    `hint` is another way out for a place without a path.

    >>> parse_path("lakefs://flights/main/2013/01.csv")
    RefPath(repository='flights', ref='main', path='2013/01.csv')

    Raises: `Invalid`.
    """
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() != "lakefs":
        raise Invalid(
            f"{scheme[1]}:// is no repository", kind="place_scheme", place=text,
            hint=f"{_FORM}; lakefs:// may precede it",
        )  # fmt: skip
    parts = (text[scheme.end() :] if scheme else text).split("/", 2)
    location = RefPath(*parts)
    if not location.repository or location.repository in (".", ".."):
        raise Invalid("no place in a repository", kind="place_form", place=repr(text), hint=_FORM)
    if ref and not location.ref:
        raise Invalid(
            "a branch, tag or commit is missing", kind="place_ref", place=text,
            hint=f"write {location.repository}/BRANCH; 'millpond branch list {location.repository}' shows what there is"
            f"; a branch of maps is pond/{location.repository}",
        )  # fmt: skip
    if path is None and not location.path:
        raise Invalid(
            "a path is missing",
            kind="place_path",
            place=text,
            hint=f"such as {location}/2013/01.csv" + (f"; {hint}" if hint else ""),
        )
    if path is False and location.path:
        raise Invalid(
            "a path is not expected here", kind="place_path", place=text,
            hint=f"write {location.repository}/{location.ref}" if ref else f"write {location.repository}",
        )  # fmt: skip
    return location


def parse_repository(text: str) -> str:
    """The name of a repository.

    Raises: `Invalid` when a ref or a path follows.
    """
    location = parse_path(text, ref=False)
    if location.ref:
        raise Invalid(
            "only a repository is expected here", kind="place_ref", place=text, hint=f"write {location.repository}"
        )  # fmt: skip
    return location.repository


def parse_pair(first: str, second: str) -> tuple[str, str, str]:
    """The repository of two refs, and both refs; one of the two may leave out the repository.

    >>> parse_pair("flights/fix", "main"), parse_pair("fix", "flights/main")
    (('flights', 'fix', 'main'), ('flights', 'fix', 'main'))

    Raises: `Invalid`.
    """
    bare = ["/" not in text for text in (first, second)]
    if all(bare):
        raise Invalid(
            "the repository is missing", kind="place_repository", first=first, second=second,
            hint=f"such as REPO/{first} {second}; maps are in the repository pond: pond/{first} {second}",
        )  # fmt: skip
    locations = [
        None if alone else parse_path(text, path=False) for alone, text in zip(bare, (first, second), strict=True)
    ]
    named = {location.repository for location in locations if location is not None}
    if len(named) > 1:
        raise Invalid(
            "these are two repositories", kind="place_repository", first=first, second=second,
            hint="both sides are of one repository",
        )  # fmt: skip
    refs = [text if path is None else path.ref for path, text in zip(locations, (first, second), strict=True)]
    return named.pop(), refs[0], refs[1]


def items(texts: list[str] | None, hint: str = "such as --meta source=nightly") -> dict[str, str]:
    """Names and values of `NAME=VALUE`.

    >>> items(["by=loader", "of=a=b"])
    {'by': 'loader', 'of': 'a=b'}

    Raises: `Invalid`.
    """
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise Invalid("no NAME=VALUE", kind="metadata_form", given=repr(text), hint=hint)
        pairs[name] = value
    return pairs


def opened(pond: str) -> PondLike:
    """The pond that holds the repositories: a folder's, or a node's.

    Raises: as `existing_pond`.
    """
    return existing_pond(pond)


@contextmanager
def repository(pond: str, name: str) -> Iterator[RepositoryLike]:
    """A repository of the pond.

    Raises: as `opened`; `NotFound`.
    """
    with opened(pond) as opened_pond:
        yield opened_pond.repository(name)
