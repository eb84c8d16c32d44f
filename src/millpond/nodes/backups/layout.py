"""The files of a place for backups: a bucket, or a folder.

    backups/<id>.json         one backup: the names of all that belongs to it. Written last
    files/<xxh3_128>          a shard, the state of a space, the quarantined parts, some entries of the log, some rows
                              that only the folder has, an object of a repository, the list of these
    parts/<part id>.part      a part that entries of the log bring: the stream in which it travels between nodes
    maps/<map>.<incarnation>/…  the layers of a map, see `stored_layers.py`
    current.json              the creation or the clean-up that is at work, see `lease.py`

A backup is a *base* and a piece of the log. The base is the state of the pond's space at `base_position`, and a copy of
each shard, every one taken at that position or later; layers are as of the end of the log. The log has all entries from
the base to `position`. A restore takes the base and applies the entries, which changes nothing in shards that have them
already; so all maps end at one position, although the pond was written to while it was copied.

What only the folder has (repositories, streams of events, runs of workflows) is of one moment, and that is before the
end of the log: what these rows say was loaded is in the maps.

Invariants:
* A backup is listed when all that it names is there, and not before.
* A file is named by its content, a part by its rows: what two backups share is stored once.
* `base_position` ≤ the position of every shard ≤ `position`, and the log has no gap between the first and the last.
* Of one place, one creation or clean-up is at work at a time; one that lost its lease changes nothing more.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from millpond.errors import Corrupt, Invalid, NotFound
from millpond.json_forms import FormError, JsonForm, OtherFormat, format_of, parse_object, stable_json
from millpond.kernel.pieces import pieces
from millpond.maps.layered.stored_heads import StoredLayers
from millpond.maps.log.log import Entry
from millpond.maps.parts.part import PartManifest
from millpond.maps.parts.partial import PartialPart
from millpond.maps.parts.stream import PART_BYTES_MAX, Head, check_part_size
from millpond.stores.files import disk_errors, whole_file
from millpond.stores.objects import FolderObjects, Objects, ObjectStore, open_objects
from millpond.stores.objects.bringing import object_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


__all__ = (
    "BACKUP_FORMAT", "Backup", "LogChunk", "StoredFile", "StoredObject", "StoredOwn", "StoredShard",
    "backup_id", "fetch_object", "fetch_part", "file_name", "find_backup", "list_backups", "log_entries",
    "newest_backup", "open_location", "part_name", "stored_chunks", "stored_objects", "write_backup", "write_entries",
    "write_objects",
)  # fmt: skip

BACKUP_FORMAT = 6
"""The form of a backup's JSON, and of all that it names but shards and parts, which carry their own numbers."""
READ_BYTES = 8 << 20
OLDEST_FORMAT = 3
"""The oldest format that is read: before it, parts were zips."""
_FOLDER = "backups"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in `files/`: its checksum, which is its name, and its bytes."""

    checksum: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShard:
    """A copy of a map's shard. Everything up to `position` of the log that is about the map is in it."""

    map: str
    incarnation: str
    position: int
    rows: int
    file: StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Entries of the log, the first and the last included, as JSON lines in gzip."""

    first: int
    last: int
    file: StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOwn:
    """The content that only the folder had; `kinds` are named as a reader knows them.

    `rows` are those of the space, in pieces; `objects` are pieces of the list of the objects of repositories, as JSON
    lines in gzip. `pond_format` is that of the rows.
    """

    kinds: tuple[str, ...]
    pond_format: int
    rows: tuple[StoredFile, ...]
    objects: tuple[StoredFile, ...]
    objects_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """One backup; `base` is the id of the backup whose base it shares, its own when it brought one.

    `left_out`: what the pond had in other places, and the backup has not, see `folder_content`. `own` is None in a
    backup of an earlier release, or from a node of one: such a backup holds maps alone.
    """

    id: str
    pond: str
    created_ms: int
    base: str
    base_position: int
    position: int
    chain: str
    state: StoredFile
    quarantine: StoredFile
    shards: tuple[StoredShard, ...]
    log: tuple[LogChunk, ...]
    left_out: tuple[str, ...] = ()
    own: StoredOwn | None = None
    layers: tuple[StoredLayers, ...] = ()

    @property
    def earliest(self) -> int:
        """The earliest position that a restore can stop at: the log does not bring the rows of layers."""
        if self.layers:
            return self.position
        return max([self.base_position, *(shard.position for shard in self.shards)])

    def files(self) -> Iterator[StoredFile]:
        """Everything in `files/` that belongs to it."""
        yield self.state
        yield self.quarantine
        yield from (shard.file for shard in self.shards)
        yield from (chunk.file for chunk in self.log)
        if self.own is not None:
            yield from self.own.rows
            yield from self.own.objects


_FORM = JsonForm(Backup, format=BACKUP_FORMAT)
_EARLIER = {number: JsonForm(Backup, format=number) for number in range(OLDEST_FORMAT, BACKUP_FORMAT)}
"""Forms of earlier formats, which are read: up to 5 maps that only commits and branches have are left out, up to 4 the
list of objects is one file."""


def backup_id(created_ms: int, position: int) -> str:
    """The id of a backup. Ids ascend with the time.

    >>> backup_id(1_360_346_400_042, 17)
    '20130208T180000.042Z-17'
    """
    second = datetime.fromtimestamp(created_ms // 1000, UTC)
    return f"{second:%Y%m%dT%H%M%S}.{created_ms % 1000:03}Z-{position}"


def file_name(file: StoredFile) -> str:
    """The name of a file's object."""
    return f"files/{file.checksum}"


