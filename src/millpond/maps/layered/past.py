"""Questions to a layered map as it was known at earlier moments.

    past.lookup(keys, at, known_at)       each from the manifest that was the head at its moment
    past.known_at(moment)                 the snapshot that was known then, leased

Invariants:
* what counts at a moment is the last change up to it: a row is never seen before its commit;
* a moment before the first change has no answer: null in a column, an error where it is the only one;
* a moment before what the history tells is an error.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from millpond.arrays.radix import I64
from millpond.errors import Invalid, NotFound
from millpond.maps.inputs.key_columns import check_on_invalid, moments_of, one_array
from millpond.maps.layered.history import Change, changes_of
from millpond.maps.layered.rows import candidate_rows
from millpond.maps.model.catalogue import same_map
from millpond.maps.model.snapshot_pointer import read_pointer
from millpond.maps.snapshots.leases import Lease, Leased
from millpond.maps.snapshots.manifest import load_manifest
from millpond.maps.snapshots.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import pyarrow as pa

    from millpond.maps.inputs.key_columns import OnInvalid
    from millpond.maps.layered.head import Layers
    from millpond.maps.predicates.predicate import Predicate

__all__ = ("Past",)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ATTEMPTS = 3
"""A manifest may age out between the reading of its name and its opening: then the history is read again."""


class _History(NamedTuple):
    """The moments from which manifests were known, ascending; `whole`: nothing was known before the first."""

    moments: I64
    manifests: list[str]
    whole: bool


class Past:
    """What a layered map was known to hold."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._revision, self._history = -1, _History(np.zeros(0, np.int64), [], True)
        self._open: Moments | None = None

    def changes(self) -> list[Change]:
        """The changes that the history tells of, the oldest first.

        Raises: `Corrupt`.
        """
        with self._layers.space.read() as tx:
            return changes_of(tx, self._layers.definition.name)

    def lookup(self, keys: Any, at: Any, known_at: Any, on_invalid: OnInvalid = "error") -> pa.Array:
        """The values of keys at their times, as they were known at one moment, or at those of a column.

        Raises: as `Snapshot.lookup`; `Invalid`, kinds `history_ended` and `nothing_known`.
        """
        check_on_invalid(on_invalid)
        array = one_array(keys, "key")
        moments, there = moments_of(known_at, len(array), on_invalid)
        for attempt in range(ATTEMPTS):
            history = self._read()
            numbers = self._numbers(history, moments, there)
            try:
                opened, numbers = self._opened(history, numbers)
            except NotFound:
                if attempt == ATTEMPTS - 1:
                    raise
                self._revision = -1
                continue
            break
        if len(numbers) != len(array):
            numbers = np.full(len(array), numbers[0])
        return opened.lookup(numbers, array, at, on_invalid=on_invalid)

    def leased(self, known_at: Any) -> Leased:
        """The snapshot that was known at a moment; an empty one when the map was never changed.

        Raises: `Invalid`, kinds `history_ended` and `nothing_known`.
        """
        history = self._read()
        (number,) = self._numbers(history, moments_of(known_at, 1)[0], ())
        if number < 0:
            return self._layers.current()
        id_ = history.manifests[number]
        lease = Lease(self._layers.objects, id_)
        try:
            return Leased(load_manifest(self._layers.objects, id_), lease)
        except BaseException:
            lease.release()
            raise

    def rows_at(self, known_at: Any) -> Callable[[Predicate], Generator[pa.RecordBatch]]:
        """Canonical rows that hold every row a condition takes, as they were known at a moment.

        Raises: as `leased`, when the first row is read.
        """
        layers, current = self._layers, partial(self.leased, known_at)
        return partial(candidate_rows, layers.objects, layers.definition, current)

    # -- the history ----------------------------------------------------------------------------------

    def _read(self) -> _History:
        with self._layers.space.read() as tx:
            same_map(tx, self._layers.definition)
            pointer = read_pointer(tx, self._layers.definition.name)
            if pointer.revision == self._revision:
                return self._history
            changes, current = changes_of(tx, self._layers.definition.name), pointer.current
        manifests = [change.manifest for change in changes]
        if changes and current is not None and current.shard_version == changes[-1].version:
            manifests[-1] = current.manifest  # it says the same, in fewer layers
        moments = np.array([change.moment_ms for change in changes], np.int64)
        self._history = _History(moments, manifests, not changes or changes[0].version == 1)
        self._revision = pointer.revision
        return self._history

    def _numbers(self, history: _History, moments: I64, there: Any) -> I64:
        """The number of the manifest that counted at each moment; -1: none did, or there is no moment."""
        numbers = np.searchsorted(history.moments, moments, side="right") - 1
        missing = numbers < 0
        if len(there):
            missing &= there
            numbers[~there] = -1
        if len(history.moments) and missing.any() and (len(moments) == 1 or not history.whole):
            raise self._early(history, int(moments[np.argmax(missing)]))
        return numbers

    def _early(self, history: _History, moment: int) -> Invalid:
        name, first = self._layers.definition.name, _shown(int(history.moments[0]))
        if history.whole:
            return Invalid(
                "nothing was known of the map then", kind="nothing_known", map=name, known_at=_shown(moment),
                first_change=first, hint="ask as known at its first change, or later",
            )  # fmt: skip
        return Invalid(
            "the history of the map begins later", kind="history_ended", map=name, known_at=_shown(moment),
            begins=first, hint="the setting maps.history says how long changes are kept",
        )  # fmt: skip

    def _opened(self, history: _History, numbers: I64) -> tuple[Moments, I64]:
        """The manifests of these numbers, open with those that were open before; and their numbers there."""
        needed = np.unique(numbers[numbers >= 0]).tolist()
        opened = self._open
        if opened is None or any(history.manifests[number] not in opened.number_of for number in needed):
            ids = {} if opened is None else dict.fromkeys(id_ for id_ in opened.number_of if id_ in history.manifests)
            ids |= dict.fromkeys(history.manifests[number] for number in needed)
            manifests = [load_manifest(self._layers.objects, id_) for id_ in ids]
            opened = self._open = Moments(self._layers.objects, self._layers.definition, manifests)
        places = np.full(len(history.manifests) + 1, -1, np.int64)  # the last is that of -1
        for number in needed:
            places[number] = opened.number_of[history.manifests[number]]
        return opened, places[numbers]


def _shown(moment_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=moment_ms)).isoformat()
