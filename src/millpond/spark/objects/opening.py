"""The repository that a Spark call names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.pond import Pond
from millpond.spark.locations import Location, PondLike, SparkFolder, opened

if TYPE_CHECKING:
    from millpond.versions.repository import Repository

__all__ = ("open_repository",)


@contextmanager
def open_repository(pond: PondLike | None, location: Location, name: str) -> Iterator[Repository]:
    """A repository of the pond at a place, for as long as this lasts.

    Raises: `NotFound`; `Invalid` for a pond on nodes.
    """
    if not isinstance(location, SparkFolder):
        raise Invalid(
            "the driver opens the pond of repositories itself", kind="repositories_remote", pond=location.where,
            hint="name the pond's folder; where servers share a database, any folder that names it will do",
        )  # fmt: skip
    with opened(pond, location) as opened_pond:
        assert isinstance(opened_pond, Pond), "the pond of a folder"
        yield opened_pond.repository(name)
