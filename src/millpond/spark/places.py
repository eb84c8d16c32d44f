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
    """Where a pond is: a folder, or the URLs of its nodes by commas.

    `rights` are the session's, and go with it to executors, whose own settings win where they name some.
    """

    where: str
    rights: Rights = field(default_factory=Rights)

    @property
    def remote(self) -> bool:
        """Whether it is nodes."""
        return is_url(self.where)

    @property
    def folder(self) -> Path:
        """The folder, of a pond that is one."""
        assert not self.remote, "nodes keep their folders to themselves"
        return Path(self.where)

    def settings(self) -> Settings:
        """What this process is set to, and where it names none the driver's token and authority."""
        from millpond.settings import load_settings

        told = load_settings()
        ours = {"token": told.token or self.rights.token, "tls_ca": told.tls_ca or self.rights.tls_ca}
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
    told = pond if pond is not None else (session.conf.get(POND, None) if session else None)
    if told is None:
        raise Invalid(
            "no pond is named", kind="pond_unnamed", hint=f"pass pond=…, or set {POND}; sources take option('pond', …)"
        )
    if isinstance(told, Pond):
        return Place(str(told.folder.absolute()))
    if not isinstance(told, str | os.PathLike):
        return Place(told.where, Rights(told.settings.token, told.settings.tls_ca or ""))
    return place_named(os.fspath(told), Rights() if session is None else rights_of(session))


def rights_of(session: SparkSession) -> Rights:
    """What the session's settings say."""
    return Rights(session.conf.get(_TOKEN, None) or "", session.conf.get(_AUTHORITY, None) or "")


def place_named(told: str, rights: Rights) -> Place:
    """The place that a text names; where the rights leave something open, with what this process is set to.

    Raises: `Invalid` for URLs that are not understood.
    """
    if not is_url(told):
        return Place(str(Path(told).absolute()))  # executors work elsewhere than the driver
    from millpond.client.connections import node_urls
    from millpond.settings import load_settings

    ours = load_settings()
    return Place(",".join(node_urls(told)), Rights(rights.token or ours.token, rights.tls_ca or ours.tls_ca or ""))


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
