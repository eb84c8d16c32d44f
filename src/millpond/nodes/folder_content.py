"""The content of one folder alone: neither replicas nor backups have a copy of it.

Repositories and streams of events are rows of the folder's space that the log does not bring, and objects beside it.
Those in a database, or in Redis, belong to no folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.events.keyspaces import HEAD
from millpond.versions.keyspaces import REPOSITORY

if TYPE_CHECKING:
    from millpond.kernel.space import Space

__all__ = ("only_here",)

_KEYSPACES = {"repositories": REPOSITORY, "streams of events": HEAD}


def only_here(space: Space) -> list[str]:
    """The kinds of content that only this folder has, named as a reader knows them."""
    with space.read() as tx:
        return [kind for kind, keyspace in _KEYSPACES.items() if next(tx.keys(keyspace.range()), None) is not None]
