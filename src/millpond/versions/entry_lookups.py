"""Entries that several requests look for at about the same time, in a space behind a network: one statement finds all.

    flights, main, a.csv ─┐      the state of `main` as it was remembered      rows that made it: repository, branch, …
    flights, main, b.csv ─┼─▶                                              ─▶  rows of each path in each of its tokens
    flights, v1,   a.csv ─┘                                                    read together, at one moment
                                 the rows that made it are the same ─▶ the state is that of this moment: entries

So a lookup costs one journey, which others share, where a transaction would make one for each row.

Invariants:
* An entry is what its reference holds at a moment after it was asked for: a state counts when every row that was read
  to make it has the value that it had then.
* `find_all` waits for the one statement alone. An entry below the tokens is found in ranges that are held in memory;
  a state that is not remembered, and a file that is not held, are for `find`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from millpond.errors import MillpondError
from millpond.kernel.cache import Cache
from millpond.kernel.keys import KeyRange
from millpond.kernel.space import ReadTransaction, RemoteSpace, WouldBlock
from millpond.ranges import HeldObjects
from millpond.versions.reference import view_at
from millpond.versions.staging.publishing import guard_published
from millpond.versions.staging.reads import View, find_entry, rows_of_path
from millpond.versions.staging.writes import entry_not_found

if TYPE_CHECKING:
    from millpond.versions.objects.entries import Entry
    from millpond.versions.repository import Repository
    from millpond.versions.repository_context import RepositoryContext

__all__ = ("EntryLookups", "EntryName")

STATES_MAX = 1_000
_Find: TypeAlias = "Callable[[ReadTransaction, str], Repository]"


class EntryName(NamedTuple):
    """An entry that is looked for."""

    repository: str
    ref: str
    path: str


class EntryLookups:
    """Lookups in one space; `find` reads the repository of a name in a transaction."""

    def __init__(self, space: RemoteSpace, find: _Find) -> None:
        self._space, self._find = space, find
        self._states: Cache[tuple[str, str], _State] = Cache(STATES_MAX)

    def find_all(self, names: Sequence[EntryName]) -> list[tuple[RepositoryContext, Entry] | MillpondError]:
        """The context and the entry of each name, or its error; `WouldBlock` where only a transaction can tell.

        Raises: as `Space.read`.
        """
        states = [self._states.get(name[:2]) for name in names]
        keys, ranges = dict[bytes, None](), dict[KeyRange, None]()
        for name, state in zip(names, states, strict=True):
            if state is not None:
                of_path, tombstones = rows_of_path(state.view, name.path)
                keys.update(dict.fromkeys((*state.rows, *of_path)))
                ranges.update(dict.fromkeys(tombstones))
        rows, last = self._space.read_together(list(keys), list(ranges)) if keys else ({}, [])
        moment = _Rows(rows, dict(zip(ranges, last, strict=True)))
        return [self._answer(name, state, moment) for name, state in zip(names, states, strict=True)]

    def find(self, name: EntryName) -> tuple[RepositoryContext, Entry]:
        """The context and the entry of a name, in a transaction; the state of its reference is remembered.

        Raises: as `Reference.stat`; `NotFound` for the repository.
        """
        context, entry = guard_published(lambda: self._read(name))
        if entry is None:
            raise entry_not_found(name.path)
        return context, entry

    def _read(self, name: EntryName) -> tuple[RepositoryContext, Entry | None]:
        with self._space.read() as tx:
            noting = _Noting(tx)
            context = self._find(noting, name.repository).context
            view = view_at(context, noting, name.ref)
            if not noting.scanned:  # else more rows could come between those that were read
                held = replace(context, ranges=HeldObjects(context.ranges))
                self._states.put(name[:2], _State(context, held, noting.rows, view))
            return context, find_entry(context, tx, view, name.path)

    def _answer(
        self, name: EntryName, state: _State | None, moment: _Rows
    ) -> tuple[RepositoryContext, Entry] | MillpondError:
        if state is None or any(moment.get(key) != value for key, value in state.rows.items()):
            return WouldBlock("the state of the reference is not known, or is another by now")
        try:
            entry = find_entry(state.held, moment, state.view, name.path)
        except MillpondError as error:
            return error
        return entry_not_found(name.path) if entry is None else (state.context, entry)


@dataclass(frozen=True, slots=True)
class _State:
    """The state that a reference named, and the rows that made it: those that were missing are None."""

    context: RepositoryContext
    held: RepositoryContext
    """The same, with the ranges that are held."""
    rows: dict[bytes, bytes | None]
    view: View


class _Rows:
    """Rows and last keys of one moment."""

    def __init__(self, rows: dict[bytes, bytes], last: dict[KeyRange, bytes | None]) -> None:
        self._rows, self._last = rows, last

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        assert reverse
        last = self._last[keys]
        return iter(() if last is None else (last,))


class _Noting:
    """A transaction that notes the rows that are read of it."""

    def __init__(self, tx: ReadTransaction) -> None:
        self._tx = tx
        self.rows: dict[bytes, bytes | None] = {}
        self.scanned = False

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._tx.get_many(keys)
        self.rows.update(zip(keys, values, strict=True))
        return values

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self.scanned = True
        return self._tx.scan(keys, reverse=reverse)

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        self.scanned = True
        return self._tx.keys(keys, reverse=reverse)