# -- backups ------------------------------------------------------------------------------------------


def write_backup(place: ObjectStore, backup: Backup) -> None:
    """Write a backup, all of whose files are there."""
    place.put(_name(backup.id), _FORM.encode(backup))


def open_location(where: str) -> ObjectStore:
    """The files of a place; a folder is its owner's alone, as a pond is: a backup holds the keys that sign URLs."""
    return open_objects(where) if "://" in where else FolderObjects(where, 0o700)


def list_backups(place: ObjectStore) -> list[Backup]:
    """The backups of a place, the oldest first.

    Raises: `Corrupt`; `Invalid` for one of a format that this version does not know.
    """
    names = [info.name for info in place.list(_FOLDER)]
    return sorted((_read(place, name) for name in names), key=lambda backup: (backup.created_ms, backup.position))


def newest_backup(place: ObjectStore, pond: str) -> Backup | None:
    """The newest backup of a pond. Ids ascend with the time, so few are read.

    Raises: as `list_backups`.
    """
    names = sorted((info.name for info in place.list(_FOLDER)), reverse=True)
    return next((backup for name in names if (backup := _read(place, name)).pond == pond), None)


def find_backup(place: ObjectStore, id_: str | None) -> Backup:
    """The backup of that id, or the newest.

    Raises: `NotFound`, and as `list_backups`.
    """
    if id_ is None:
        if backups := list_backups(place):
            return backups[-1]
        raise NotFound(
            "there are no backups", kind="backup_not_found", place=place.where,
            hint="name the place of 'millpond backup create'",
        )  # fmt: skip
    try:
        return _read(place, _name(id_))
    except (NotFound, Invalid) as error:
        if error.kind not in ("object_not_found", "object_name"):
            raise
    raise NotFound(
        "there is no such backup", kind="backup_not_found", place=place.where, backup=id_,
        hint="'millpond backup list PLACE' shows those that are there",
    )  # fmt: skip


def _name(id_: str) -> str:
    return f"{_FOLDER}/{id_}.json"


def _read(place: ObjectStore, name: str) -> Backup:
    row = place.get(name).to_pybytes()
    try:
        number = format_of(row)
        earlier = next((form for version, form in _EARLIER.items() if version == number), None)
        return _FORM.decode(row) if earlier is None else earlier.build(_with_list(parse_object(row)))
    except OtherFormat as error:
        raise Invalid(
            "the backup has a format this version does not know", kind="backup_format", object=name,
            found=error.format, known=BACKUP_FORMAT, hint="restore it with the version of Millpond that wrote it",
        ) from error  # fmt: skip
    except FormError as error:
        raise Corrupt(
            "the backup cannot be read", kind="backup_damaged", object=name, place=place.where, reason=error,
            hint="restore another one: 'millpond backup list PLACE'",
        ) from error  # fmt: skip


def _with_list(row: dict[str, Any]) -> dict[str, Any]:
    """A backup of an earlier format, in which the list of objects may be in one piece."""
    own = row.get("own")
    if isinstance(own, dict) and isinstance(own.get("objects"), dict):
        return row | {"own": own | {"objects": [own["objects"]]}}
    return row


