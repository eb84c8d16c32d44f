"""Checking backups, and removing old ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from millpond.clock import Clock
from millpond.errors import Corrupt, Invalid, MillpondError, NotFound
from millpond.kernel.steps import step
from millpond.nodes.backups.layout import (
    Backup,
    StoredFile,
    fetch_part,
    file_name,
    list_backups,
    log_entries,
    part_name,
    stored_chunks,
    stored_objects,
)
from millpond.nodes.backups.lease import leased
from millpond.nodes.backups.stored_layers import LAYERS_FOLDER, check_layers, layer_files
from millpond.nodes.replication.part_sources import part_ids
from millpond.stores.objects import Objects, ObjectStore
from millpond.stores.objects.bringing import bring

__all__ = ("Pruned", "check_backup", "prune")

_DELETED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Pruned:
    """The ids of removed backups, and the number of removed objects, of files and parts."""

    backups: tuple[str, ...]
    objects: int


def check_backup(
    place: Objects, backup: Backup, scratch: Path, advance: Callable[[int], object] = lambda _bytes: None
) -> list[str]:
    """Read all that a backup names, and compare checksums; the problems found, each naming its object."""
    problems: list[str] = []
    files = {file.checksum: file for file in backup.files()}
    try:
        files |= {stored.file.checksum: stored.file for stored in stored_objects(place, backup, scratch)}
    except MillpondError as error:
        problems.append(f"the list of objects: {error.message}")

    def fault(file: StoredFile) -> list[str]:
        try:
            deque(stored_chunks(place, file_name(file), file.checksum), 0)
        except (NotFound, Corrupt) as error:
            return [f"{file_name(file)}: {error.message}"]
        return []

    for file, faults in zip(files.values(), bring(fault, files.values()), strict=True):
        problems += faults
        advance(file.bytes)
    problems += check_layers(place, backup)
    try:
        for entry in log_entries(place, backup, scratch):
            for part_id in part_ids([entry]):
                problems += _part_problems(place, part_id, scratch, advance)
    except MillpondError as error:
        problems.append(f"the log: {error.message}")
    return problems


def _part_problems(place: Objects, part_id: str, scratch: Path, advance: Callable[[int], object]) -> Iterator[str]:
    try:
        advance(fetch_part(place, part_id, scratch / "part").data_bytes)
    except (NotFound, Corrupt, Invalid) as error:
        yield f"parts/{part_id}: {error.message}"


def prune(place: ObjectStore, keep: int, scratch: Path, clock: Clock) -> Pruned:
    """Remove all backups but the newest `keep` of each pond, then the files and parts that no other backup names.

    Raises: `Invalid` for fewer than one; `Conflict`, kind `backup_busy`; `Corrupt` when a backup cannot be read:
    nobody knows then what it needs.
    """
    if keep < 1:
        raise Invalid("at least one backup stays", kind="prune_keep", keep=keep, hint="name how many stay, 1 or more")
    with leased(place, clock) as lease:
        backups = list_backups(place)
        ponds = {backup.pond for backup in backups}
        staying = {id(b) for pond in ponds for b in [b for b in backups if b.pond == pond][-keep:]}
        gone = [backup for backup in backups if id(backup) not in staying]
        # First what names, then what is named: whatever is interrupted, a backup that is listed is whole.
        lease.confirm()
        place.delete(*(f"backups/{backup.id}.json" for backup in gone))
        step("prune.backups_deleted")
        lease.extend()
        needed = {name for b in backups if id(b) in staying for name in _names(place, b, scratch)}
        removed = 0
        for folder in ("files", "parts", LAYERS_FOLDER):
            names = [info.name for info in place.list(folder) if info.name not in needed]
            for at in range(0, len(names), _DELETED_AT_ONCE):
                lease.confirm()
                place.delete(*names[at : at + _DELETED_AT_ONCE])
            removed += len(names)
        step("prune.files_deleted")
    return Pruned(tuple(backup.id for backup in gone), removed)


def _names(place: Objects, backup: Backup, scratch: Path) -> Iterator[str]:
    yield from map(file_name, backup.files())
    yield from (file_name(stored.file) for stored in stored_objects(place, backup, scratch))
    yield from layer_files(place, backup)
    for entry in log_entries(place, backup, scratch):
        yield from map(part_name, part_ids([entry]))
