"""Restoring a backup: a pond in a new folder, at the position of the backup or an earlier one.

The pond is assembled in `<folder>.restoring`, and gets its name when it is whole and was verified. A restore that was
interrupted begins anew.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from millpond.client.transfer import Fetched
from millpond.clock import Clock
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.kernel.scans import put_rows
from millpond.kernel.steps import step
from millpond.maps.alerts.rules import forget_misfits
from millpond.maps.loads.pond_folder import holds_something
from millpond.maps.log.clone import own_rows
from millpond.maps.log.log import Entry
from millpond.maps.model.keyspaces import ALERTS
from millpond.maps.parts.part import PartManifest
from millpond.migrations import migrate_rows
from millpond.nodes.backups.layout import (
    Backup,
    StoredObject,
    fetch_object,
    fetch_part,
    file_name,
    log_entries,
    stored_chunks,
    stored_objects,
)
from millpond.nodes.backups.stored_layers import restore_layers
from millpond.nodes.folder_content import objects_folder
from millpond.nodes.replication.log_apply import LogApplier
from millpond.nodes.replication.part_sources import PartSources
from millpond.nodes.replication.peer import LogPage
from millpond.nodes.replication.source import PondFile, ShardFile, SpaceFile
from millpond.pond import Pond, open_pond
from millpond.stores.files import remove_tree, sync
from millpond.stores.objects import FolderObjects, Objects
from millpond.stores.objects.bringing import bring

__all__ = ("BackupPeer", "Restored", "restore_backup")

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored pond, closed."""

    folder: Path
    position: int
    maps: int
    rows: int


def restore_backup(
    place: Objects, backup: Backup, folder: Path, clock: Clock, *, position: int | None = None,
    advance: Callable[[int], object] = lambda _entries: None,
) -> Restored:  # fmt: skip
    """Make a pond in `folder`, which must not exist or be empty; `position`: as of this entry of the log.

    `advance` is called with the number of entries as they are applied.

    Raises:
        Invalid: the folder holds something, or the backup does not reach to that position.
        Corrupt: the backup is damaged, or what was restored does not verify. The folder stays as it was.
        Unavailable: the place cannot be reached, or the disk is full.
    """
    target = backup.position if position is None else position
    if not backup.earliest <= target <= backup.position:
        raise Invalid(
            "the backup does not reach to this position", kind="restore_position", position=target, backup=backup.id,
            first=backup.earliest, last=backup.position, hint="'millpond backup list PLACE' shows each one's end",
        )  # fmt: skip
    if holds_something(folder):
        raise Invalid("the folder holds something", kind="restore_folder", folder=folder,
                      hint="name a folder that does not exist")  # fmt: skip
    assembly = folder.with_name(f"{folder.name}.restoring")
    remove_tree(assembly)
    restored = _assembled(place, backup, assembly, clock, target, advance)
    step("restore.assembled")
    if folder.exists():
        folder.rmdir()
    assembly.rename(folder)
    sync(folder.parent)
    step("restore.renamed")
    return Restored(folder, target, *restored)


def _assembled(
    place: Objects, backup: Backup, folder: Path, clock: Clock, target: int,
    advance: Callable[[int], object],
) -> tuple[int, int]:  # fmt: skip
    """Assemble the pond in a folder and verify it; its maps that have rows, and these."""
    with open_pond(folder, clock=clock, events_reports=False) as pond:  # its events would stand before those that come
        peer = BackupPeer(place, backup, folder / "fetched", target)
        sources = PartSources(folder, _NoUploads(), lambda: [peer])
        applier = LogApplier(
            pond, sources, clock, stopping=threading.Event(), report=lambda _what: None, layers_come=True
        )  # fmt: skip
        pond.log.join(backup.pond)
        applier.clone(peer)
        step("restore.cloned")
        at = pond.log.position()[0]
        while at < target:
            applier.next_page(peer, 0)
            pond.merge()
            before, at = at, pond.log.position()[0]
            advance(at - before)
        sources.sweep()
        restore_layers(place, backup, pond)
        _restore_own(place, backup, pond, folder / "fetched")
        report = pond.verify()
        if report.problems:
            raise Corrupt(
                "what was restored does not verify", kind="restore_damaged", backup=backup.id, position=at,
                problems=[str(problem) for problem in report.problems[:5]],
                hint="restore another backup: 'millpond backup list PLACE'",
            )  # fmt: skip
        rows = [pond_map.rows.stats().rows for pond_map in pond.maps()]
        return sum(count > 0 for count in rows), sum(rows)