# -- files --------------------------------------------------------------------------------------------


def fetch_object(place: Objects, name: str, target: Path, checksum: str | None = None) -> Path:
    """Bring an object into a file, in bounded memory. As `stored_chunks`; the file is there when all of it came.

    Raises: `Unavailable` when the disk is full.
    """
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            file.writelines(stored_chunks(place, name, checksum))
    return target


def stored_chunks(place: Objects, name: str, checksum: str | None) -> Iterator[bytes]:
    """The bytes of an object, whose sum must be `checksum`.

    Raises: `NotFound`; `Corrupt`, behind the last, when they are others.
    """
    summed = xxhash.xxh3_128()
    for chunk in object_chunks(place, name):
        summed.update(chunk)
        yield chunk
    if checksum not in (None, actual := summed.hexdigest()):
        raise Corrupt(
            "a file of the backup is not what was stored", kind="backup_damaged", object=name, place=place.where,
            found=actual, hint="restore another backup: 'millpond backup list PLACE'",
        )  # fmt: skip


# -- objects of repositories --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a repository: its name in the folder, and its file."""

    name: str
    file: StoredFile


_OBJECT = JsonForm(StoredObject)


def write_objects(objects: Iterable[StoredObject], piece: Path) -> Iterator[Path]:
    """Write a list of objects piece by piece, each under the same path: the same objects are always the same bytes."""
    lines = ((stored.name, _OBJECT.encode(stored) + b"\n") for stored in objects)
    for some in pieces(lines, lambda line: line[0].encode(), lambda line: len(line[1])):
        with disk_errors(piece), piece.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as sink:
            sink.writelines(line for _, line in some)
        yield piece


def stored_objects(place: Objects, backup: Backup, scratch: Path) -> Iterator[StoredObject]:
    """The objects of a backup, in the order of their names.

    Raises: `Corrupt` when the list is damaged.
    """
    for entry in () if backup.own is None else backup.own.objects:
        file = fetch_object(place, file_name(entry), scratch / "objects.gz", entry.checksum)
        with gzip.open(file, "rb") as lines:
            for line in lines:
                yield _OBJECT.decode(line)


# -- entries of the log -------------------------------------------------------------------------------


def write_entries(file: Path, entries: Iterable[Entry]) -> None:
    """Write entries as JSON lines in gzip: the same entries are always the same bytes."""
    with disk_errors(file), file.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as sink:
        for entry in entries:
            sink.write(stable_json(entry.to_dict()) + b"\n")


def log_entries(place: Objects, backup: Backup, scratch: Path, after: int = 0) -> Iterator[Entry]:
    """The entries of a backup that follow a position.

    Raises: `Corrupt` when they cannot be read, or one is missing.
    """
    expected: int | None = None
    for chunk in backup.log:
        if chunk.last <= after:
            continue
        file = fetch_object(place, file_name(chunk.file), scratch / "log.gz", chunk.file.checksum)
        with gzip.open(file, "rb") as lines:
            for line in lines:
                entry = Entry.from_dict(parse_object(line))
                if expected not in (None, entry.position):
                    raise Corrupt(
                        "the log of the backup has a gap", kind="backup_damaged", backup=backup.id, missing=expected,
                        hint="restore another backup: 'millpond backup list PLACE'",
                    )  # fmt: skip
                expected = entry.position + 1
                if entry.position > after:
                    yield entry


def part_name(part_id: str) -> str:
    """The object that a part is stored as."""
    return f"parts/{part_id}.part"


def fetch_part(place: Objects, part_id: str, file: Path, bytes_max: int = PART_BYTES_MAX) -> PartManifest:
    """Fetch a part into a file, checked; there is no file when it raises.

    Raises: `NotFound`; `Corrupt` when it is damaged, or another part; `Invalid` when it is too large.
    """

    def admit(head: Head) -> None:
        if head.manifest.id != part_id:
            raise Corrupt(
                "the backup holds another part under this name", kind="part_other", backup=place.where, wanted=part_id,
                found=head.manifest.id,
            )  # fmt: skip
        check_part_size(head.total, bytes_max)

    received = PartialPart(file, admit)
    try:
        for chunk in object_chunks(place, part_name(part_id)):
            received.write([chunk])
        return received.seal()
    except BaseException:
        received.remove()
        raise
