"""The folder of a pond: its marker, its subfolders, what processes leave in them; and a pond's place, a folder or not.

pond.json      format version
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millpond.errors import Conflict, Corrupt, Invalid, Unavailable
from millpond.json_forms import FormError, JsonForm, OtherFormat
from millpond.maps.loads.loading import Loading, folder_files
from millpond.maps.model.keyspaces import ALERTED, MAINTENANCE, QUEUE
from millpond.stores.files import disk_errors, make_folder, sweep_leftovers, write_file_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.clock import Clock
    from millpond.kernel.keyspace import Keyspace
    from millpond.kernel.space import Space
    from millpond.maps.log.ownership import OwnerLock
    from millpond.maps.pond_catalogue import PondCatalogue
    from millpond.stores.objects import Beside, FolderObjects

__all__ = (
    "FOLDERS", "MARKER", "OLDEST_FORMAT", "POND_FORMAT", "StorageFolder", "HeadNote", "StorageLocation", "check_folder",
    "holds_something", "host_name", "is_alive", "make_folders", "marker_of", "read_marker", "read_note", "recover",
    "sweep_pond", "write_marker", "writer_folder",
)  # fmt: skip

POND_FORMAT = 5
"""The folders of a pond and the rows of its space: it is read before any of them."""
OLDEST_FORMAT = 3
"""The oldest format that is migrated: see `millpond/migrations.py`."""
_OTHER_FORMAT = "open it with the version of Millpond that wrote it, or load its sources into a new pond"
FOLDERS = ("writer", "parts", "shards", "snapshots", "quarantine")
_SWEPT = (".", *FOLDERS, "shards/*", "snapshots/*")
"""The folders where files are written and folders removed; what lies deeper goes with its folder."""


_OWNER_ONLY = 0o700
"""Keys that sign URLs, hashes of tokens and all data lie below. Who shares a pond's folder changes its mode."""


