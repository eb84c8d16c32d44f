"""The place of a pond's repositories: rows in the pond's own space, or in a database that several servers share.

    pond's space                         the shared space
    versions/place  URL, without its     versions/shared   uid, and the place that `local://` names there
                    password; uid        versions/…        the rows of all repositories

The place is written down in the pond, so that every process which opens the folder finds the same repositories.

Invariants:
* A pond has one place for repositories. It moves only to a database that holds the same repositories: its uid says so.
* A pond with repositories in its own space takes no other place.
* `local://` names one place for all who share a space: their folders may be on different machines.
* A password is never written down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from millpond.error_values import without_password
from millpond.errors import Closed, Invalid
from millpond.json_forms import JsonForm
from millpond.kernel.keys import KeyRange
from millpond.kernel.space import ReadTransaction, RemoteSpace, Space, Transaction
from millpond.stores.objects import ObjectStore, open_objects
from millpond.stores.objects.sources import Source, open_source
from millpond.versions.keyspaces import LOCATION, REPOSITORY, SHARED

__all__ = ("LOCAL", "OpenLocation", "VersionsLocation", "open_location")

LOCAL = "local://"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VersionsLocation:
    """The place of a pond's repositories, as its owner names it.

    `space`: `postgresql://user@server/database#name`; empty is the pond's own. `objects`: the place below which
    repositories that name none put their bytes, a bucket or a folder.
    """

    space: str = ""
    objects: str = ""


@dataclass(frozen=True, slots=True)
class _Noted:
    """The row in the pond: where its repositories are, and by which uid they are known."""

    space: str
    uid: str


@dataclass(frozen=True, slots=True)
class _Shared:
    """The row in the shared space."""

    uid: str
    objects: str = ""


_NOTED, _SHARED = JsonForm(_Noted), JsonForm(_Shared)


@dataclass(frozen=True, slots=True)
class OpenLocation:
    """The place of repositories, ready to use: their space, opened with its first use, and their objects."""

    space: Space
    open_store: Callable[[str], ObjectStore]
    open_source: Callable[[str], Source]
    """Opens the root of addresses that other programs write."""
    namespace: Callable[[str], str]
    """The namespace of a repository that names none, by a name of its own."""
    close: Callable[[], None]


def open_location(
    own: Space, folder: Path, stated: VersionsLocation, random_id: Callable[[], str], *, base: str = ""
) -> OpenLocation:  # fmt: skip
    """The place of the repositories of the pond in a folder; a place that is given is compared with what is there.
    `base`: where the pond's own are, by default its folder.

    Raises: `Invalid` for a place that is not the pond's; `Unavailable` when a given server cannot be reached.
    """
    with own.read() as tx:
        noted, here = _noted(tx), next(tx.keys(REPOSITORY.range()), None) is not None
    if stated.space and noted is None and here:
        raise Invalid(
            "the pond has its repositories in its own folder", kind="versions_place", folder=folder,
            hint="leave versions_space out, or make a new pond for the database",
        )  # fmt: skip
    if not stated.space and noted is None:
        base = base or str(folder / "repositories")
        return OpenLocation(
            own, _opener(lambda: base), _source_opener(lambda: base), _naming(lambda: stated.objects), _nothing
        )  # fmt: skip
    shared = _SharedSpace(own, stated, noted, random_id)
    if stated.space:
        shared.inner()
    return OpenLocation(
        shared, _opener(shared.objects), _source_opener(shared.objects),
        _naming(lambda: stated.objects or shared.objects()), shared.close,
    )  # fmt: skip


def _nothing() -> None:
    """Close nothing: the space is the pond's."""


def _naming(base: Callable[[], str]) -> Callable[[str], str]:
    def name(own: str) -> str:
        location = base()
        return f"{location.rstrip('/')}/{own}" if location else f"{LOCAL}{own}"

    return name


def _opener(base: Callable[[], str]) -> Callable[[str], ObjectStore]:
    def open_store(namespace: str) -> ObjectStore:
        location = namespace
        if namespace.startswith(LOCAL):
            below = base()
            if not below:
                raise Invalid(
                    "several servers share the repositories, and local:// names a place on each of them",
                    kind="namespace_local", namespace=namespace,
                    hint="name a bucket as namespace, or set versions_objects to a place that all servers reach",
                )  # fmt: skip
            location = f"{below.rstrip('/')}/{namespace.removeprefix(LOCAL)}"
        return open_objects(location)

    return open_store


