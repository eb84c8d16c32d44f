"""Writing the rows of a load as a layer, before the load is entered: visible to nobody until then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING

from millpond.maps.layered.rows import count_layer
from millpond.maps.model.columns import canonical_schema, check_columns
from millpond.maps.model.event_digest import digest_of, digest_salt, events_id
from millpond.maps.snapshots.layers import write_layer
from millpond.maps.snapshots.manifest import Layer, LayerMode
from millpond.ranges.files import content_id

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.maps.layered.head import Layers
    from millpond.maps.model.definition import MapDefinition

__all__ = ("LayerWriter", "WrittenLayer", "layer_id", "layer_of_rows", "loaded_mode", "written_layer")

QUEUED_MAX = 4
"""The batches that wait to be sorted: reading goes on meanwhile."""
ROWS_THREADED_MIN = 1 << 12
"""Fewer rows are sorted in less time than a thread takes to begin."""
_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class WrittenLayer:
    """A layer that is written: `id` tells it from others of its map, as that of a part does; `rows` are its own.

    Its files stay as long as its writer is open.
    """

    layers: Layers
    id: str
    rows: int
    layer: Layer

    @property
    def map(self) -> str:
        """The name of its map."""
        return self.layers.definition.name


def layer_of_rows(layers: Layers, rows: Iterable[pa.RecordBatch]) -> Layer | None:
    """Write canonical rows as a layer of a load; None when there are none. Hold `layers.writing()` around it.

    Raises: `Unavailable` when the disk is full.
    """
    return write_layer(layers.objects, layers.definition, rows, loaded_mode(layers.definition), spill=layers.spill())


def loaded_mode(definition: MapDefinition) -> LayerMode:
    """The mode of the layer of a load."""
    return LayerMode.JOIN if definition.overwrite else LayerMode.FILL


def layer_id(definition: MapDefinition, layer: Layer, salt: str) -> str:
    """The id by which a layer is known again; a `salt` makes it another than that of the same rows."""
    if definition.aggregation is not None:
        return events_id(salt)
    return content_id(f"{layer.index} {salt}".encode()) if salt else layer.index


def written_layer(layers: Layers, layer: Layer, id_: str) -> WrittenLayer:
    """A layer that is written, with its rows counted."""
    # A group of rows without a time is one row.
    rows = count_layer(layers.objects, layer) if layers.definition.kind.timed else layer.groups
    return WrittenLayer(layers, id_, rows, layer)


class LayerWriter:
    """Takes canonical rows of one map, in their order, and writes them as one layer; as `PartWriter` seals parts.

    A thread sorts what was taken while the next rows are read, if they are many. Close it when the load is entered, or
    given up.
    """

    def __init__(self, layers: Layers, *, salt: str = "") -> None:
        self._layers, self._salt = layers, salt
        self._schema = canonical_schema(layers.definition)
        self._first: list[pa.RecordBatch] = []
        self._batches: Queue[pa.RecordBatch | None] = Queue(QUEUED_MAX)
        self._writing: Future[Layer | None] | None = None
        self._given_up = False
        self._digest = 0
        self._held = ExitStack()

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows.

        Raises: `Invalid` when the columns are not the map's; `Unavailable` when the disk is full.
        """
        check_columns(rows, self._schema, self._layers.definition.name)
        if rows.num_rows:
            if self._layers.definition.aggregation is not None:
                self._digest += digest_of(self._layers.definition, rows)
            if self._writing is None:
                self._first.append(rows)
                if sum(batch.num_rows for batch in self._first) < ROWS_THREADED_MIN:
                    return
                first, self._first = self._first, []
                for batch in first:
                    self._put(batch)
            else:
                self._put(rows)

    def _put(self, rows: pa.RecordBatch | None) -> None:
        if self._writing is None:
            self._held.enter_context(self._layers.loading())
            pool = self._held.enter_context(ThreadPoolExecutor(1, thread_name_prefix="layer"))
            self._held.callback(self._give_up)
            self._writing = pool.submit(layer_of_rows, self._layers, self._taken())
        while True:
            if self._writing.done():
                self._writing.result()
            try:
                self._batches.put(rows, timeout=_WAIT_SECONDS)
            except Full:
                continue
            return

    def _taken(self) -> Iterator[pa.RecordBatch]:
        while not self._given_up:
            try:
                rows = self._batches.get(timeout=_WAIT_SECONDS)
            except Empty:
                continue
            if rows is None:
                return
            yield rows
        raise InterruptedError

    def _give_up(self) -> None:
        self._given_up = True

    def finish(self) -> list[WrittenLayer]:
        """The layer of all that was written; none without rows.

        Raises: `Unavailable` when the disk is full.
        """
        if self._writing is not None:
            self._put(None)
            layer = self._writing.result()
        elif self._first:
            self._held.enter_context(self._layers.loading())
            layer = layer_of_rows(self._layers, self._first)
        else:
            return []
        assert layer is not None, "rows were written"
        salt = digest_salt(self._digest, self._salt)
        return [written_layer(self._layers, layer, layer_id(self._layers.definition, layer, salt))]

    def close(self) -> None:
        """Let go of the files: what no manifest names may be collected. Closing twice is harmless."""
        self._held.close()