def check_folder(folder: Path, create: bool) -> int:
    """Make the folder of a pond, if it is missing and may be made, its owner's alone; the format of what is there.

    Raises: `Invalid` for a folder without a pond, or with one of another format; `Corrupt` for a damaged marker.
    """
    marker = folder / "pond.json"
    if marker.exists():
        return read_marker(marker.read_bytes(), folder, marker)
    if not create:
        raise Invalid("there is no pond here", kind="pond_missing", folder=folder, hint="make one: millpond init")
    if folder.exists() and not folder.is_dir():
        raise Invalid("that is a file, not a folder", kind="pond_folder", folder=folder, hint="name an empty folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / "space").exists():
        raise Invalid("the folder holds something else", kind="pond_folder", folder=folder, hint="name an empty folder")
    make_folders(folder, "space", *FOLDERS)
    write_marker(folder)
    return POND_FORMAT


def make_folders(folder: Path, *names: str) -> None:
    """Make a folder, its owner's alone, with these below it.

    Raises: `Unavailable` when the disk is full, or refuses it.
    """
    with disk_errors(folder):
        make_folder(folder, _OWNER_ONLY)
        for name in names:
            (folder / name).mkdir(parents=True, exist_ok=True)


def write_marker(folder: Path) -> None:
    """Note that all of a pond has the present format."""
    write_file_atomically(folder / "pond.json", MARKER)


@dataclass(frozen=True, slots=True)
class _Marker:
    """The content of `pond.json`: nothing but the number of the pond's format."""


_MARKER = JsonForm(_Marker, format=POND_FORMAT)
MARKER = _MARKER.encode(_Marker())
"""The bytes of the marker of a new pond."""


@dataclass(frozen=True, slots=True)
class HeadNote:
    """A note in `pond.json`, of a pond in a bucket whose rows lie in a database: its address, and the pond's id."""

    space: str
    id: str


_NOTES = [JsonForm(HeadNote, format=number) for number in range(OLDEST_FORMAT, POND_FORMAT + 1)]


def marker_of(note: HeadNote | None) -> bytes:
    """The bytes of a marker."""
    return MARKER if note is None else _NOTES[-1].encode(note)


def read_note(data: bytes) -> HeadNote | None:
    """The note in a marker; None when it has none, or none that can be read."""
    for form in _NOTES:
        with suppress(FormError):
            return form.decode(data)
    return None


def read_marker(data: bytes, pond: Path | str, marker: Path | str) -> int:
    """The format of the pond that has a marker.

    Raises: `Invalid` for a format that is not known; `Corrupt`.
    """
    try:
        _MARKER.decode(data)
    except OtherFormat as error:
        if isinstance(error.format, int) and OLDEST_FORMAT <= error.format < POND_FORMAT:
            return error.format
        raise Invalid(
            "the pond has a format this version does not know", kind="pond_format", folder=pond,
            found=error.format, known=POND_FORMAT, hint=_OTHER_FORMAT,
        ) from error  # fmt: skip
    except FormError as error:
        raise Corrupt(
            "the pond's marker cannot be read", kind="pond_damaged", file=marker, reason=error,
            hint=f'write {{"format": {POND_FORMAT}}} into it when this version made the pond; of a bucket whose '
            'rows lie in a database, with "space" and "id", as the row "pond" there has them, as "home" and "id"',
        ) from error  # fmt: skip
    return POND_FORMAT


def is_alive(written: str) -> bool:
    """True when the process that made a folder in `writer/` may still be writing: false only for a dead one of ours."""
    host, pid, _ = written.rsplit("-", 2) if written.count("-") >= 2 else ("", "", "")
    if host != host_name() or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def holds_something(folder: Path) -> bool:
    """True when something is in a folder, or in its place."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True


def host_name() -> str:
    """This machine, as folders are named after it: a pond may lie on a disk that several machines mount."""
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())


def writer_folder(folder: Path, clock: Clock, pid: int | None = None) -> Path:
    """The name of a fresh folder for parts: removed after its process died when nobody adopted them.

    `pid`: of the process that outlives the writing, this one by default.
    """
    return folder / "writer" / f"{host_name()}-{os.getpid() if pid is None else pid}-{clock.random_id()}"


def sweep_pond(folder: Path) -> None:
    """Remove what a crash, or a removal that could not end, left half written or half removed in a pond's folder."""
    for within in _SWEPT:
        sweep_leftovers(folder, within)


# -- the place of a pond -----------------------------------------------------------------------------


class StorageLocation(Protocol):
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

    def beside(self, part: str) -> Beside | None:
        """The objects beside the space in which a part keeps what is large; None where the space has room for it."""

    def beyond_purges(self) -> Iterable[str]:
        """A line for each place of the pond that may have rows of layered maps, and that a purge does not look at."""

    def serve(self, owner: OwnerLock) -> None:
        """Let an opening of the pond be a node that serves it.

        Raises: `Conflict`, kind `pond_served`, where there can be one alone, and is one.
        """

    def refuse(self, part: str) -> None:
        """Let a part be used that works here.

        Raises: `Invalid`, kind `bucket_unsupported`, naming the part and the way out.
        """


@dataclass(frozen=True, slots=True)
class StorageFolder:
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

    def beside(self, part: str) -> None:
        """None: rows lie on the disk."""

    def beyond_purges(self) -> tuple[str, ...]:
        """None."""
        return ()

    def serve(self, owner: OwnerLock) -> None:
        """Be the one node of the folder."""
        owner.serve()

    def refuse(self, part: str) -> None:
        """Refuse nothing."""


# -- opening it --------------------------------------------------------------------------------------


def recover(loading: Loading, owner: OwnerLock, catalogue: PondCatalogue) -> None:
    """Finish what a crash cut off; a pond that was closed in order costs a look at its folders and its queue."""
    if not owner.serving and owner.served():
        return  # the node that serves the pond sees to it
    if holds_something(loading.folder / "clone"):
        from millpond.maps.log.clone import resume_clone

        resume_clone(loading.folder, loading.space)
    if any(holds_something(loading.folder / name) for name in ("writer", "parts", "quarantine")):
        loading.loads.recover(is_alive)
    if not owner.serving and _waits(loading.space):
        # What a crash or a full disk left waiting. Who only wants to ask need not wait for it to be merged, nor
        # be kept from it by a map that is damaged.
        from millpond.maps.loads.merge_queue import merge_queued

        with suppress(Unavailable, Corrupt, Conflict), owner.writing():
            merge_queued(loading.loads, loading.shard_of, wait_seconds=0)
    if not owner.serving and _holds(loading.space, ALERTED):
        loading.tell_alerts()
    catalogue.finish_drops()
    sweep_pond(loading.folder)


def _waits(space: Space) -> bool:
    """True when parts or orders of maintenance are queued."""
    return _holds(space, QUEUE, MAINTENANCE)


def _holds(space: Space, *keyspaces: Keyspace) -> bool:
    with space.read() as tx:
        return any(next(tx.keys(keyspace.range()), None) is not None for keyspace in keyspaces)