def _source_opener(base: Callable[[], str]) -> Callable[[str], Source]:
    def open_root(root: str) -> Source:
        below = base() if root == LOCAL else ""
        folder = Path(below) if below and "://" not in below else None
        return open_source(root, folder)

    return open_root


class _SharedSpace:
    """A space in a database, opened with its first use: those who work with maps alone need no server."""

    def __init__(
        self, own: Space, stated: VersionsLocation, noted: _Noted | None, random_id: Callable[[], str]
    ) -> None:
        self._own, self._settings, self._noted, self._random_id = own, stated, noted, random_id
        self._inner: RemoteSpace | None = None
        self._objects = ""
        self._lock = threading.Lock()
        self._closed = False

    def read(self, *, wait: bool = True) -> AbstractContextManager[ReadTransaction]:
        return self.inner().read(wait=wait)

    def write(self, change: Callable[[Transaction], T]) -> T:
        return self.inner().write(change)

    def read_together(
        self, keys: Sequence[bytes], ranges: Sequence[KeyRange]
    ) -> tuple[dict[bytes, bytes], list[bytes | None]]:
        return self.inner().read_together(keys, ranges)

    def close(self) -> None:
        """Close the space, if it is open; it stays closed."""
        with self._lock:
            self._closed = True
            inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()

    def objects(self) -> str:
        """The place that `local://` names for all who share the space; empty when none was set."""
        self.inner()
        return self._objects

    def inner(self) -> RemoteSpace:
        inner = self._inner
        return inner if inner is not None else self._open()

    def _open(self) -> RemoteSpace:
        with self._lock:
            if self._closed:
                raise Closed("the pond is closed", kind="pond_closed", hint="open it again")
            if self._inner is None:
                url = self._settings.space or (self._noted.space if self._noted else "")
                inner = _open_space(url)
                try:
                    self._settle(inner, url)
                except BaseException:
                    inner.close()
                    raise
                self._inner = inner
            return self._inner

    def _settle(self, inner: Space, url: str) -> None:
        """Compare the two rows, and write down what is new in them."""
        uid = self._noted.uid if self._noted else self._random_id()
        shared = inner.write(lambda tx: _share(tx, uid, self._settings.objects, new=self._noted is None))
        self._objects = shared.objects
        noted = _Noted(without_password(url), shared.uid)
        if noted != self._noted:
            self._own.write(lambda tx: tx.put(LOCATION.packed, _NOTED.encode(noted)))
            self._noted = noted


def _share(tx: Transaction, uid: str, objects: str, *, new: bool) -> _Shared:
    """The row of the shared space, made if it is missing; a pond that knew another one is refused."""
    row = tx.get(SHARED.packed)
    share = _decoded(_SHARED, row) if row is not None else None
    if not new and (share is None or share.uid != uid):
        raise Invalid(
            "the database does not hold the repositories of this pond", kind="versions_place", expected=uid,
            found=None if share is None else share.uid,
            hint="leave versions_space out to use the place that was written down, or restore the database",
        )  # fmt: skip
    if share is not None and objects and share.objects and objects != share.objects:
        raise Invalid(
            "the repositories of the database have another place for their bytes", kind="versions_place",
            expected=share.objects, found=objects, hint="give all servers the same versions_objects",
        )  # fmt: skip
    shared = replace(share, objects=share.objects or objects) if share is not None else _Shared(uid, objects)
    if shared != share:
        tx.put(SHARED.packed, _SHARED.encode(shared))
    return shared


def _noted(tx: ReadTransaction) -> _Noted | None:
    row = tx.get(LOCATION.packed)
    return None if row is None else _decoded(_NOTED, row)


def _decoded(form: JsonForm[T], row: bytes) -> T:
    return form.stored(row, "the place of repositories cannot be read", kind="versions_place_damaged")


def _open_space(url: str) -> RemoteSpace:
    if not url.startswith(("postgresql://", "postgres://")):
        raise Invalid(
            "not a place for the rows of repositories", kind="versions_place", place=without_password(url),
            hint="such as postgresql://user@server:5432/database#name",
        )  # fmt: skip
    # psycopg is an extra: most ponds have their rows in their folder
    from millpond.stores.postgres.space import PostgresSpace

    return PostgresSpace(url)
