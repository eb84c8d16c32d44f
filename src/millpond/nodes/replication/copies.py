"""FileCopies of files that change, to be fetched by other nodes: of shards, and of the space.

    copies/<checksum>    a compact copy of one moment, named by the xxh3_128 of its bytes

A download that breaks goes on where it stopped: the copy stays as long as somebody asks for it, and a while longer.
What is left of an earlier life of the node is removed when it starts. Who copies for himself alone closes them: no row
stays in a copy, and snapshots are kept no longer than they were.

A copy of a shard says up to which position of the log it holds what happened to its map. The position is requested
before the moment is fixed, so it is never too high; the shard itself may know a higher one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import lmdb

from millpond.clock import Clock
from millpond.errors import NotFound
from millpond.kernel.space import ReadTransaction
from millpond.kernel.steps import step
from millpond.maps.layered.history import changes_of, manifests_named
from millpond.maps.layered.stored_heads import StoredLayers, write_heads
from millpond.maps.log.clone import write_own, write_quarantine, write_state
from millpond.maps.log.log import head_of
from millpond.maps.model.definition import Store, folder_name
from millpond.maps.model.snapshot_pointer import current_snapshots
from millpond.maps.snapshots.leases import pin, unpin
from millpond.maps.snapshots.named import named_everywhere
from millpond.nodes.replication.source import SpaceFile
from millpond.pond import Pond
from millpond.stores.files import checksum_file, disk_errors, remove_tree
from millpond.stores.lmdb.environment import Environment
from millpond.stores.lmdb.errors import translated
from millpond.stores.objects import Objects

__all__ = ("COPY_IDLE_SECONDS", "FileCopies", "Copy")

COPY_IDLE_SECONDS = 300.0
"""The life of a copy after its last use: longer spares work after long breaks, shorter spares disk."""
LAYERS_PIN_MS = 2 * 3_600_000
"""The time that a backup has to copy the layers of maps; then they may be folded, and it begins anew."""
_WRITERS = {SpaceFile.STATE: write_state, SpaceFile.QUARANTINE: write_quarantine, SpaceFile.OWN: write_own}


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy on the disk, and what it is a copy of. `position`: the log up to there is in it."""

    file: Path
    checksum: str
    bytes: int
    position: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _CachedCopy:
    """A copy, what it was taken of, and when its last use."""

    copy: Copy
    state: tuple[object, ...] | None
    used_at: float


