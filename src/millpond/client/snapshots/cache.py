"""The folder in which all processes of a machine share their copies of snapshots.

    <cache>/nodes/<hash of the addresses>.json             which pond these nodes hold
    <cache>/<pond id>/<map>.<incarnation>/                 files, as a node has them: docs/format/snapshot.md
    <cache>/<pond id>/<map>.<incarnation>/subsets/<spec>/ the same, of a snapshot within bounds
    <cache>/<pond id>/current/<map>[-<bounds>].json        the snapshot that counts, and when a node last said so
    <cache>/<pond id>/current/<map>.lock                   held by the process that fetches or collects

Invariants:
* What `current` names is whole: its files are there before it is written.
* Files are removed only under the lock, and only those that no snapshot needs which counts, is open anywhere on this
  machine, or is pinned.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from millpond.errors import Corrupt, NotFound, Unavailable
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.steps import step
from millpond.maps.snapshots.freeze import collect
from millpond.maps.snapshots.leases import end_lease
from millpond.maps.snapshots.manifest import SnapshotManifest, list_manifests, load_manifest
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.maps.snapshots.subset import SUBSETS
from millpond.stores.files import disk_errors, remove_tree, sweep_leftovers, write_file_atomically
from millpond.stores.locks import alone
from millpond.stores.objects import FolderObjects

__all__ = ("Confirmation", "FetchedSnapshot", "SnapshotStore")

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
KEEP_UNUSED_MS = 7 * 86_400_000
"""FileCopies that no node was asked about for so long are removed."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The snapshot that counts here, and when (UTC milliseconds) a node said that it does."""

    manifest: str
    incarnation: str
    subset: str
    confirmed_ms: int


@dataclass(frozen=True, slots=True)
class FetchedSnapshot:
    """A snapshot that counts, open, and when a node said so."""

    snapshot: Snapshot
    confirmed_ms: int


@dataclass(frozen=True, slots=True)
class _NodesPond:
    """The pond that nodes held when they were last asked."""

    nodes: tuple[str, ...]
    pond: str


