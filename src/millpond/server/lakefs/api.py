"""The routes of the API of versions."""

from __future__ import annotations

from millpond.server.dispatch import Route
from millpond.server.lakefs.routes import (
    accounts,
    branches,
    bulk,
    commits,
    diffs,
    dumps,
    imports,
    installation,
    links,
    maintenance,
    merges,
    object_writes,
    objects,
    plumbing,
    repositories,
    resets,
    settings,
    signed,
)

__all__ = ("ROUTES",)

ROUTES: tuple[Route, ...] = tuple(
    route
    for module in (
        installation, accounts, repositories, branches, resets, commits, diffs, merges, settings, maintenance, dumps,
        objects, object_writes, links, imports, bulk, signed, plumbing,
    )
    for route in module.routes.routes
)  # fmt: skip
