"""Questions to a map on nodes: asked of a node, or of a snapshot on this machine.

| question | goes to |
|---|---|
| one value | a node |
| rows | a node, as a stream |
| anything with `known_at` | a node |
| many keys, `via="remote"` | a node, in requests of at most `REQUEST_ROWS` keys |
| many keys, `via="snapshot"` | the snapshot of this machine, fetched when there is none |
| many keys, `via="auto"` | a cached snapshot; else a node, for `REMOTE_ROWS_MAX` keys in all; then a snapshot |

A node answers from all that is applied there. A snapshot may be `client.min_time_to_keep_snapshots` old, but for what
this process itself changed: after `changed` a fresh one is asked for. The next node is asked when one cannot be
reached; what a node answers is final.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from millpond.arrays.arrow_streams import stream_of
from millpond.client.arrow_body import read_batches, read_table
from millpond.client.incarnation_guard import incarnation_headers
from millpond.client.snapshots.reader import SnapshotCache, SnapshotReader
from millpond.clock import Clock
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import OnInvalid, check_on_invalid, keys_of, moments_of
from millpond.maps.inputs.spans import Buckets
from millpond.maps.model.catalogue import dropped_map
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.json_values import python_of
from millpond.times.instants import clear_instant

if TYPE_CHECKING:
    import numpy.typing as npt

    from millpond.arrays.radix import I64
    from millpond.client.transport import Connection, Nodes
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.settings import Settings

    Mask = npt.NDArray[np.bool_]

__all__ = ("ARROW_STREAM", "REQUEST_ROWS", "Questions", "Via")

Via = Literal["auto", "remote", "snapshot"]
ARROW_STREAM = "application/vnd.apache.arrow.stream"
URL_KEY_BYTES_MAX = 8_000
"""Servers take URLs of a few times that; a longer key is sent as a body."""
REMOTE_ROWS_MAX = 1_000_000
"""Keys that are asked of nodes while no snapshot is cached; then one is fetched."""
REQUEST_ROWS = 500_000
"""Keys in one request: a node answers so many in about a tenth of a second, and holds no more in memory."""


class _Snapshots:
    """The snapshots of this machine, opened when they are first needed. Threads may share it."""

    def __init__(self, open_cache: Callable[[], SnapshotCache], cache: SnapshotCache | None) -> None:
        self._open_cache, self._cache = open_cache, cache
        self._changed: set[str | None] = set()
        self._lock = threading.Lock()

    def opened(self) -> SnapshotCache:
        with self._lock:
            if self._cache is None:
                self._cache = self._open_cache()
                for name in self._changed:
                    self._cache.outdate(name)
            return self._cache

    def changed(self, *maps: str | None) -> None:
        with self._lock:
            self._changed.update(maps)
            cache = self._cache
        for name in maps if cache is not None else ():
            assert cache is not None
            cache.outdate(name)

    def close(self) -> None:
        with self._lock:
            cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()


class Questions:
    """Lookups on the maps of some nodes, `at` a branch or a ref if that is named. Threads may share it."""

    remote_rows_max = REMOTE_ROWS_MAX

    def __init__(self, nodes: Nodes, cache: SnapshotCache | None, settings: Settings, clock: Clock) -> None:
        self.nodes, self.settings, self.clock = nodes, settings, clock
        self.at: Mapping[str, str] = {}
        self._snapshots = _Snapshots(lambda: SnapshotCache(settings.client.snapshots, nodes, settings, clock), cache)
        self._key_counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def at_ref(self, at: Mapping[str, str]) -> Questions:
        """The same at a branch or a ref, with the same snapshots."""
        questions = Questions(self.nodes, None, self.settings, self.clock)
        questions.at, questions._snapshots = at, self._snapshots
        return questions

    # -- many keys ------------------------------------------------------------------------------------

    def lookup(
        self, definition: MapDefinition, keys: Any, at: Any = None, via: Via = "auto", *,
        on_invalid: OnInvalid = "error", known_at: Any = None, buckets: Buckets | None = None,
    ) -> pa.Array:  # fmt: skip
        """The values of many keys at their times (now by default), as `Snapshot.lookup` answers; as they were known
        then, of other `buckets` of an aggregate than those of their times.

        Raises: `Invalid` for keys or times that are not such, or another `via`; what a node answers; `Unavailable`
        when none can be reached.
        """
        buckets = buckets or Buckets()
        if via not in ("auto", "remote", "snapshot"):
            raise Invalid("via is not known", kind="via", via=repr(via), hint="one of: auto, remote, snapshot")
        if buckets:
            buckets.check(definition, at)
        if at is None and definition.kind.timed and buckets.between is None:
            at = clear_instant(self.clock.now_ms())
        check_on_invalid(on_invalid)
        keys = keys_of(definition, keys, on_invalid)
        few = via == "remote" or (via == "auto" and not buckets and self._few(definition.name, len(keys)))
        if known_at is not None or few:
            return self._remote(definition, keys, at, on_invalid, known_at, buckets)
        return self.snapshot(definition, fresh=bool(buckets)).lookup(
            keys, at, on_invalid=on_invalid, between=buckets.between, resolution=buckets.resolution,
            window=buckets.window,
        )  # fmt: skip

    def _few(self, name: str, count: int) -> bool:
        """True when so many keys are few enough to be sent to a node."""
        if self.reader(name).cached:
            return False
        with self._lock:
            count_so_far = self._key_counts[name] = self._key_counts.get(name, 0) + count
        return count_so_far <= self.remote_rows_max

    def _remote(
        self, definition: MapDefinition, keys: pa.Array, at: Any, on_invalid: OnInvalid, known_at: Any,
        buckets: Buckets,
    ) -> pa.Array:  # fmt: skip
        words = {"resolution": buckets.resolution, "window": buckets.window}
        query = {name: word for name, word in words.items() if word is not None}
        columns: dict[str, Any] = {} if known_at is None else {"known_at": known_at}
        if buckets.between is not None:
            columns["since"], columns["until"] = buckets.between
        elif definition.kind.timed:
            columns["at"] = at
        timed = {}
        for name, some in columns.items():
            times, there = moments_of(some, len(keys), on_invalid)
            if len(times) == 1 and not len(there) and name in ("at", "known_at"):
                query[name] = str(clear_instant(int(times[0])))
            else:
                timed[name] = np.resize(times, len(keys)), there
        return self._in_pieces(definition, keys, timed, query)

    def _in_pieces(
        self, definition: MapDefinition, keys: pa.Array, timed: Mapping[str, tuple[I64, Mask]], query: dict[str, str]
    ) -> pa.Array:  # fmt: skip
        """The answers of nodes to keys with columns of times, some at once."""
        # Imported here: a single `get` needs no compiled kernels.
        from millpond.maps.snapshots.snapshot import answer_type

        answers = [pa.array([], answer_type(definition))]
        for start in range(0, len(keys) or int("known_at" in query), REQUEST_ROWS):  # no key is refused too early
            columns = {"key": keys.slice(start, REQUEST_ROWS)}
            for name, (times, valid) in timed.items():
                stop = start + REQUEST_ROWS
                missing = ~valid[start:stop] if len(valid) else None
                columns[name] = pa.array(times[start:stop], INSTANT, mask=missing)
            answers += self._ask(definition, pa.RecordBatch.from_pydict(columns), query)
        return pa.concat_arrays(answers) if len(answers) != 2 else answers[1]

    def _ask(self, definition: MapDefinition, batch: pa.RecordBatch, query: dict[str, str]) -> list[pa.Array]:
        body = stream_of(batch)
        path = f"/v1/maps/{quote(definition.name)}/lookup"
        headers, at = {"Content-Type": ARROW_STREAM} | incarnation_headers(definition), {**query, **self.at}

        def ask(node: Connection) -> pa.Table:
            data = node.request("POST", path, query=at, body=body, headers=headers, question=True).data
            return read_table(data, node.url, batch.num_rows)

        return list(self.nodes.first(ask).column("value").chunks)

    # -- one value, and rows --------------------------------------------------------------------------

    def get(
        self, definition: MapDefinition, key: bytes | int, at: int | None = None, known_at: int | None = None
    ) -> Any:  # fmt: skip
        """The value of a key, or of a number, at an instant (UTC milliseconds; now by default), as `Map.get` answers.

        Raises: what a node answers; `Unavailable` when none can be reached.
        """
        times = {"at": at, "known_at": known_at}
        query = _key_query(key) | {
            name: str(clear_instant(time)) for name, time in times.items() if time is not None
        }  # fmt: skip
        path = f"/v1/maps/{quote(definition.name)}/get"
        headers = incarnation_headers(definition)

        def ask(node: Connection) -> Any:
            if isinstance(key, bytes) and len(key) > URL_KEY_BYTES_MAX:
                return node.request(
                    "POST", path, query=self.at, json=query, headers=headers, question=True
                ).json()  # fmt: skip
            return node.request("GET", path, query={**query, **self.at}, headers=headers).json()

        return python_of(self.nodes.first(ask))

    def scan(
        self, definition: MapDefinition, where: Any, columns: Sequence[str] | None, known_at: int | None = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        """Rows as they come; `where` is text, or a list of `[column, comparison, value]`. Close the reader to stop.

        Raises: what a node answers; `Unavailable` when none can be reached, or the connection is lost while rows are
        read.
        """
        condition = {"where": where, "columns": None if columns is None else list(columns)}
        if known_at is not None:
            condition["known_at"] = clear_instant(known_at)
        if resolution is not None:
            condition["resolution"] = resolution
        path = f"/v1/maps/{quote(definition.name)}/scan"
        headers = incarnation_headers(definition)
        body = self.nodes.first(lambda node: node.stream("POST", path, query=self.at, json=condition, headers=headers))
        return read_batches(body)

    # -- snapshots ------------------------------------------------------------------------------------

    def reader(
        self, map: str, *, keys: Sequence[str | int | None] | None = None, window: Sequence[object] | None = None
    ) -> SnapshotReader:
        """The reader of a map's snapshots on this machine, see `SnapshotCache.reader`."""
        return self._snapshots.opened().reader(map, keys=keys, window=window, at=self.at)

    def snapshot(
        self, definition: MapDefinition, *, keys: Sequence[str | int | None] | None = None,
        window: Sequence[object] | None = None, fresh: bool = False,
    ) -> Snapshot:  # fmt: skip
        """The snapshot of a map on this machine, of this incarnation of it.

        Raises: `NotFound`, kind `map_dropped`; else as `SnapshotReader.snapshot`.
        """
        reader = self.reader(definition.name, keys=keys, window=window)
        snapshot = reader.snapshot(fresh=fresh)
        if snapshot.manifest.incarnation != definition.incarnation and not fresh:
            snapshot = reader.snapshot(fresh=True)  # the cached one may be of the map before
        if snapshot.manifest.incarnation != definition.incarnation:
            raise dropped_map(definition.name)
        return snapshot

    def changed(self, *maps: str | None) -> None:
        """Say that this process changed maps, None: any; it will not be shown a snapshot of before."""
        self._snapshots.changed(*maps)

    def close(self) -> None:
        """Let go of snapshots. RequestCaller again opens them again."""
        self._snapshots.close()


def _key_query(key: bytes | int) -> dict[str, str]:
    if isinstance(key, int):
        return {"key": str(key)}
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key_hex": key.hex()}
