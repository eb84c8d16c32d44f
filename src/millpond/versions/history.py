"""The log of a repository, also by the paths that commits changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from millpond.ranges import diff
from millpond.versions.graph.commits import Commit, commit_not_found, find_commit
from millpond.versions.graph.history import Window, log
from millpond.versions.objects.entries import IDENTITY
from millpond.versions.staging.reads import find_in_index

if TYPE_CHECKING:
    from millpond.versions.repository_context import Site

__all__ = ("filtered_log",)


def filtered_log(
    site: Site, start: str, window: Window | None, paths: tuple[str, ...], prefixes: tuple[str, ...], limit: int | None
) -> Iterator[Commit]:
    """The commits from one back; those alone, merges left out, that changed a path or something below a prefix."""

    def load(id_: str) -> Commit:
        with site.space.read() as tx:
            newest = find_commit(tx, site.graph.commits, id_)
        if newest is None:
            raise commit_not_found(id_)
        return newest

    commits = log(load, start, window)
    if paths or prefixes:
        empty = site.empty_index().id

        def touched(commit: Commit) -> bool:
            before = load(commit.parents[0]).tree if commit.parents else empty
            return not commit.merge and _changed(site, before, commit.tree, paths, prefixes)

        commits = filter(touched, commits)
    return islice(commits, limit)


def _changed(site: Site, old: str, new: str, paths: tuple[str, ...], prefixes: tuple[str, ...]) -> bool:
    if old == new:
        return False
    for path in paths:
        before, after = (find_in_index(site, index, path) for index in (old, new))
        if before is None or after is None:
            if before is not after:
                return True
        elif not before.same(after):
            return True
    a, b = site.index(old), site.index(new)
    return any(
        next(diff(site.ranges, a, b, prefix=prefix, same=IDENTITY, limit=1), None) is not None for prefix in prefixes
    )