_CONFIRMATION, _NODES_POND = JsonForm(Confirmation), JsonForm(_NodesPond)


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """One cache folder."""

    root: Path

    # -- which pond -----------------------------------------------------------------------------------

    def pond_of(self, urls: Sequence[str]) -> str | None:
        """The pond that these nodes held when they were last asked."""
        pond = _read(_NODES_POND, self._nodes_file(urls))
        return None if pond is None else pond.pond

    def know_pond(self, urls: Sequence[str], pond: str) -> None:
        """Remember which pond these nodes hold."""
        if self.pond_of(urls) != pond:
            self._write(self._nodes_file(urls), _NODES_POND.encode(_NodesPond(tuple(urls), pond)))

    def _nodes_file(self, urls: Sequence[str]) -> Path:
        return self.root / "nodes" / f"{hashlib.blake2b(' '.join(urls).encode(), digest_size=8).hexdigest()}.json"

    # -- what counts ----------------------------------------------------------------------------------

    def confirmed(self, pond: str, name: str, bounds: str) -> Confirmation | None:
        """The snapshot of a map (within bounds) that counts here."""
        return _read(_CONFIRMATION, self._pointer(pond, name, bounds))

    def confirm(self, pond: str, name: str, bounds: str, confirmed: Confirmation) -> None:
        """Let a snapshot count whose files are all there."""
        self._write(self._pointer(pond, name, bounds), _CONFIRMATION.encode(confirmed))
        step("snapshot.confirmed")

    def open(self, pond: str, name: str, bounds: str, memory_max: int) -> FetchedSnapshot | None:
        """The snapshot that counts here, open; None unless it is whole."""
        confirmed = self.confirmed(pond, name, bounds)
        if confirmed is None:
            return None
        objects = self.objects(pond, name, confirmed.incarnation, confirmed.subset)
        try:
            snapshot = Snapshot.open(objects, load_manifest(objects, confirmed.manifest), memory_max=memory_max)
        except (NotFound, Corrupt) as error:  # another process collected it, or somebody removed files of it
            _LOG.info("the copy of a snapshot is not whole: %s", error)
            return None
        return FetchedSnapshot(snapshot, confirmed.confirmed_ms)

    def forget(self, pond: str, name: str, bounds: str) -> None:
        """Let no snapshot count: the map is gone."""
        self._pointer(pond, name, bounds).unlink(missing_ok=True)

    def _pointer(self, pond: str, name: str, bounds: str) -> Path:
        return self.root / pond / "current" / f"{name}{'-' if bounds else ''}{bounds}.json"

    # -- files ----------------------------------------------------------------------------------------

    def objects(self, pond: str, name: str, incarnation: str, subset: str = "") -> FolderObjects:
        """The folder of a map's files."""
        self._make(self.root / pond)
        whole = self.root / pond / f"{name}.{incarnation}"
        return FolderObjects(whole / SUBSETS / subset if subset else whole)

    def find(self, pond: str, name: str, subset: str, manifest: str) -> str | None:
        """The incarnation of a manifest that lies here."""
        within = f"{SUBSETS}/{subset}/" if subset else ""
        for file in (self.root / pond).glob(f"{name}.*/{within}manifests/{manifest}.json"):
            return file.relative_to(self.root / pond).parts[0].removeprefix(f"{name}.")
        return None

    def alone(self, pond: str, name: str, seconds: float) -> AbstractContextManager[None]:
        """Pause the lock of a map's copies.

        Raises: `Unavailable` when another process keeps it longer than `seconds`.
        """
        file = self.root / pond / "current" / f"{name}.lock"
        self._make(file.parent)
        busy = Unavailable(
            "another process fetches the snapshot", kind="snapshot_fetch_slow", map=name, seconds=seconds,
            hint="try again, or wait longer: client.read_timeout",
        )  # fmt: skip
        return alone(file, seconds, busy)

    @contextmanager
    def usable(self) -> Iterator[None]:
        """Turn what the system says against the folder into `Unavailable`, naming it."""
        try:
            yield
        except OSError as error:
            raise Unavailable(
                "the folder for copies of snapshots cannot be used", kind="snapshot_cache", folder=self.root,
                file=error.filename, reason=error.strerror or str(error),
                hint="a cache belongs to one user: see to its owner, or name another folder: client.cache",
            ) from error  # fmt: skip

    def _make(self, folder: Path) -> None:
        with disk_errors(folder):
            # What is read here may be nobody else's business; who shares a cache makes its folder.
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)

    def _write(self, file: Path, data: bytes) -> None:
        self._make(file.parent)
        write_file_atomically(file, data)

    # -- removing -------------------------------------------------------------------------------------

    def collect(self, pond: str, manifest: SnapshotManifest, now_ms: int) -> None:
        """Remove what neither this snapshot needs nor one that is open or pinned. Call it while the store is locked."""
        subset = "" if manifest.bounds is None else manifest.bounds.spec
        objects = self.objects(pond, manifest.map, manifest.incarnation, subset)
        try:
            collect(objects, manifest, now_ms=now_ms, keep_ms=0)
        except (Corrupt, NotFound) as error:
            _LOG.warning("%s; copies of old snapshots stay on the disk", error)

    def sweep(self, now_ms: int) -> int:
        """Remove copies of what was dropped, or not asked about for long, unless somebody reads them; how many."""
        removed = 0
        sweep_leftovers(self.root, "nodes")
        for pond in self.root.glob("*/current"):
            for within in (".", "current", f"*/{SUBSETS}"):
                sweep_leftovers(pond.parent, within)
            used = self._used(pond, now_ms)
            for folder in _copies(pond.parent):
                if str(folder.relative_to(pond.parent)) not in used:
                    removed += self._remove(folder, pond.parent.name, now_ms)
        return removed

    def _used(self, current: Path, now_ms: int) -> set[str]:
        """The folders, below that of the pond, of the snapshots that count, and those around them."""
        used: set[str] = set()
        for file in current.glob("*.json"):
            confirmed, name = _read(_CONFIRMATION, file), file.stem.partition("-")[0]
            if confirmed is None or abs(now_ms - confirmed.confirmed_ms) > KEEP_UNUSED_MS:
                file.unlink(missing_ok=True)
                continue
            whole = f"{name}.{confirmed.incarnation}"
            used |= {whole, f"{whole}/{SUBSETS}/{confirmed.subset}"}
        return used

    def _remove(self, folder: Path, pond: str, now_ms: int) -> bool:
        """Remove a folder of copies; False while a snapshot in it is read or pinned, or another process is at it."""
        whole = folder.parent.parent if folder.parent.name == SUBSETS else folder
        with suppress(Unavailable), self.alone(pond, whole.name.partition(".")[0], 0):
            objects = FolderObjects(folder)
            ended = [end_lease(objects, manifest.id, now_ms) for manifest in list_manifests(objects)]
            if all(ended) and not any((folder / SUBSETS).glob("*")):
                remove_tree(folder)
                return True
        return False


def _copies(pond: Path) -> list[Path]:
    """Folders of files of snapshots; subsets before what they lie in."""
    return [*pond.glob(f"*.*/{SUBSETS}/[!.]*"), *(path for path in pond.glob("[!.]*.*") if path.is_dir())]


def _read(form: JsonForm[T], file: Path) -> T | None:
    try:
        return form.decode(file.read_bytes())
    except (OSError, FormError):
        return None  # none, not ours to read, or of another version of this program: it will be fetched