def _restore_own(place: Objects, backup: Backup, pond: Pond, scratch: Path) -> None:
    """Bring back what only the folder had: objects first, then the rows that name them."""
    if backup.own is None:
        return
    objects = FolderObjects(objects_folder(pond.folder))

    def bring_back(stored: StoredObject) -> None:
        objects.put_stream(stored.name, stored_chunks(place, file_name(stored.file), stored.file.checksum))

    deque(bring(bring_back, stored_objects(place, backup, scratch)), 0)
    pond.space.write(lambda tx: tx.delete_range(ALERTS.range()))
    for stored in backup.own.rows:
        file = fetch_object(place, file_name(stored), scratch / "own.arrow", stored.checksum)
        pond.space.write(lambda tx, file=file: put_rows(tx, list(own_rows(file))))  # type: ignore[misc]
    pond.space.write(forget_misfits)
    step("restore.own_written")
    migrate_rows(pond.space, backup.own.pond_format)
    remove_tree(scratch)


class BackupPeer:
    """A backup, answering as a peer that stopped at a position."""

    def __init__(self, place: Objects, backup: Backup, scratch: Path, position: int) -> None:
        self._place, self._backup, self._scratch, self._position = place, backup, scratch, position
        self._entries: Iterator[Entry] = iter(())
        self._after = -1

    @property
    def url(self) -> str:
        """The place and the backup."""
        return f"{self._place.where}#{self._backup.id}"

    def node(self) -> dict[str, Any]:
        """`pond` and `position`."""
        return {"pond": self._backup.pond, "position": self._position, "url": self.url}

    def log(self, after: int, *, limit: int = _PAGE, wait_seconds: float = 0) -> LogPage:
        """The entries after a position, up to the one to stop at; it never waits."""
        if after != self._after:
            self._entries = log_entries(self._place, self._backup, self._scratch / "log", after)
        entries = [
            entry for entry in islice(self._entries, min(limit, _PAGE)) if entry.position <= self._position
        ]  # fmt: skip
        self._after = entries[-1].position if entries else -1
        if not entries:
            raise Corrupt(
                "the log of the backup ends too early", kind="backup_damaged", backup=self._backup.id, position=after,
                hint="restore another backup: 'millpond backup list PLACE'",
            )  # fmt: skip
        return LogPage(entries, (entries[-1].position, entries[-1].chain))

    def fetch_part(self, part_id: str, file: Path, bytes_max: int) -> PartManifest:
        """Fetch a part, checked."""
        return fetch_part(self._place, part_id, file, bytes_max)

    def fetch(self, source: PondFile, target: Path) -> Fetched:
        """Fetch a file that a clone wants.

        Raises: `NotFound`, kind `shard_empty`, when the map had no row.
        """
        backup, headers = self._backup, dict[str, str]()
        match source:
            case SpaceFile.STATE:
                stored = backup.state
                headers = {"state-position": str(backup.base_position), "millpond-pond": backup.pond}
            case SpaceFile.QUARANTINE:
                stored = backup.quarantine
            case ShardFile(definition):
                shards = [shard for shard in backup.shards if shard.incarnation == definition.incarnation]
                if not shards:
                    raise NotFound("the map has no rows yet", kind="shard_empty", map=definition.name)
                stored = shards[0].file
                headers = {"shard-position": str(shards[0].position), "shard-rows": str(shards[0].rows)}
            case _:
                raise AssertionError("a clone wants no other")
        return Fetched(fetch_object(self._place, file_name(stored), target, stored.checksum), headers, stored.bytes)


class _NoUploads:
    """No writer sends parts to a pond that is restored."""

    def uploaded(self, part_id: str) -> Path | None:
        """None."""
