"""Garbage of the maps of a pond: files that nothing needs any more, of a bucket by mark and sweep.

A folder knows who writes and who reads, by the locks of its machine (`layered/maintenance.py`). A bucket does not:
there files stay by their names in the space, by a grace time, and by the lease that `layered/secured.py` tells of.

    mark     the manifests that the head, the history, commits and branches name, and those that nothing has named for
             less than the grace time: the files that they name are needed
    sweep    what was put a grace time ago, or longer, and is not needed

Invariants, which `docs/format/bucket.md` states for others:
* what is named when the lease was taken stays, and nothing can be named anew while it is held;
* both ages are by the clock of the bucket: no other one is asked;
* a manifest goes before what it names. Whoever dies leaves files that the next collection removes.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from millpond.error_values import ShownAsTable
from millpond.errors import Corrupt, Invalid, MillpondError, NotFound
from millpond.kernel.steps import step
from millpond.maps.layered.history import forget_aged, manifests_named
from millpond.maps.layered.maintenance import collect_files
from millpond.maps.layered.secured import LEASE_SECONDS, collecting_lease
from millpond.maps.model.catalogue import known_map, list_maps
from millpond.maps.model.definition import Store, folder_name
from millpond.maps.model.keyspaces import UNNAMED
from millpond.maps.snapshots.freeze import files_of
from millpond.maps.snapshots.manifest import load_manifest
from millpond.maps.snapshots.named import named_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from millpond.clock import Clock
    from millpond.kernel.lease import Lease, LeaseRow
    from millpond.kernel.space import ReadTransaction, Transaction
    from millpond.maps.loads.bucket_location import StorageBucket
    from millpond.maps.loads.loading import Loading
    from millpond.maps.loads.pond_folder import StorageLocation
    from millpond.stores.objects import FolderObjects, ObjectInfo, Objects

__all__ = ("GRACE_MS", "GRACE_MS_MIN", "MapGarbage", "Sweep", "collect_bucket", "collect_garbage")

GRACE_MS = 24 * 3_600_000
GRACE_MS_MIN = 60_000
"""A writer puts files, and then their manifest: with less, it would do so again and again."""
FILES_A_REQUEST = 1000
_FOLDERS = ("manifests", "indexes", "intervals", "ranges")
"""The folders that are collected, in this order: names before what they name."""


@dataclass(slots=True)
class MapGarbage(ShownAsTable):
    """The outcome of a collection, or, in a dry run, what it would be: counts of files that go, and their bytes.

    `retained`: files that nothing needs, and that are not old enough; `busy`: folders that another one collects.
    """

    dry_run: bool = False
    manifests: int = 0
    files: int = 0
    bytes: int = 0
    retained: int = 0
    busy: list[str] = field(default_factory=list)

    def add(self, info: ObjectInfo) -> None:
        """Count a file."""
        is_manifest = info.name.startswith("manifests/")
        self.manifests, self.files = self.manifests + is_manifest, self.files + (not is_manifest)
        self.bytes += info.size


def collect_garbage(loading: Loading, location: StorageLocation, *, grace_ms: int, dry_run: bool) -> MapGarbage:
    """Collect the layered maps of a pond, wherever it lies.

    Raises: as `collect_bucket`; `Invalid`, kind `dry_run_unsupported`, for a folder that is only to be counted.
    """
    from millpond.maps.loads.bucket_location import StorageBucket

    if isinstance(location, StorageBucket):
        return collect_bucket(loading, location, grace_ms=grace_ms, dry_run=dry_run)
    if dry_run:
        raise Invalid("a folder is collected, and not counted", kind="dry_run_unsupported", pond=location.address,
                      hint="leave dry_run out: what a folder loses, nobody can reach")  # fmt: skip
    return _collect_folder(loading)


def _collect_folder(loading: Loading) -> MapGarbage:
    """Collect maps in a folder, whose locks say what is needed."""
    garbage = MapGarbage()
    with loading.space.read() as tx:
        definitions = [definition for definition in list_maps(tx) if definition.store is Store.LAYERS]
    for definition in definitions:
        layers = loading.layers_of(definition.name)
        collected = None if layers is None else collect_files(layers)
        if collected is None:
            garbage.busy.append(folder_name(definition))
        else:
            garbage.manifests += collected.snapshots
            garbage.files += collected.files
            garbage.bytes += collected.bytes
    return garbage


def collect_bucket(
    loading: Loading, location: StorageBucket, *, grace_ms: int = GRACE_MS, dry_run: bool = False
) -> MapGarbage:
    """Remove, of all maps that ever were, the files that nothing needs; a dry run counts them.

    A map whose names cannot be read is left as it is, and named when the others are done.

    Raises: `Invalid`, kind `grace_short`; `Corrupt`, `NotFound`, naming the file; `Denied`, `Unavailable`.
    """
    if grace_ms < GRACE_MS_MIN:
        raise Invalid(
            "the grace time is too short: what a load is about to name would be lost", kind="grace_short",
            grace_ms=grace_ms, grace_ms_min=GRACE_MS_MIN, hint="give a minute or more; without one it is a day",
        )  # fmt: skip
    garbage, damaged, time = MapGarbage(dry_run), list[MillpondError](), _BucketTime.of(location)
    for prefix in location.objects.level("snapshots").prefixes:
        folder = prefix.rstrip("/").rpartition("/")[2]
        objects = loading.map_files(folder)
        try:
            Sweep(loading, folder, objects, location.files_of(folder), garbage).run(time, time.read_ms - grace_ms)
        except (Corrupt, NotFound) as error:
            damaged.append(error)
    _sweep_probes(location, time.read_ms - grace_ms, dry_run)
    if damaged:
        raise damaged[0]
    return garbage


@dataclass(frozen=True, slots=True)
class _BucketTime:
    """The time of a bucket, as it was read, and as it must be by now."""

    clock: Clock
    read_ms: int
    read_at: float

    @classmethod
    def of(cls, location: StorageBucket) -> _BucketTime:
        """The time of a bucket; requests to read it cost as much as any."""
        read_at = location.clock.monotonic()
        return cls(location.clock, location.now_ms(), read_at)

    def now_ms(self) -> int:
        """A time that the bucket has not passed: it tells whole seconds, and clocks differ a little in their pace."""
        return self.read_ms + math.ceil(1.01 * (self.clock.monotonic() - self.read_at) * 1000) + 1000


def _sweep_probes(location: StorageBucket, before_ms: int, dry_run: bool) -> None:
    """Remove what those left who died while they made a pond, or began a collection."""
    names = [info.name for info in location.objects.list("probe") if info.modified_ms <= before_ms]
    if names and not dry_run:
        location.objects.delete(*names)


@dataclass
class Sweep:
    """The collection of one map's folder. `objects` reads through copies, `bucket` lists and removes."""

    loading: Loading
    folder: str
    objects: FolderObjects
    bucket: Objects
    garbage: MapGarbage = field(default_factory=MapGarbage)

    def run(self, time: _BucketTime, before_ms: int) -> None:
        files = self.listed()
        if not self.garbage.dry_run:
            self._forget()
        with self.loading.space.read() as tx:
            named, noted = self.named(tx), self._noted(tx)
        now_ms = time.now_ms()  # after what is named was read: until then it may have been
        there = {_id(info) for info in files if info.name.startswith("manifests/")}
        # A time that lies ahead was noted by a bucket that was copied here since.
        since = {id_: min(noted.get(id_, now_ms), now_ms) for id_ in sorted(there - named)}
        young = {id_ for id_, seen_ms in since.items() if seen_ms > before_ms}
        needed = self.files(named) | self._files_there(young)
        unneeded = [info for info in files if info.name not in needed]
        due = [info for info in unneeded if info.modified_ms <= before_ms]
        self.garbage.retained += len(unneeded) - len(due) + len(young)
        step("garbage.marked")
        if self.garbage.dry_run:
            for info in due:
                self.garbage.add(info)
        elif due:
            self._remove(due, named | young, since)
        elif since != noted:
            self.loading.space.write(partial(self._note, since))

    def listed(self) -> list[ObjectInfo]:
        """The files of the map in the bucket."""
        return [info for info in self.bucket.list() if info.name.partition("/")[0] in _FOLDERS]

    def _forget(self) -> None:
        with self.loading.space.read() as tx:
            definition = known_map(tx, self.folder.rpartition(".")[0])
        if definition is not None and folder_name(definition) == self.folder:
            forget_aged(self.loading.space, definition, self.loading.clock.now_ms() - self.loading.history_ms)

    def named(self, tx: ReadTransaction) -> set[str]:
        """The manifests of the map that are named."""
        definition = known_map(tx, self.folder.rpartition(".")[0])
        if definition is None or folder_name(definition) != self.folder:  # it was dropped, or is on branches alone
            return named_in(tx, self.folder)
        return set(manifests_named(tx, definition))

    def _noted(self, tx: ReadTransaction) -> dict[str, int]:
        rows = tx.scan(UNNAMED[self.folder].range())
        return {str(UNNAMED.unpack(key)[1]): int(row) for key, row in rows if row.isdigit()}

    def _note(self, since: Mapping[str, int], tx: Transaction) -> None:
        """Remember what was seen unnamed, unless it has been named since."""
        named, noted = self.named(tx), self._noted(tx)
        for id_ in noted.keys() - since.keys():
            tx.delete(UNNAMED.pack(self.folder, id_))
        for id_ in since.keys() - noted.keys() - named:
            tx.put(UNNAMED.pack(self.folder, id_), b"%d" % since[id_])

    def files(self, ids: set[str]) -> set[str]:
        """The files of manifests.

        Raises: `NotFound`, `Corrupt`.
        """
        return files_of(self.objects, [load_manifest(self.objects, id_) for id_ in sorted(ids)])

    def _files_there(self, ids: set[str]) -> set[str]:
        """The files of manifests that nothing names; another collection may remove some meanwhile."""
        try:
            return self.files(ids)
        except NotFound:
            files: set[str] = set()
            for id_ in sorted(ids):
                with suppress(NotFound):
                    files |= self.files({id_})
            return files

    # -- removing -------------------------------------------------------------------------------------

    def _remove(self, due: Sequence[ObjectInfo], marked: set[str], since: dict[str, int]) -> None:
        space, clock = self.loading.space, self.loading.clock
        row, holder = collecting_lease(self.folder, clock), clock.random_id()
        if row.wait_free(space) is None:
            self.garbage.busy.append(self.folder)
            return
        lease = space.write(lambda tx: row.take(tx, holder))
        if lease is None:
            self.garbage.busy.append(self.folder)
            return
        step("garbage.leased")
        try:
            # What was named since the marking came before the lease, also if it is not any more; nothing comes after.
            with space.read() as tx:
                named, noted = self.named(tx), self._noted(tx)
            moved = {id_ for id_, seen_ms in since.items() if noted.get(id_) != seen_ms}
            needed = self.files(named - marked) | self._files_there(moved - marked)
            lease = self.delete([info for info in due if info.name not in needed], since, row, lease)
        finally:
            if lease is not None:
                space.write(partial(self._end, row, lease, since))
        step("garbage.swept")

    def delete(
        self, due: Sequence[ObjectInfo], since: dict[str, int], row: LeaseRow, lease: Lease, *,
        ranges_first: bool = False,
    ) -> Lease | None:  # fmt: skip
        """Remove files, as long as the lease is known to be held; None when another one has it."""
        for infos in _requests(due, _FOLDERS[::-1] if ranges_first else _FOLDERS):
            # Who was halted for long may be taken for dead by now.
            renewed = row.hold(self.loading.space, lease, LEASE_SECONDS / 3)
            if renewed is None:
                return None
            lease = renewed
            self.bucket.delete(*(info.name for info in infos))
            for info in infos:
                self.garbage.add(info)
                since.pop(_id(info), None)
            step("garbage.deleted")
        return lease

    def _end(self, row: LeaseRow, lease: Lease, since: Mapping[str, int], tx: Transaction) -> None:
        row.give_back(tx, lease)
        self._note(since, tx)


def _id(info: ObjectInfo) -> str:
    """The id in the name of a manifest."""
    return info.name.removeprefix("manifests/").removesuffix(".json")


def _requests(due: Sequence[ObjectInfo], folders: Sequence[str]) -> Iterator[list[ObjectInfo]]:
    """The files of one request after another: those of one kind before those of the next."""
    for folder in folders:
        infos = (info for info in due if info.name.startswith(f"{folder}/"))
        while block := list(islice(infos, FILES_A_REQUEST)):
            yield block
