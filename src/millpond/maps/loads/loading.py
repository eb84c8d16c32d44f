"""The pond as loads see it: what every opening of a pond makes, with or without a load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.maps.model.beginning import HISTORY_MS
from millpond.memory_bound import MEMORY_MAX

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.kernel.job_reports import JobReports
    from millpond.kernel.space import Space
    from millpond.maps.layered.head import Layers
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.loads.loads import Loads
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.shard.shard import Shard
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.stores.objects import FolderObjects

__all__ = ("LetGo", "Loading", "folder_files")


def folder_files(folder: Path) -> FolderObjects:
    """The files of a map that lie in its folder alone."""
    # Imported here: opening a pond needs no Arrow.
    from millpond.stores.objects import FolderObjects

    return FolderObjects(folder)


@dataclass(frozen=True, slots=True)
class LetGo:
    """The manifests that were not let go of, with who names each; and a line for each ref that lost rows instead."""

    holders: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loading:
    """The pond as loads see it. `writing` is entered by whoever changes content, and refused in a served pond.

    `space` holds the pond's small truths. A map has a shard, or `layers_of` is not None. `open_loads` is called by the
    first load.
    `memory_max`: the bytes of memory that one piece of work on a map may take. `history_ms`: the age up to which the
    history of layered maps is kept. `let_go` lets go of manifests that only commits of the past name; with a condition
    what is in use loses those rows. `shared_layers` counts the oldest layers of a state that a branch has, too.
    `open_files` opens the files of a map, by the folder that they have on this machine. `tell_alerts` tells what
    entered changes left to be told. `beyond_purges`: a line for each place of the pond that may have purged rows, and
    is not looked at.
    """

    folder: Path
    space: Space
    clock: Clock
    open_loads: Callable[[], Loads]
    shard_of: Callable[[str], Shard]
    layers_of: Callable[[str], Layers | None]
    served: bool = False
    writing: Callable[[], AbstractContextManager[None]] = nullcontext
    memory_max: int = MEMORY_MAX
    history_ms: int = HISTORY_MS
    let_go: Callable[[MapDefinition, Collection[str], str], LetGo] = lambda *_: LetGo()
    shared_layers: Callable[[SnapshotManifest], int] = lambda _: 0
    open_files: Callable[[Path], FolderObjects] = folder_files
    tell_alerts: Callable[[], None] = lambda: None
    beyond_purges: Callable[[], Iterable[str]] = tuple

    @property
    def loads(self) -> Loads:
        """The life of loads, opened when there is one."""
        return self.open_loads()

    @property
    def reports(self) -> JobReports:
        """The place that loads report to."""
        return self.loads.reports

    def map_files(self, folder: str) -> FolderObjects:
        """The files of the snapshots of a map, which may be on branches alone, by the name of its folders."""
        return self.open_files(self.folder / "snapshots" / folder)

    def void(self, load: str) -> LoadResult:
        """Take a load id, so that nothing is entered under it any more; the result of what was entered before.

        Raises: as `commit_load`.
        """
        # Imported here: opening a pond needs no Arrow.
        from millpond.maps.loads.load import commit_load

        return commit_load(self, (), load_id=load, wait=False, void=True)
