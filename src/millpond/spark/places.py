"""The pond a Spark call speaks of: an open one, a folder, nodes by their URLs, or the session's own.

To other processes it travels as a `Place`: the folder's absolute path, or the URLs with what is needed to be let in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import SparkSession

from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.maps.protocols import is_url
from millpond.pond import Pond, open_pond
from millpond.spark.private_api import need_classic

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.client.transport import Nodes
    from millpond.settings import Settings

__all__ = (
    "POND", "OpenPond", "Place", "PondLike", "Rights", "place_named", "open_place", "opened", "place_of", "rights_of",
)  # fmt: skip

OpenPond: TypeAlias = "Pond | RemotePond"
PondLike: TypeAlias = "OpenPond | str | os.PathLike[str]"

POND = "spark.millpond.pond"
"""The setting of a session that names the pond for calls that name none."""

_TOKEN, _AUTHORITY = "spark.millpond.token", "spark.millpond.tls_ca"


@dataclass(frozen=True, slots=True)
class Rights:
    """With what nodes let a session in: its token, and who vouches for them."""

    token: str = field(default="", repr=False)
    tls_ca: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a pond: a folder, or the URLs of its nodes by commas.

    `rights` are the session's, and go with it to executors, whose own settings win where they name some.
    """

    where: str
    rights: Rights = field(default_factory=Rights)

    @property
    def remote(self) -> bool:
        """True when the pond is on nodes."""
        return is_url(self.where)

    @property
    def folder(self) -> Path:
        """The folder, of a pond that is one."""
        assert not self.remote, "nodes keep their folders to themselves"
        return Path(self.where)

    def settings(self) -> Settings:
        """The settings of this process, with the driver's token and authority as defaults."""
        from millpond.settings import load_settings

        settings = load_settings()
        ours = {"token": settings.token or self.rights.token, "tls_ca": settings.tls_ca or self.rights.tls_ca}
        return load_settings(**{name: value for name, value in ours.items() if value})

    def nodes(self) -> Nodes:
        """Lines to the nodes."""
        from millpond.client.transport import Nodes

        return Nodes(self.where, self.settings(), clock=SystemClock())


def place_of(pond: PondLike | None, session: SparkSession | None = None) -> Place:
    """The pond that is meant: the one given, else the session's.

    Raises: `Invalid` when there is neither, or for a session of Spark Connect.
    """
    need_classic(session)
    place = pond if pond is not None else (session.conf.get(POND, None) if session else None)
    if place is None:
        raise Invalid(
            "no pond is named", kind="pond_unnamed", hint=f"pass pond=…, or set {POND}; sources take option('pond', …)"
        )
    if isinstance(place, Pond):
        return Place(str(place.folder.absolute()))
    if not isinstance(place, str | os.PathLike):
        return Place(place.nodes.where, Rights(place.settings.token, place.settings.tls_ca or ""))
    return place_named(os.fspath(place), Rights() if session is None else rights_of(session))


def rights_of(session: SparkSession) -> Rights:
    """The token and authority in the session's settings."""
    return Rights(session.conf.get(_TOKEN, None) or "", session.conf.get(_AUTHORITY, None) or "")


def place_named(place: str, rights: Rights) -> Place:
    """The place that a text names; where the rights leave something open, with what this process is set to.

    Raises: `Invalid` for URLs that are not understood.
    """
    if not is_url(place):
        return Place(str(Path(place).absolute()))  # executors work elsewhere than the driver
    from millpond.client.connections import node_urls
    from millpond.settings import load_settings

    ours = load_settings()
    return Place(",".join(node_urls(place)), Rights(rights.token or ours.token, rights.tls_ca or ours.tls_ca or ""))


@contextmanager
def opened(pond: PondLike | None, place: Place) -> Iterator[OpenPond]:
    """The pond at a place: the one that was given when it is open, else opened for as long as this lasts.

    Raises: `Invalid` when there is no pond in the folder; `Unavailable` when no node answers.
    """
    if pond is not None and not isinstance(pond, str | os.PathLike):
        yield pond
        return
    with open_place(place) as made:
        yield made


def open_place(place: Place) -> OpenPond:
    """Open the pond at a place.

    Raises: as `opened`.
    """
    if not place.remote:
        return open_pond(place.folder, create=False, clock=SystemClock())
    from millpond.client.pond import RemotePond

    return RemotePond(place.where, place.settings(), clock=SystemClock())
