"""The location of a pond, parsed once: a folder, or nodes by their addresses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from millpond.error_values import shown_address
from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.client.pond import RemotePond
    from millpond.clock import Clock
    from millpond.pond import Pond

__all__ = ("FolderLocation", "NodesLocation", "PondLocation", "parse_location")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FolderLocation:
    """A pond in a folder of this machine."""

    folder: Path

    def open(self, *, create: bool = True, clock: Clock | None = None, **settings: Any) -> Pond:
        """Open the pond, made if missing unless `create` is False, see `open_pond`."""
        # Arrow and LMDB are imported with the first pond, so that `import millpond` stays light.
        from millpond.pond import open_pond

        return open_pond(self.folder, create=create, clock=clock, **settings)

    def either(self, of_folder: Callable[[Path], T], of_nodes: Callable[[str], T]) -> T:
        """The result of the function for a folder."""
        return of_folder(self.folder)

    def open_existing(self, **_settings: Any) -> Pond:
        """Open the pond; the settings are those of clients, and a folder has none.

        Raises: `NotFound` when there is none.
        """
        if not (self.folder / "pond.json").is_file():
            raise NotFound(
                "there is no pond here", kind="pond_not_found", pond=self.folder,
                hint="make one with 'millpond init', or name one with --pond or MILLPOND_POND",
            )  # fmt: skip
        return self.open(create=False)


@dataclass(frozen=True, slots=True)
class NodesLocation:
    """A pond on nodes: their addresses, by commas."""

    urls: str

    def open(self, *, create: bool = True, clock: Clock | None = None, **settings: Any) -> RemotePond:
        """Open the pond that is there, whether `create` or not, see `open_nodes`."""
        from millpond.client.pond import open_nodes

        return open_nodes(self.urls, clock=clock, **settings)

    def either(self, of_folder: Callable[[Path], T], of_nodes: Callable[[str], T]) -> T:
        """The result of the function for nodes, given their addresses."""
        return of_nodes(self.urls)

    def open_existing(self, **settings: Any) -> RemotePond:
        """Open the pond.

        Raises: as `open_nodes`; `Invalid` for an address that is not understood.
        """
        return self.open(**settings)


PondLocation: TypeAlias = FolderLocation | NodesLocation


def parse_location(place: str | os.PathLike[str]) -> PondLocation:
    """The location that a text names: an address with a scheme is a node's, all else a folder.

    >>> parse_location("http://localhost:7433")
    NodesLocation(urls='http://localhost:7433')
    >>> parse_location("pond").folder.name
    'pond'

    Raises: `Invalid` for a scheme that no node has.
    """
    if not isinstance(place, str):
        return FolderLocation(Path(place))
    if place.strip().lower().startswith(("http://", "https://")):
        return NodesLocation(place)
    if "://" in place:
        raise Invalid(
            "the address of a node is not understood", kind="node_url", url=shown_address(place),
            hint="such as http://localhost:7433",
        )  # fmt: skip
    return FolderLocation(Path(place))
