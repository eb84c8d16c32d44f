"""Questions to a layered map as it was known at earlier moments.

    past.lookup(keys, at, known_at)       each from the manifest that was the head at its moment
    past.known_at(moment)                 the snapshot that was known then, leased

Invariants:
* what counts at a moment is the last change up to it: a row is never seen before its commit;
* a moment before the first change has no answer: null in a column, an error where it is the only one;
* a moment before what the history tells is an error;
* all is shown with the fields of now; one that was not in force at a moment shows its default, though rows have it.

At a ref the same holds of the history of its commits, see `refs/past.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import I64
from millpond.errors import Invalid, NotFound
from millpond.maps.inputs.key_columns import OnInvalid, check_on_invalid, key_array, moments_of
from millpond.maps.inputs.spans import Buckets
from millpond.maps.layered.head import Layers, collected_at
from millpond.maps.layered.history import Change, changes_of
from millpond.maps.layered.rows import candidate_rows
from millpond.maps.model.catalogue import same_map
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.snapshot_pointer import read_pointer
from millpond.maps.search.gather import ANSWER_BYTES_MAX
from millpond.maps.search.partial import last_up_to
from millpond.maps.snapshots.freeze import freeze
from millpond.maps.snapshots.leases import LeasedSnapshot, SnapshotLease
from millpond.maps.snapshots.manifest import SnapshotManifest, known_as, load_manifest
from millpond.maps.snapshots.moments import Moments
from millpond.maps.snapshots.partition_filter import HashShare
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.stores.objects import Objects, at_once
from millpond.times.instants import instant_text

__all__ = ("ATTEMPTS", "History", "OpenHistory", "Past")

ATTEMPTS = 3
"""A manifest may age out between the reading of its name and its opening: then the history is read again."""


class History(NamedTuple):
    """The moments from which manifests of a map were known, ascending; `whole`: nothing was known before the first.

    A manifest without a name has no rows: the map was not there. At a ref `commits` are those that brought them.
    """

    map: str
    moments: I64
    manifests: list[str]
    whole: bool
    commits: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, changes: Sequence[Change]) -> Self:
        """The history that changes tell of, the oldest first."""
        moments = np.array([change.moment_ms for change in changes], np.int64)
        return cls(name, moments, [change.manifest for change in changes], not changes or changes[0].version == 1)

    def numbers(self, moments: I64, there: Any = ()) -> I64:
        """The number of the manifest that counted at each moment; -1: none did, or there is no moment.

        Raises: `Invalid`, kinds `history_ended` and `nothing_known`.
        """
        numbers = np.empty(len(moments), np.int64)
        last_up_to(self.moments, moments, numbers)
        missing = numbers < 0
        if len(there):
            missing &= there
            numbers[~there] = -1
        alone = len(moments) == 1 and not len(there)
        if len(self.moments) and missing.any() and (alone or not self.whole):
            raise self._early(int(moments[np.argmax(missing)]))
        return numbers

    def loaded(self, objects: Objects, ids: Iterable[str]) -> list[SnapshotManifest]:
        """Some of the manifests.

        Raises: as `load_manifest`; at a ref `NotFound` of kind `ref_collected`.
        """
        commits = dict(zip(self.manifests, self.commits, strict=False))

        def load(id_: str) -> SnapshotManifest:
            with collected_at(self.map, commits.get(id_, "")):
                return load_manifest(objects, id_)

        return at_once(objects, [partial(load, id_) for id_ in ids])

    def _early(self, moment: int) -> Invalid:
        first = instant_text(int(self.moments[0]))
        if self.whole:
            return Invalid(
                "nothing was known of the map then", kind="nothing_known", map=self.map, known_at=instant_text(moment),
                first_change=first, hint="ask as known at its first change, or later",
            )  # fmt: skip
        return Invalid(
            "the history of the map begins later", kind="history_ended", map=self.map, known_at=instant_text(moment),
            begins=first, hint="the setting maps.history says how long changes are kept",
        )  # fmt: skip


class OpenHistory:
    """The manifests of a history that were asked for, open together; of a `share` the files alone that it needs."""

    def __init__(self, objects: Objects, definition: MapDefinition, share: HashShare | None = None) -> None:
        self._objects, self._definition, self._share = objects, definition, share
        self._open: Moments | None = None

    def lookup(
        self, history: History, keys: pa.Array, at: Any, moments: I64, there: Any, on_invalid: OnInvalid,
        bytes_max: int = ANSWER_BYTES_MAX, buckets: Buckets | None = None,
    ) -> pa.Array:  # fmt: skip
        """The values of keys at their times, as they were known at one moment, or at as many; `buckets`: see `Moments`.

        Raises: as `Past.lookup`; `NotFound` when a manifest aged out.
        """
        numbers = history.numbers(moments, there)
        numbered = np.flatnonzero(np.bincount(numbers + 1)[1:]).tolist()
        needed = [number for number in numbered if history.manifests[number]]
        opened = self._opened(history, [history.manifests[number] for number in needed])
        positions = np.full(len(history.manifests) + 1, -1, np.int64)  # the last is that of -1
        for number in needed:
            positions[number] = opened.number_of[history.manifests[number]]
        numbers = positions[numbers]
        if len(numbers) != len(keys):
            numbers = np.full(len(keys), numbers[0])
        return opened.lookup(numbers, keys, at, on_invalid=on_invalid, bytes_max=bytes_max, buckets=buckets)

    def _opened(self, history: History, needed: list[str]) -> Moments:
        opened = self._open
        if opened is None or not opened.number_of.keys() >= set(needed):
            ids = [] if opened is None else [id_ for id_ in opened.number_of if id_ in history.manifests]
            manifests = history.loaded(self._objects, dict.fromkeys([*ids, *needed]))
            opened = self._open = Moments(self._objects, self._definition, manifests, self._share)
        return opened


class Past:
    """The past of a layered map, as it was known."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._read: tuple[int, History] | None = None
        self._open = OpenHistory(layers.objects, layers.definition)

    def changes(self) -> list[Change]:
        """The changes that the history tells of, the oldest first.

        Raises: `Corrupt`.
        """
        with self._layers.space.read() as tx:
            return changes_of(tx, self._layers.definition.name)

    def lookup(
        self, keys: Any, at: Any, known_at: Any, on_invalid: OnInvalid = "error", bytes_max: int = ANSWER_BYTES_MAX,
        buckets: Buckets | None = None,
    ) -> pa.Array:  # fmt: skip
        """The values of keys at their times, as they were known at one moment, or at those of a column; of an aggregate
        those of other `buckets`.

        Raises: as `Snapshot.lookup`; `Invalid`, kinds `history_ended` and `nothing_known`.
        """
        check_on_invalid(on_invalid)
        if buckets:
            buckets.check(self._layers.definition, at)
        array = key_array(self._layers.definition, keys)
        moments, there = moments_of(known_at, len(array), on_invalid)
        for attempt in range(ATTEMPTS):
            try:
                return self._open.lookup(self.history(), array, at, moments, there, on_invalid, bytes_max, buckets)
            except NotFound:
                if attempt == ATTEMPTS - 1:
                    raise
                self._read = None
                self._open = OpenHistory(self._layers.objects, self._layers.definition)  # a purge took one of them
        raise AssertionError("the last attempt ends it")

    def snapshot(self, known_at: Any) -> Snapshot:
        """The snapshot that was known at a moment, with the fields of now. Close it.

        Raises: as `leased`.
        """
        with self.leased(known_at) as leased:
            return Snapshot.open(
                self._layers.objects, leased.manifest, shown_as=self._layers.definition,
                memory_max=self._layers.memory_max,
            )  # fmt: skip

    def leased(self, known_at: Any) -> LeasedSnapshot:
        """The snapshot that was known at a moment; an empty one when the map was never changed.

        Raises: `Invalid`, kinds `history_ended` and `nothing_known`; at a ref `NotFound`, kind `ref_collected`.
        """
        layers, history = self._layers, self.history()
        (number,) = history.numbers(moments_of(known_at, 1)[0])
        id_ = "" if number < 0 else history.manifests[number]
        if not id_:
            id_ = freeze(layers.objects, layers.definition, (), shard_version=0, created_ms=0).id
        with collected_at(history.map, history.commits[number] if history.commits and number >= 0 else ""):
            lease = SnapshotLease(layers.objects, id_)
            try:
                return LeasedSnapshot(load_manifest(layers.objects, id_), lease)
            except BaseException:
                lease.release()
                raise

    def rows_at(self, known_at: Any) -> Callable[..., Generator[pa.RecordBatch]]:
        """Canonical rows that hold every row a condition takes, as they were known at a moment.

        Raises: as `leased`, when the first row is read.
        """
        layers = self._layers

        def shown() -> LeasedSnapshot:
            leased = self.leased(known_at)
            return LeasedSnapshot(known_as(leased.manifest, layers.definition), leased.lease)

        return partial(candidate_rows, layers.objects, layers.definition, shown)

    def mark(self) -> str:
        """The end of the history as it is now, by which `history` finds it again.

        Raises: as `changes`.
        """
        changes = self.changes()
        return str(changes[-1].version if changes else 0)

    def history(self, until: str | None = None) -> History:
        """The history as it is now, or up to its end of before; the manifest of the last change is the head, which
        says the same.

        Raises: as `changes`.
        """
        if until is not None:
            return History.of(
                self._layers.definition.name, [change for change in self.changes() if change.version <= int(until)]
            )
        name = self._layers.definition.name
        with self._layers.space.read() as tx:
            same_map(tx, self._layers.definition)
            pointer = read_pointer(tx, name)
            if self._read is not None and self._read[0] == pointer.revision:
                return self._read[1]
            changes, current = changes_of(tx, name), pointer.current
        history = History.of(name, changes)
        if changes and current is not None and current.shard_version == changes[-1].version:
            history.manifests[-1] = current.manifest
        self._read = pointer.revision, history
        return history
