"""A layer made of rows in files, share by share: by one process, or by several that each write a stretch of shares.

    row files ─▶ shares 0 … 31    ─▶ ranges ┐
                 shares 32 … 63   ─▶ ranges ├─▶ joined to one index: the one that a single writer would make
                 …                          ┘

Ranges are written among the files of the map, whoever writes them, see `snapshots/stretches.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from millpond import ranges
from millpond.errors import Conflict
from millpond.kernel.steps import step
from millpond.maps.layered.row_files import RowFile, rows_of_shares
from millpond.maps.layered.writer import WrittenLayer, layer_id, loaded_mode
from millpond.maps.model.event_digest import digest_salt
from millpond.maps.snapshots.freeze import bytes_at_once
from millpond.maps.snapshots.groups_of_rows import freeze_groups, group_schema
from millpond.maps.snapshots.manifest import Layer, LayerMode
from millpond.maps.snapshots.sorted_runs import RUNS_HELD, SpillTo
from millpond.maps.snapshots.sum_reach import with_reach
from millpond.ranges import FILTER_KEYS_MAX, FoldedPart, Index, RangeWriter
from millpond.stores.objects import Objects, uncopied

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.maps.layered.head import Layers
    from millpond.maps.model.definition import MapDefinition

__all__ = ("ShareRanges", "ShareWriter", "SharesWritten", "layer_of_files", "stretches")

SORTED_ROWS = 1 << 19
"""At most about so many rows are sorted at once: a sort slows down where it outgrows the caches."""
SIDE_BY_SIDE = 4
"""The stretches that a process writes at once into a bucket: one fetches rows while others are sorted and put."""
TASK_ROWS_MIN = 500_000
"""Fewer rows are sorted in less time than a task takes to begin."""
TASK_ROWS_MAX = 4_000_000
MAJOR_BYTES = 8
"""The first sort key of each row lies beside the rows."""

Stretch: TypeAlias = tuple[int, int]
"""Shares from the first up to before the last."""


@dataclass(frozen=True, slots=True)
class ShareRanges:
    """The ranges of a stretch of shares, and the number of their rows."""

    part: FoldedPart
    rows: int


@dataclass(frozen=True, slots=True)
class ShareWriter:
    """Writes stretches of the shares of some files, as `[start, stop)`; it travels to the tasks that do.

    `spill_bytes`: of rows, at most so many are held while they are sorted.
    """

    objects: Objects
    definition: MapDefinition
    files: tuple[RowFile, ...]
    spill_bytes: int

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)

    def cut(self, at_once: int) -> list[Stretch]:
        """The shares as stretches of about as many rows: as many as run at once, or a multiple, so that none is left to
        run alone."""
        tasks = at_once * -(-self.rows // (TASK_ROWS_MAX * at_once))
        return stretches(self.files, rows_max=max(TASK_ROWS_MIN, -(-self.rows // tasks)))

    def write(self, stretch: Stretch) -> ShareRanges:
        """Sort the rows of a stretch and write their ranges.

        Raises: `Corrupt` when a file is damaged; `Unavailable` when the disk is full.
        """
        rows, schema = 0, group_schema(self.definition)
        spill = SpillTo(Path(self.objects.where), self.spill_bytes)
        # The driver holds the filters of all stretches together.
        filters = self.rows <= FILTER_KEYS_MAX
        with RangeWriter(uncopied(self.objects), schema, bytes_at_once=bytes_at_once(spill), filters=filters) as writer:
            for groups in self._groups(stretch, spill):
                rows += len(groups.column("rows").flatten())
                writer.append(groups)
            ended = writer.at_boundary
            part = FoldedPart(tuple(writer.end()), ended)
        step("shares.written")
        return ShareRanges(part, rows)

    def _groups(self, stretch: Stretch, spill: SpillTo) -> Iterator[pa.RecordBatch]:
        first = loaded_mode(self.definition) is LayerMode.FILL
        # As many as memory may hold at once: more would wait on the disk as sorted runs, and be sorted twice.
        row_bytes = MAJOR_BYTES + sum(file.bytes for file in self.files) // self.rows
        rows_max = min(SORTED_ROWS, spill.bytes_max // RUNS_HELD // row_bytes)
        for start, stop in stretches(self.files, rows_max=rows_max, within=stretch):
            yield from freeze_groups(
                self.definition, rows_of_shares(self.files, start, stop, self.definition), spill=spill,
                repeats="first" if first else "last",
            )  # fmt: skip

    def write_here(self) -> list[ShareRanges]:
        """Write all ranges in this process; of many rows far away several stretches side by side, as all wait for
        requests.

        Raises: as `write`.
        """
        if not self.objects.in_blocks or self.rows <= SORTED_ROWS:
            return [self.write((0, self.files[0].count))]
        cut = stretches(self.files, rows_max=max(SORTED_ROWS, -(-self.rows // SIDE_BY_SIDE)))
        sharing = replace(self, spill_bytes=self.spill_bytes // len(cut))
        with ThreadPoolExecutor(len(cut), thread_name_prefix="stretches") as threads:
            return list(threads.map(sharing.write, cut))


SharesWritten: TypeAlias = Callable[[ShareWriter], Sequence[ShareRanges]]
"""Has all ranges written, here or elsewhere, see `Writes`."""


def stretches(files: Sequence[RowFile], *, rows_max: int, within: Stretch | None = None) -> list[Stretch]:
    """The shares of files, or those of a stretch, as stretches of about so many rows."""
    rows = np.zeros(files[0].count, np.int64)
    for file in files:
        shares, counts = zip(*file.batches, strict=True)
        np.add.at(rows, list(shares), list(counts))
    start, stop = within or (0, len(rows))
    numbers = np.maximum(np.cumsum(rows[start:stop]) - 1, 0) // max(rows_max, 1)
    cuts = start + 1 + np.flatnonzero(np.diff(numbers))
    return list(pairwise([start, *cuts.tolist(), stop]))


def layer_of_files(layers: Layers, files: Sequence[RowFile], written: SharesWritten, salt: str = "") -> WrittenLayer:
    """The layer of the rows of some files, whose ranges are `written` by others, or here. Hold `layers.writing()`.

    Raises: `Conflict` when the map is another one by now; `Corrupt`; `Unavailable`.
    """
    definition = layers.definition
    if any(file.incarnation != definition.incarnation for file in files):
        raise Conflict(
            "the rows were written for an earlier map of this name", kind="map_incarnation", map=definition.name,
            hint="write the rows again",
        )  # fmt: skip
    if any(file.value != definition.value_id for file in files):
        raise Conflict(
            "the fields of the map changed meanwhile", kind="fields_changed", map=definition.name,
            hint="ask again: the answer has other columns",
        )  # fmt: skip
    parts = written(ShareWriter(layers.objects, definition, tuple(files), layers.spill().bytes_max))
    base = Index("", (), group_schema(definition), ranges.DEFAULT_BOUNDARIES)
    index = ranges.join_parts(layers.objects, base, [part.part for part in parts])
    layer = with_reach(layers.objects, definition, Layer.of(index, definition, loaded_mode(definition)))
    assert layer is not None, "it was written"
    step("layers.layer_written")
    salt = digest_salt(sum(file.digest for file in files), salt)
    return WrittenLayer(layers, layer_id(definition, layer, salt), sum(part.rows for part in parts), layer)
