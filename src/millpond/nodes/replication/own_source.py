"""The content that only the folder of a node has, fetched from that node for a backup."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from millpond.client.download import Fetched, fetch_file
from millpond.client.transport import Connection
from millpond.stores.objects.protocol import ObjectInfo

__all__ = ("PeerOwn",)

_COPY_SECONDS = 900.0
"""A copy is written whole before its first byte is sent."""


class PeerOwn:
    """The content that only the folder of a peer has."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fetch_own(self, target: Path) -> Fetched:
        """Fetch the rows of its space that only its folder has.

        Raises: `NotFound` when it is of an earlier release.
        """
        return fetch_file(self._connection, "/v1/log/own", target, timeout=_COPY_SECONDS)

    def own_objects(self, after: str) -> list[ObjectInfo]:
        """A page of the objects of its repositories, by name; an empty one is the end."""
        found = self._connection.request("GET", "/v1/log/objects", query={"after": after}).json()["objects"]
        return [ObjectInfo(str(row["name"]), int(row["bytes"])) for row in found]

    def fetch_object(self, name: str, target: Path) -> Fetched:
        """Fetch an object of a repository.

        Raises: `NotFound` when it was collected meanwhile.
        """
        return fetch_file(self._connection, f"/v1/log/objects/{quote(name)}", target)
