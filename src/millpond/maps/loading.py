"""Loading: data of any form into parts, parts into one load, the load into shards."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millpond.clock import Clock
from millpond.errors import Corrupt
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.normalise import Normalised, normalise
from millpond.maps.inputs.rejects import RejectWriter
from millpond.maps.inputs.tables import batches_of
from millpond.maps.inputs.zones import check_zone
from millpond.maps.kinds import MapDefinition
from millpond.maps.loads import Loads, Quarantined
from millpond.maps.merging import merge_waiting
from millpond.maps.parts import PartFile, PartWriter
from millpond.maps.shard import Shard
from millpond.stores.files import remove_tree

__all__ = ("LoadResult", "Loading", "commit_load", "host_name", "load_data", "seal_data", "writer_folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load did. `rows` counts what was brought, after equal addresses within a part became one."""

    load: str
    rows: int
    rejected: int
    parts: int
    duplicate_parts: int
    maps: dict[str, int]
    seconds: float
    quarantined: tuple[Quarantined, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Loading:
    """What loading needs of its pond."""

    folder: Path
    loads: Loads
    clock: Clock
    shard_of: Callable[[str], Shard]


def host_name() -> str:
    """This machine, as folders are named after it: a pond may lie on a disk that several machines mount."""
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())


def writer_folder(folder: Path, clock: Clock, pid: int | None = None) -> Path:
    """The name of a fresh folder for parts: removed after its process died when nobody adopted them.

    `pid`: of the process that outlives the writing, this one unless told.
    """
    return folder / "writer" / f"{host_name()}-{os.getpid() if pid is None else pid}-{clock.random_id()}"


def commit_load(loading: Loading, parts: Sequence[PartFile], *, source: str = "", rejected: int = 0) -> LoadResult:
    """Adopt all parts as one load or none, then merge them.

    Raises:
        Corrupt: a part was damaged; it lies in `quarantine/`, what else the load brought was merged.
        Conflict: a part was written for a map that was dropped meanwhile.
        Unavailable: the disk is full; the load is kept and merged later.
    """
    began = loading.clock.monotonic()
    committed = loading.loads.commit(parts, source)
    merged = merge_waiting(loading.loads, loading.shard_of, committed.maps)
    numbers = set(committed.numbers)
    quarantined = tuple(each for each in merged.quarantined if each.number in numbers)
    if quarantined:
        raise Corrupt(
            "a part of the load could not be merged", kind="part_quarantined", map=quarantined[0].map,
            folder=quarantined[0].folder, reason=quarantined[0].reason, hint="load the data again",
        )  # fmt: skip
    maps: dict[str, int] = {}
    for part in parts:
        maps[part.manifest.map] = maps.get(part.manifest.map, 0) + part.manifest.rows
    return LoadResult(
        load=committed.load, rows=sum(maps.values()), rejected=rejected, parts=len(committed.numbers),
        duplicate_parts=committed.duplicates, maps=maps, seconds=loading.clock.monotonic() - began,
    )  # fmt: skip


def load_data(
    loading: Loading, definition: MapDefinition, data: Any, *,
    columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
    rejects: str | Path | None = None, zone: str | None = None, source: str = "", again: bool = False,
) -> LoadResult:  # fmt: skip
    """Load rows of any form into one map, see `Map.load`."""
    began = loading.clock.monotonic()
    folder = writer_folder(loading.folder, loading.clock)
    salt = loading.clock.random_id() if again else ""
    try:
        parts, rejected = seal_data(
            definition, data, folder, columns=columns, max_rejects=max_rejects, rejects=rejects, zone=zone,
            source=source, salt=salt,
        )  # fmt: skip
        result = commit_load(loading, parts, source=source, rejected=rejected)
    finally:
        remove_tree(folder)
    return replace(result, seconds=loading.clock.monotonic() - began)


def seal_data(
    definition: MapDefinition, data: Any, folder: Path, *, columns: ColumnMapping | Mapping[str, Any] | None = None,
    max_rejects: int = 0, rejects: str | Path | None = None, zone: str | None = None, source: str = "",
    salt: str = "",
) -> tuple[list[PartFile], int]:  # fmt: skip
    """Rows of any form as sealed parts below `folder`, and how many were rejected, see `Map.load`."""
    writer = PartWriter(definition, folder, source=source, salt=salt)
    mapping = mapping_of(columns)
    zone = None if zone is None else check_zone(zone)
    with RejectWriter(rejects, max_rejects=max_rejects, source=source) as rejected:
        batches = batches_of(data, definition, mapping)
        _write(writer, (normalise(batch, definition, mapping, zone=zone) for batch in batches), rejected)
    return writer.finish(), rejected.count


def _write(writer: PartWriter, batches: Iterable[Normalised], rejected: RejectWriter) -> None:
    first_row = 0
    for each in batches:
        rejected.write(each.rejected, first_row=first_row)
        writer.write(each.rows)
        first_row += each.rows.num_rows + each.rejected.num_rows
