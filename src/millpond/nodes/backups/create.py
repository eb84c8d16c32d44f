"""Creating a backup of a pond that goes on working.

1. What only the folder has is fetched: rows of one moment, then the objects of repositories. Those that the rows name
   were there before them, and garbage has its grace.
2. The state of the pond's space is fetched: it names the maps, and a position.
3. Each shard is fetched, taken at that position or later.
4. The heads of layered maps are fetched, all of one position, and the layers that are not in the place already.
5. The log is fetched from the position of the state up to that one, and all parts that its entries bring.
6. The backup is written.

A backup after the first brings only the log since the last one, and its parts, which were retained for that: it shares
the base of the last one. When the log does not reach back so far, when a part is retained no longer, or when the parts
since the base have grown to more than half of its shards, it brings a base of its own. In a new base, a map that no
entry changed since the last backup shares its shard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock, get_ident
from typing import Any

import millpond.events.keyspaces
import millpond.versions.keyspaces
import millpond.workflows.keyspaces  # noqa: F401  # a client that backs a node up opens no pond, which brings them
from millpond.clock import Clock
from millpond.errors import Conflict, NotFound, Unavailable
from millpond.kernel.steps import step
from millpond.maps.layered.stored_heads import StoredLayers, read_heads
from millpond.maps.loads.pond_folder import POND_FORMAT
from millpond.maps.log.clone import definitions_of, quarantine_of, write_pieces
from millpond.maps.log.log import Entry
from millpond.maps.model.definition import MapDefinition, Store
from millpond.nodes.backups.layout import (
    READ_BYTES,
    Backup,
    LogChunk,
    StoredFile,
    StoredObject,
    StoredOwn,
    StoredShard,
    backup_id,
    file_name,
    list_backups,
    log_entries,
    part_name,
    stored_objects,
    write_backup,
    write_entries,
    write_objects,
)
from millpond.nodes.backups.lease import BackupLease, leased
from millpond.nodes.backups.stored_layers import store_layers
from millpond.nodes.replication.part_sources import part_ids
from millpond.nodes.replication.source import BackupSource, ObjectFile, ShardFile, SpaceFile, StreamFile
from millpond.stores.files import checksum_file
from millpond.stores.objects import ObjectStore, is_whole
from millpond.stores.objects.bringing import bring
from millpond.stores.objects.protocol import ObjectInfo

__all__ = ("BackupReport", "create_backup")

TRIES = 5
"""A pond whose maps are dropped and made anew meanwhile is copied anew so often."""
SMALL_BYTES_MAX = 64 << 20
"""Larger objects are fetched one at a time: the disk of `scratch` need not hold several."""
PARTS_SHARE_MAX = 0.5
"""The bytes of parts since the base, in shares of its shards, from which on a backup brings a base of its own."""
_LOG_PAGE = 1000
_MOVED = ("backup_moved", "snapshot_not_found", "index_not_found", "range_not_found", "map_not_found", "map_dropped")
_TOO_FAR = ("log_trimmed", "part_not_found", "part_nowhere")
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class BackupReport:
    """A backup and the work it took: files and bytes that were sent, and those that were stored already."""

    backup: Backup | None = None
    files: int = 0
    bytes: int = 0
    files_reused: int = 0
    bytes_reused: int = 0
    reasons: list[str] = field(default_factory=list)


def create_backup(
    source: BackupSource, place: ObjectStore, scratch: Path, clock: Clock, *, full: bool = False,
    advance: Callable[[int], object] = lambda _bytes: None,
) -> BackupReport:  # fmt: skip
    """Back a pond up as it is now; `full`: with a base of its own. `advance` is called with bytes as they are stored.

    `scratch` is an empty folder on a disk that holds the largest shard once.

    Raises:
        Conflict: kind `backup_busy`; `backup_moved` when the pond drops maps, or parts, faster than they are fetched.
        Fenced: another backup took this place over.
        Unavailable: the pond or the place cannot be reached, or a disk is full. Nothing is listed then.
    """
    with leased(place, clock) as lease:
        return _Creation(source, place, scratch, clock, lease, advance).create(full=full)


class _Creation:
    """One backup under construction."""

    def __init__(
        self, source: BackupSource, place: ObjectStore, scratch: Path, clock: Clock, lease: BackupLease,
        advance: Callable[[int], object],
    ) -> None:  # fmt: skip
        self._source, self._place, self._scratch, self._clock = source, place, scratch, clock
        self._lease, self._advance = lease, advance
        self._report, self._counting, self._large = BackupReport(), Lock(), Lock()

    def create(self, *, full: bool) -> BackupReport:
        facts = self._source.node()
        mine = [backup for backup in list_backups(self._place) if backup.pond == facts["pond"]]
        last = mine[-1] if mine else None
        own = self._own(facts, last)
        backup = None if full or last is None else self._continued(last)
        # A node of an earlier release does not send what it alone has.
        left_out = facts.get("only_here", ()) if own is None else facts["not_backed_up"]
        backup = replace(backup or self._with_base(last), left_out=tuple(left_out), own=own)
        step("backup.files_stored")
        self._lease.confirm()
        write_backup(self._place, backup)
        step("backup.written")
        self._report.backup = backup
        return self._report

    # -- what only the folder has ----------------------------------------------------------------------

    def _own(self, facts: dict[str, Any], last: Backup | None) -> StoredOwn | None:
        """The content that only the folder has; None when the source is of an earlier release."""
        if "not_backed_up" not in facts:
            return None
        fetched = self._source.fetch(SpaceFile.OWN, self._scratch / "own.arrow").file
        rows = tuple(self._store(piece) for piece in write_pieces(fetched, self._scratch / "piece.arrow"))
        fetched.unlink()
        step("backup.rows_stored")
        earlier = (
            {} if last is None else {stored.name: stored for stored in stored_objects(self._place, last, self._scratch)}
        )
        stored = bring(partial(self._object, earlier), self._listed())
        objects = [object_ for object_ in stored if object_ is not None]
        lists = tuple(self._store(piece) for piece in write_objects(objects, self._scratch / "objects.gz"))
        return StoredOwn(
            kinds=tuple(facts["only_here"]), pond_format=POND_FORMAT, rows=rows, objects=lists,
            objects_bytes=sum(stored.file.bytes for stored in objects),
        )  # fmt: skip

    def _listed(self) -> Iterator[ObjectInfo]:
        after = ""
        while page := self._source.own_objects(after):
            yield from page
            after = page[-1].name

    def _object(self, earlier: dict[str, StoredObject], info: ObjectInfo) -> StoredObject | None:
        """An object, stored; None when it was collected meanwhile. What has a name never changes."""
        stored = earlier.get(info.name)
        if stored is not None and stored.file.bytes == info.size:
            self._reused(1, info.size)
            return stored
        with self._large if info.size > SMALL_BYTES_MAX else nullcontext():
            try:
                file = self._source.fetch(ObjectFile(info.name), self._scratch / f"object-{get_ident()}").file
            except NotFound:
                return None
            return StoredObject(info.name, self._store(file))

    # -- on the base of the last one -------------------------------------------------------------------

    def _continued(self, last: Backup) -> Backup | None:
        """The last backup with the log since then; None when the pond's log and parts do not reach back so far."""
        try:
            layers, until = self._layers()
            chunk, chain = self._store_log(last.position, last.chain, until, self._room(last))
        except (NotFound, Conflict) as error:
            if error.kind not in (*_TOO_FAR, *_MOVED, "backup_grown", "log_forked"):
                raise
            _LOG.info("the backup brings a base of its own: %s", error)
            self._report.reasons.append(error.message)
            return None
        now = self._clock.now_ms()
        if chunk is None:
            return replace(last, id=backup_id(now, last.position), created_ms=now, layers=layers)
        return replace(
            last, id=backup_id(now, chunk.last), created_ms=now, position=chunk.last, chain=chain,
            log=(*last.log, chunk), layers=layers,
        )  # fmt: skip

    def _room(self, last: Backup) -> int:
        """The bytes of parts that may still come before a base of its own costs less."""
        shards = sum(shard.file.bytes for shard in last.shards)
        brought = sum(map(_part_bytes, log_entries(self._place, last, self._scratch)))
        return int(shards * PARTS_SHARE_MAX) - brought

    # -- with a base of its own ------------------------------------------------------------------------

    def _with_base(self, last: Backup | None) -> Backup:
        for attempt in range(1, TRIES + 1):
            try:
                return self._based(last)
            except (NotFound, Conflict) as error:
                if error.kind not in (*_MOVED, *_TOO_FAR):
                    raise
                _LOG.info("%s; copying anew", error)
                if attempt == TRIES:
                    raise self._moved(error.message) from error
        raise AssertionError

    def _moved(self, reason: str) -> Conflict:
        return Conflict(
            "the pond changes faster than it can be backed up", kind="backup_moved", pond=self._source.url,
            reason=reason, hint="set maps.part_retention to longer than a backup takes, such as 1d",
        )  # fmt: skip

    def _based(self, last: Backup | None) -> Backup:
        state = self._source.fetch(SpaceFile.STATE, self._scratch / "state.arrow")
        base_position, pond = int(state.headers["state-position"]), state.headers["millpond-pond"]
        definitions = definitions_of(state.file)
        stored_state = self._store(state.file)
        step("backup.state_stored")
        unchanged = self._unchanged(last, base_position)
        shards = [
            shard for definition in definitions
            if definition.store is Store.SHARD
            and (shard := unchanged.get(definition.incarnation) or self._shard(definition, base_position)) is not None
        ]  # fmt: skip
        quarantine = self._source.fetch(SpaceFile.QUARANTINE, self._scratch / "quarantine.arrow")
        if any(part.position > base_position for part in quarantine_of(quarantine.file)):
            raise self._moved("a part was quarantined")
        layers, until = self._layers()
        chunk, chain = self._store_log(base_position, None, until)
        now = self._clock.now_ms()
        id_ = backup_id(now, until if chunk is None else chunk.last)
        return Backup(
            id=id_, pond=pond, created_ms=now, base=id_, base_position=base_position,
            position=base_position if chunk is None else chunk.last, chain=chain, state=stored_state,
            quarantine=self._store(quarantine.file), shards=tuple(shards), log=() if chunk is None else (chunk,),
            layers=layers,
        )  # fmt: skip

    def _shard(self, definition: MapDefinition, position: int) -> StoredShard | None:
        try:
            fetched = self._source.fetch(ShardFile(definition, position), self._scratch / "shard.mdb")
        except NotFound as error:
            if error.kind == "shard_empty":
                return None
            raise self._moved(error.message) from error
        shard = StoredShard(
            map=definition.name, incarnation=definition.incarnation, file=self._store(fetched.file),
            position=int(fetched.headers["shard-position"]), rows=int(fetched.headers["shard-rows"]),
        )  # fmt: skip
        step("backup.shard_stored")
        return shard

    def _unchanged(self, last: Backup | None, position: int) -> dict[str, StoredShard]:
        """The shards of the last backup, by incarnation, to which nothing happened up to a position."""
        if last is None:
            return {}
        changed: set[str] = set()
        try:
            for entry in (*log_entries(self._place, last, self._scratch), *self._entries(last.position, position)):
                changed.update(entry.maps)
        except NotFound:  # the log does not reach back so far
            return {}
        return {
            shard.incarnation: replace(shard, position=max(shard.position, position))
            for shard in last.shards if shard.map not in changed
        }  # fmt: skip

    def _layers(self) -> tuple[tuple[StoredLayers, ...], int]:
        """The layers of all maps, stored, and the position of the log that they are of."""
        try:
            fetched = self._source.fetch(SpaceFile.LAYERS, self._scratch / "layers.arrow")
        except NotFound as error:
            if error.kind != "route_not_found":
                raise
            return (), int(self._source.node()["position"])  # an earlier release has no such maps
        heads = read_heads(fetched.file)
        for head in heads:
            for report in store_layers(self._source.snapshot_files(head), self._place, head, self._sent):
                self._reused(report.ranges_reused, report.bytes_reused)
        return heads, int(fetched.headers["state-position"])

    # -- the log and its parts -------------------------------------------------------------------------

    def _entries(self, after: int, until: int) -> Iterator[Entry]:
        """The entries of the pond after a position, up to another."""
        while after < until:
            page = self._source.log(after, limit=min(_LOG_PAGE, until - after))
            if not page.entries:
                raise Unavailable(
                    "the pond's log ends before a shard of it", kind="backup_behind", pond=self._source.url,
                    position=after, wanted=until, hint="back up another node, or try again",
                )  # fmt: skip
            yield from page.entries
            after = page.entries[-1].position

    def _store_log(
        self, after: int, chain: str | None, until: int, room: int | None = None
    ) -> tuple[LogChunk | None, str]:
        """Store the entries after a position up to another, and their parts; the chunk, and the chain at its end."""
        if until <= after:
            return None, chain if chain is not None else self._chain_at(after)
        file, seen = self._scratch / "log.jsonl.gz", _Seen(until=after, chain=chain or "")
        if chain is not None:
            self._check_chain(after, chain)
        write_entries(file, self._with_parts(self._entries(after, until), seen, room))
        return LogChunk(first=after + 1, last=seen.until, file=self._store(file)), seen.chain

    def _with_parts(self, entries: Iterator[Entry], seen: _Seen, room: int | None) -> Iterator[Entry]:
        for entry in entries:
            seen.bytes += _part_bytes(entry)
            if room is not None and seen.bytes > room:
                raise Conflict("the parts since the base have grown to half of its shards", kind="backup_grown",
                               hint="back up in full")  # fmt: skip
            if entry.body.get("converted"):
                raise self._moved("a map went from one store to the other")
            for part_id in part_ids([entry]):
                self._store_part(part_id)
            seen.until, seen.chain = entry.position, entry.chain
            yield entry

    def _store_part(self, part_id: str) -> None:
        self._lease.extend()
        if self._place.exists(part_name(part_id)):
            self._reused(1, 0)
            return
        self._put(part_name(part_id), self._source.fetch(StreamFile(part_id), self._scratch / "part").file)
        step("backup.part_stored")

    def _check_chain(self, position: int, chain: str) -> None:
        if position and self._chain_at(position) != chain:
            raise Conflict("the pond's log is another one than the last backup's", kind="log_forked",
                           hint="back up in full")  # fmt: skip

    def _chain_at(self, position: int) -> str:
        facts = self._source.node()
        if position in (0, int(facts["position"])):
            return str(facts["chain"]) if position else ""
        return next(self._entries(position - 1, position)).chain

    # -- storing ---------------------------------------------------------------------------------------

    def _store(self, file: Path) -> StoredFile:
        self._lease.extend()
        stored = StoredFile(checksum_file(file), file.stat().st_size)
        self._put(file_name(stored), file)
        return stored

    def _put(self, name: str, file: Path) -> None:
        size = file.stat().st_size
        if is_whole(self._place, name, size):
            self._reused(1, size, size)
        else:
            self._place.put_stream(name, self._chunks(file))
            self._sent(size)
        file.unlink()

    def _chunks(self, file: Path) -> Iterator[bytes]:
        with file.open("rb") as source:
            while chunk := source.read(READ_BYTES):
                self._lease.extend()
                yield chunk

    def _reused(self, files: int, size: int, done: int = 0) -> None:
        with self._counting:  # files go side by side
            self._report.files_reused += files
            self._report.bytes_reused += size
            self._advance(done)

    def _sent(self, size: int) -> None:
        self._lease.extend()
        with self._counting:
            self._report.files += 1
            self._report.bytes += size
            self._advance(size)


@dataclass(slots=True)
class _Seen:
    """The end of the entries that were stored."""

    until: int
    chain: str
    bytes: int = 0


def _part_bytes(entry: Entry) -> int:
    return sum(int(part["bytes"]) for part in entry.body.get("parts", ()))
