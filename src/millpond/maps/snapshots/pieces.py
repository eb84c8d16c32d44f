"""Pieces of the range files of a snapshot, opened side by side: whole files, and blocks of those that lie far away.

    blocks of a file     0 │ 1 │ 2 │ 3 │ 4 │ 5 …           wanted: 0, 2, 5
    requests             └────────┘         └─┘            neighbours come together, with the block between them, which
                                                           is not opened

Invariants:
* A piece that is opened was compared with its checksum, and its columns are there and as long as they say: kernels
  will not ask again.
* No request asks for more than `RUN_BYTES_MAX`, one block or file excepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa

from millpond import ranges
from millpond.maps.model.definition import Kind
from millpond.maps.search.groups import Groups
from millpond.maps.search.validate import damaged
from millpond.ranges.blocks import BlockTable
from millpond.stores.objects import Objects

__all__ = ("WHOLE_FILE", "Opening", "Piece", "groups_of", "open_file", "pieces_opening")

Piece: TypeAlias = tuple[int, int, int]
"""The number of a layer, of a range in its index, and of a block in that; `WHOLE_FILE` for all of its blocks."""
WHOLE_FILE = -1
Opening: TypeAlias = Callable[[], dict[Piece, pa.RecordBatch]]
"""Opens pieces that were read."""

GAP_BYTES_MAX = 256 << 10
"""Between two blocks that come by one request: to leave out fewer takes longer than to fetch them."""
RUN_BYTES_MAX = 4 << 20
"""Of blocks that come by one request: more come faster by several."""


def pieces_opening(
    objects: Objects, indexes: Sequence[ranges.Index], pieces: Collection[Piece]
) -> list[Callable[[], Opening]]:  # fmt: skip
    """Acts that read pieces, each by one request at most, for `fetched_at_once`.

    They, and what they return, raise: as `open_file`.
    """
    acts: list[Callable[[], Opening]] = []
    for (layer, spot), those in groupby(sorted(pieces), itemgetter(0, 1)):
        index, numbers = indexes[layer], [number for _, _, number in those]
        entry = index.entries[spot]
        if entry.blocks is None or numbers[0] == WHOLE_FILE:
            acts.append(partial(_whole, objects, index, (layer, spot)))
        else:
            acts += [partial(_run, objects, index, (layer, spot), run) for run in _runs(entry.blocks, numbers)]
    return acts


def _runs(table: BlockTable, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Blocks that are fetched together, with those between them."""
    run = [numbers[0]]
    for number in numbers[1:]:
        start, stop = table.spans[number]
        if start - table.spans[run[-1]][1] > GAP_BYTES_MAX or stop - table.spans[run[0]][0] > RUN_BYTES_MAX:
            yield run
            run = []
        run.append(number)
    yield run


def _whole(objects: Objects, index: ranges.Index, spot: tuple[int, int]) -> Opening:
    opened = {(*spot, WHOLE_FILE): open_file(objects, index, index.entries[spot[1]])}
    return lambda: opened


def _run(objects: Objects, index: ranges.Index, spot: tuple[int, int], run: Sequence[int]) -> Opening:
    entry = index.entries[spot[1]]
    blocks = ranges.fetch_blocks(objects, entry, run, index.schema)

    def opened() -> dict[Piece, pa.RecordBatch]:
        with _named(entry):
            return {(*spot, number): _shown(index, entry, block) for number, block in zip(run, blocks(), strict=True)}

    return opened


def open_file(
    objects: Objects, index: ranges.Index, entry: ranges.RangeEntry, *, verify: bool = False
) -> pa.RecordBatch:
    """The groups of a range file as they are shown.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    with _named(entry):
        return _shown(index, entry, ranges.open_range(objects, entry, verify=verify))


@contextmanager
def _named(entry: ranges.RangeEntry) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, UnicodeError) as error:
        raise damaged(ranges.range_name(entry.id)) from error


def _shown(index: ranges.Index, entry: ranges.RangeEntry, batch: pa.RecordBatch) -> pa.RecordBatch:
    if not batch.schema.equals(index.schema):
        raise damaged(ranges.range_name(entry.id))
    batch.validate()
    return index.show(batch)


def groups_of(kind: Kind, indexes: Sequence[ranges.Index], opened: Mapping[Piece, pa.RecordBatch]) -> Groups:
    """The groups of opened pieces, of which no two overlap."""
    layers: list[list[pa.RecordBatch]] = [[] for _ in indexes]
    names = []
    for piece in sorted(opened):
        layers[piece[0]].append(opened[piece])
        names.append(ranges.range_name(indexes[piece[0]].entries[piece[1]].id))
    return Groups.of(kind, layers, names)
