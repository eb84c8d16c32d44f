"""A batch: the rows of a partition within one write, of which those of recent runs come from memory.

    commands ─▶ Batch ─▶ rows of recent runs, definitions      RecentRows, from one write to the next
                  │      all other rows                        the transaction
                  └────▶ what was changed, at the end, in one piece ─▶ the transaction

A driver lets go of the interpreter in each of its calls, and gets it back after others had their turn. So few calls
make a write short.

Invariants:
* `Batch` answers as the transaction would if each change had been made in it at once;
* what a command changed is taken back whole, as if the command had never begun;
* `RecentRows` holds what is in the space: the processor alone writes rows of runs and definitions, and forgets what a
  write touched that was not made;
* it has a limit: the runs that were not used for the longest time are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self, cast

from millpond.kernel.keys import KeyRange
from millpond.kernel.overlay import Overlay
from millpond.kernel.scans import delete_rows, first_rows, put_rows
from millpond.kernel.space import KEY_BYTES_MAX, VALUE_BYTES_MAX, ReadTransaction, Transaction, check_row
from millpond.workflows.keyspaces import DEFINITION, GROUP

__all__ = ("Batch", "RecentRows", "batched")

RUNS_MAX = 1_000
RUN_ROWS_MAX = 100
"""The rows of a run that is remembered; a larger run is read row by row."""
RUN_BYTES_MAX = 16 << 10
_GROUP: Final = GROUP.packed
_DEFINITION: Final = DEFINITION.packed
_UNCHANGED: Final = object()
_Rows = dict[bytes, bytes]


class RecentRows:
    """The rows of runs that commands met last, and the definitions that they read."""

    def __init__(self) -> None:
        self._groups: OrderedDict[bytes, _Rows | None] = OrderedDict()
        self._definitions: dict[bytes, bytes | None] = {}
        self._lists: dict[KeyRange, list[tuple[bytes, bytes]]] = {}

    def forget(self) -> None:
        """Forget all."""
        self._groups.clear()
        self._definitions.clear()
        self._lists.clear()

    def trim(self) -> None:
        """Forget runs beyond the limit, and those that became too large."""
        while len(self._groups) > RUNS_MAX:
            self._groups.popitem(last=False)

    def group(self, tx: ReadTransaction, prefix: bytes) -> _Rows | None:
        """All rows of a run; None for a large one."""
        if prefix in self._groups:
            self._groups.move_to_end(prefix)
            return self._groups[prefix]
        rows = first_rows(tx, KeyRange(prefix, prefix + b"\xff"), RUN_ROWS_MAX + 1)
        self._groups[prefix] = group = dict(rows)
        self.outgrown(prefix, group)
        return self._groups[prefix]

    def outgrown(self, prefix: bytes, rows: _Rows) -> None:
        """Remember a run no more if it is too large."""
        if len(rows) > RUN_ROWS_MAX or sum(map(len, rows.values())) > RUN_BYTES_MAX:
            self._groups[prefix] = None

    def definition(self, tx: ReadTransaction, key: bytes) -> bytes | None:
        """A row of a definition."""
        if key not in self._definitions:
            self._need_room()
            self._definitions[key] = tx.get(key)
        return self._definitions[key]

    def definitions(self, tx: ReadTransaction, keys: KeyRange) -> list[tuple[bytes, bytes]]:
        """The rows of a range of definitions."""
        if keys not in self._lists:
            self._need_room()
            self._lists[keys] = list(tx.scan(keys))
        return self._lists[keys]

    def forget_definitions(self) -> None:
        """Forget all definitions: one was changed."""
        self._definitions.clear()
        self._lists.clear()

    def _need_room(self) -> None:
        if len(self._definitions) + len(self._lists) > RUNS_MAX:
            self.forget_definitions()


class Batch(Overlay):
    """An overlay of a write's transaction, into which `end` writes it; a command that fails midway is taken back."""

    def __init__(self, tx: Transaction, recent: RecentRows) -> None:
        super().__init__(tx)
        self._tx, self._recent = tx, recent
        self._before: dict[bytes, tuple[object, bytes | None]] = {}
        self._grown: dict[bytes, _Rows] = {}
        self._prefix = b"\xff"  # of the last run: keys of one come together
        self._rows: _Rows | None = None
        self._definitions_changed = False

    def end(self) -> None:
        """Write what was changed into the transaction."""
        changed = list(self.changes())
        delete_rows(self._tx, [key for key, value in changed if value is None])
        put_rows(self._tx, [(key, value) for key, value in changed if value is not None])
        for prefix, rows in self._grown.items():
            self._recent.outgrown(prefix, rows)
        self._recent.trim()
        super().end()

    def command(self) -> Self:
        """A command, as a context: what it changed is taken back when it fails."""
        return self

    def __enter__(self) -> None:
        self._before.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._undo()

    def _undo(self) -> None:
        before, self._before = self._before, {}
        for key, (value, row) in before.items():
            rows = self._group(key) if key.startswith(_GROUP) else None
            if rows is not None and row is not None:
                rows[key] = row
            elif rows is not None:
                rows.pop(key, None)
            if value is _UNCHANGED:
                del self._changed[key]
            else:
                self._changed[key] = cast("bytes | None", value)
        self._recent.forget_definitions()

    def get(self, key: bytes) -> bytes | None:
        if key.startswith(_GROUP):
            rows = self._rows if key.startswith(self._prefix) else self._group(key)
            if rows is not None:
                return rows.get(key)
        if key in self._changed:
            return self._changed[key]
        return self._recent.definition(self._tx, key) if key.startswith(_DEFINITION) else self._tx.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        rows = self._remembered(keys)
        if rows is not None:
            return iter(reversed(rows) if reverse else rows)
        return super().scan(keys, reverse=reverse)

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        rows = self._remembered(keys)
        if rows is not None:
            return iter([key for key, _ in (reversed(rows) if reverse else rows)])
        return super().keys(keys, reverse=reverse)

    def _remembered(self, keys: KeyRange) -> list[tuple[bytes, bytes]] | None:
        """The rows of a range, if they are all of one run, or definitions."""
        if keys.stop is None:
            return None
        if keys.start.startswith(_GROUP):
            prefix = _prefix(keys.start)
            if not prefix or not keys.stop.startswith(prefix):
                return None
            rows = self._group(keys.start)
            return None if rows is None else _rows_within(rows, keys.start, keys.stop)
        within = keys.start.startswith(_DEFINITION) and keys.stop.startswith(_DEFINITION)
        if within and not self._definitions_changed:
            return self._recent.definitions(self._tx, keys)
        return None

    def _group(self, key: bytes) -> _Rows | None:
        """The rows of the run that a key belongs to; None for a large one."""
        if not key.startswith(self._prefix):
            self._prefix = _prefix(key)
            self._rows = self._recent.group(self._tx, self._prefix)
        return self._rows

    def put(self, key: bytes, value: bytes) -> None:
        # As that of an overlay, in fewer steps: a command puts some fourteen rows.
        if not 0 < len(key) <= KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
            check_row(key, value)
        if self._over:
            self._refuse_over()
        self._change(key, bytes(value))

    def _change(self, key: bytes, value: bytes | None) -> None:
        rows = None
        if key.startswith(_GROUP):
            rows = self._rows if key.startswith(self._prefix) else self._group(key)
        if key not in self._before:
            self._before[key] = self._changed.get(key, _UNCHANGED), None if rows is None else rows.get(key)
        if rows is not None:
            self._grown[self._prefix] = rows
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        elif key.startswith(_DEFINITION):
            self._recent.forget_definitions()
            self._definitions_changed = True
        self._changed[key] = value
        self._count += 1


@contextmanager
def batched(tx: Transaction) -> Iterator[Batch]:
    """The batch of a write; where there is none yet, one that ends with the context."""
    if isinstance(tx, Batch):
        yield tx
    else:
        batch = Batch(tx, RecentRows())
        yield batch
        batch.end()


def _rows_within(rows: _Rows, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
    return sorted([row for row in rows.items() if start <= row[0] < stop])


def _prefix(key: bytes) -> bytes:
    """The start of the keys of a run: those of tenant, root and children; empty when a key does not reach so far.

    Each is a text or bytes, which end with the one zero byte in them.
    """
    end = len(_GROUP)
    for _ in range(3):
        end = key.find(b"\0", end) + 1
        if not end:
            return b""
    return key[:end]