class FileCopies:
    """The copies of one node."""

    def __init__(self, pond: Pond, clock: Clock) -> None:
        self._pond, self._clock = pond, clock
        self._folder = pond.own_folder / "copies"
        self._cached: dict[str, _CachedCopy] = {}
        self._pins: list[tuple[Objects, str, int]] = []
        self._holder = clock.random_id()
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        remove_tree(self._folder)

    def shard(self, name: str) -> Copy:
        """A copy of a map's shard as it is now; the one that is there when the shard has not changed since.

        Raises: `NotFound` for the map, kind `shard_empty` when it has no row yet; `Unavailable` when the disk is full.
        """
        shard = self._pond.map(name).shard
        applied = self._pond.log.applied(name)
        with self._taking, shard.view() as view:
            env = view.generation.env
            if env is None or view.tx is None:
                raise NotFound("the map has no rows yet", kind="shard_empty", map=name)
            stat = (env.path / "data.mdb").stat()
            state = (name, stat.st_dev, stat.st_ino, view.version)
            copy = self._copy_of(state) or self._taken(lambda file: _copy(env, view.tx, file), state)
            position = max(applied, view.number("position"))
            headers = {"Shard-Position": str(position), "Shard-Rows": str(view.row_count())}
            return self._keep(replace(copy, position=position, headers=headers), state)

    def space(self, kind: SpaceFile) -> Copy:
        """A copy of rows of the pond's space, see `maps/log/clone.py`."""
        if kind is SpaceFile.LAYERS:
            return self.layers()
        with self._taking, self._pond.space.read() as tx:
            copy = self._taken(lambda file: _WRITERS[kind](tx, file), None)
            position = head_of(tx).position
            headers = {"State-Position": str(position), "Millpond-Pond": self._pond.log.pond_id}
            return self._keep(replace(copy, position=position, headers=headers), None)

    def layers(self) -> Copy:
        """The heads of layered maps, all of one position. The snapshots stay for `LAYERS_PIN_MS`.

        Raises: `NotFound` for a map that was dropped meanwhile; `Unavailable` when the disk is full.
        """
        with self._taking:
            self._pins = [held for held in self._pins if held[2] > self._clock.now_ms()]
            with self._pond.space.read() as tx:
                heads = list(_stored(tx))
                position = head_of(tx).position
            heads = [self._pinned(head) for head in heads]
            copy = self._taken(lambda file: write_heads(file, heads), None)
            return self._keep(replace(copy, position=position, headers={"State-Position": str(position)}), None)

    def _pinned(self, head: StoredLayers) -> StoredLayers:
        """The head with its rows and bytes, whose snapshots stay for a while."""
        objects, until_ms = self._pond.loading.map_files(head.folder), self._clock.now_ms() + LAYERS_PIN_MS
        for id_ in head.snapshots:
            pin(objects, id_, until_ms, holder=self._holder)
            self._pins.append((objects, id_, until_ms))
        if not head.manifests:
            return head
        stats = self._pond.map(head.map).rows.stats()
        return replace(head, rows=stats.rows, bytes=stats.bytes)

    def _keep(self, copy: Copy, state: tuple[object, ...] | None) -> Copy:
        with self._lock:
            self._cached[copy.checksum] = _CachedCopy(copy, state, self._clock.monotonic())
        return copy

    def find(self, checksum: str) -> Copy | None:
        """A copy that was given before, None when it is gone."""
        with self._lock:
            copy = self._cached.get(checksum)
            if copy is None:
                return None
            copy.used_at = self._clock.monotonic()
            return copy.copy

    def expire(self) -> int:
        """Remove copies that nobody used of late; how many."""
        before = self._clock.monotonic() - COPY_IDLE_SECONDS
        with self._lock:
            gone = [checksum for checksum, copy in self._cached.items() if copy.used_at < before]
            for checksum in gone:
                self._cached.pop(checksum).copy.file.unlink(missing_ok=True)
        return len(gone)

    def close(self) -> None:
        """Remove all copies; the snapshots that they needed stay no longer on their account."""
        with self._taking:
            remove_tree(self._folder)
            while self._pins:
                objects, id_, _ = self._pins.pop()
                unpin(objects, id_, self._holder)

    def _copy_of(self, state: tuple[object, ...]) -> Copy | None:
        with self._lock:
            return next((copy.copy for copy in self._cached.values() if copy.state == state), None)

    def _taken(self, write: Callable[[Path], None], state: tuple[object, ...] | None) -> Copy:
        self.expire()
        unnamed = self._folder / "unnamed"
        remove_tree(unnamed)
        with disk_errors(self._folder):
            unnamed.mkdir(parents=True)
            file = unnamed / "data.mdb"
            write(file)
        step("copy.written")
        checksum = checksum_file(file)
        place = self._folder / checksum
        file.replace(place)
        return self._keep(Copy(place, checksum, place.stat().st_size), state)


def _copy(env: Environment, tx: lmdb.Transaction | None, file: Path) -> None:
    try:
        # The transaction is the view's: the map cannot be moved while it is read.
        env.handle.copy(str(file.parent), compact=True, txn=tx)
    except lmdb.Error as error:
        raise translated(error, file) from error


def _stored(tx: ReadTransaction) -> Iterator[StoredLayers]:
    """The snapshots of all layered maps, and of those that only commits and branches have."""
    named = named_everywhere(tx)
    for definition, current in current_snapshots(tx):
        if definition.store is Store.LAYERS:
            yield StoredLayers(
                map=definition.name, incarnation=current.incarnation, rows=0, bytes=0,
                changes=tuple(changes_of(tx, definition.name)),
                manifests=tuple(dict.fromkeys((current.manifest, *manifests_named(tx, definition)))),
                named=tuple(sorted(named.pop(folder_name(definition), ()))),
            )  # fmt: skip
    for folder, ids in sorted(named.items()):
        name, _, incarnation = folder.partition(".")
        yield StoredLayers(
            map=name, incarnation=incarnation, rows=0, bytes=0, manifests=(), named=tuple(sorted(ids))
        )  # fmt: skip
