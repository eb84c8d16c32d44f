"""The place of a pond: a folder, or a bucket with a folder of this machine before it.

What a pond needs of its place is here; all else of a pond is the same wherever it lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from millpond.maps.loads.loading import folder_files
from millpond.maps.loads.pond_folder import check_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from millpond.kernel.space import Space
    from millpond.stores.objects import FolderObjects

__all__ = ("FolderPlace", "PondPlace")


class PondPlace(Protocol):
    """A place that a pond lies at."""

    @property
    def folder(self) -> Path:
        """The folder on this machine: of a pond in a bucket it has locks, unfinished work, and copies."""

    @property
    def address(self) -> str:
        """The address that objects of the pond begin with: `local:///data/pond`, `s3://bucket/pond`."""

    @property
    def repositories(self) -> str:
        """The place below which repositories keep their objects."""

    def check(self, *, create: bool) -> int:
        """The format of the pond that is there, made if missing and `create`.

        Raises: `Invalid` when something else is there or, without `create`, no pond.
        """

    def open_space(self) -> Space:
        """The space of the pond."""

    def open_files(self, folder: Path) -> FolderObjects:
        """The files of a map, by the folder that they have on this machine."""

    def refuse(self, part: str) -> None:
        """Let a part be used that works here.

        Raises: `Invalid`, kind `bucket_unsupported`, naming the part and the way out.
        """


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A folder, with all parts of a pond."""

    folder: Path
    space: Callable[[Path], Space]

    @property
    def address(self) -> str:
        """The folder, as objects name it."""
        return f"local://{self.folder.resolve()}"

    @property
    def repositories(self) -> str:
        """A folder of the pond."""
        return str(self.folder / "repositories")

    def check(self, *, create: bool) -> int:
        """The format of the pond in the folder."""
        return check_folder(self.folder, create)

    def open_space(self) -> Space:
        """The space in the folder."""
        return self.space(self.folder / "space")

    def open_files(self, folder: Path) -> FolderObjects:
        """The files in a folder of the pond."""
        return folder_files(folder)

    def refuse(self, part: str) -> None:
        """Refuse nothing."""
