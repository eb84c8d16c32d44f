"""The repository that a Spark call names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.pond import Pond
from millpond.spark.places import FolderPlace, Place, PondLike, opened

if TYPE_CHECKING:
    from millpond.versions.repository import Repository

__all__ = ("open_repository",)


@contextmanager
def open_repository(pond: PondLike | None, place: Place, name: str) -> Iterator[Repository]:
    """A repository of the pond at a place, for as long as this lasts.

    Raises: `NotFound`; `Invalid` for a pond on nodes.
    """
    if not isinstance(place, FolderPlace):
        raise Invalid(
            "the driver opens the pond of repositories itself", kind="repositories_remote", pond=place.where,
            hint="name the pond's folder; where servers share a database, any folder that names it will do",
        )  # fmt: skip
    with opened(pond, place) as opened_pond:
        assert isinstance(opened_pond, Pond), "the pond of a folder"
        yield opened_pond.repository(name)
