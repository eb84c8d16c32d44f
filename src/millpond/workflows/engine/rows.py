"""Rows: the state that commands read and write, as the client's messages.

Invariants:

* A command reads through an overlay: it sees its own writes, and the rows below stay as they are.
* A message that the overlay returned may be changed; only `put` makes the change a write.
* The writes of one command come out in the order of their keys, whatever the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from millpond.workflows.engine.keys import Key

__all__ = (
    "Rows",
    "Write",
    "RunDeleted",
    "Overlay",
)

M = TypeVar("M", bound=Message)


class Rows(Protocol):
    """The rows of one tenant, read by kind and key."""

    def get(self, kind: type[M], key: Key) -> M | None:
        """The row with a key, as a message that the caller may change, or None."""
        ...

    def list(self, kind: type[M], prefix: Key) -> Iterator[tuple[Key, M]]:
        """The rows whose keys begin with `prefix`, in the order of their keys."""
        ...

    @property
    def share(self) -> tuple[int, int]:
        """The number of this partition among those that hold runs, from 1, and how many there are.

        That of the definitions, which holds no runs, has the number 0.
        """
        ...

    def runs(
        self, spec: str, status: int, limit: int, *, version: tuple[int, int] | None = None,
        times: tuple[int, int] | None = None, after: bytes = b"",
    ) -> tuple[Sequence[str], bytes]:  # fmt: skip
        """The next runs of a specification with a status that began between two instants, both included.

        With them the place behind them, which is empty at the end.
        """
        ...


class Write(NamedTuple):
    """One row put, or deleted where `row` is None."""

    kind: type[Message]
    key: Key
    row: Message | None


@dataclass(frozen=True, slots=True)
class RunDeleted:
    """All rows of one run deleted, of whatever kind. It comes before all writes of the same command."""

    run: str


class Overlay:
    """The rows below, with the writes of one command above them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._seen: dict[tuple[type[Message], Key], Message | None] = {}
        self._changed: set[tuple[type[Message], Key]] = set()
        self._deleted_runs: dict[str, None] = {}

    def get(self, kind: type[M], key: Key) -> M | None:
        """The row with a key: the same object for the same key until the end of the command."""
        slot = (kind, key)
        if slot not in self._seen:
            self._seen[slot] = None if self._is_deleted(key) else self._rows.get(kind, key)
        row = self._seen[slot]
        assert row is None or isinstance(row, kind)
        return row

    def list(self, kind: type[M], prefix: Key, limit: int | None = None) -> list[M]:
        """The rows whose keys begin with `prefix`, with this command's changes, in the order of their keys.

        With a limit only the first ones, and no more than those are read.
        """
        listed: dict[Key, Message | None] = {}
        if not self._is_deleted(prefix):
            there = 0
            for key, row in self._rows.list(kind, prefix):
                listed[key] = self._seen.setdefault((kind, key), row)
                there += listed[key] is not None
                if there == limit:
                    break
        for seen_kind, key in self._seen:
            if seen_kind is kind and key[: len(prefix)] == prefix:
                listed[key] = self._seen[kind, key]
        rows = [listed[key] for key in sorted(listed)]
        return [row for row in rows if isinstance(row, kind)][:limit]

    @property
    def below(self) -> Rows:
        """The rows as they were before this command: searches see no others."""
        return self._rows

    def put(self, key: Key, row: Message) -> None:
        """Write a row."""
        self._seen[type(row), key] = row
        self._changed.add((type(row), key))

    def delete(self, kind: type[Message], key: Key) -> None:
        """Delete a row; one that is not there is no error."""
        self._seen[kind, key] = None
        self._changed.add((kind, key))

    def delete_run(self, path: str) -> None:
        self._deleted_runs[path] = None
        for slot in [slot for slot in self._seen if slot[1][:1] == (path,)]:
            self._seen[slot] = None
            self._changed.discard(slot)

    def writes(self) -> tuple[Write | RunDeleted, ...]:
        """All writes: first the deleted runs, then the rows in the order of kind and key."""
        slots = sorted(self._changed, key=lambda slot: (slot[0].__name__, slot[1]))
        rows = [Write(kind, key, self._seen[kind, key]) for kind, key in slots]
        return (*map(RunDeleted, self._deleted_runs), *rows)

    def _is_deleted(self, key: Key) -> bool:
        return bool(self._deleted_runs) and bool(key) and key[0] in self._deleted_runs
