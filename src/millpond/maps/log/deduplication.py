"""The loads that a pond remembers, so that a request that comes again enters nothing twice.

("maps", "load", load id)    the result of a load, JSON; it is trimmed with its entry
("maps", "stream", query)    the result of the last epoch of a stream, JSON; it goes with the last of the maps that
                             the stream brought rows to

A node writes the maps of a load before its query, "people,weather 5f1c…", see `scoped_query`: streams of other maps
have other rows, whatever their queries are called.

Invariants:
* an id is of one load, of its maps, on `main` or its branch: rows for others are refused under it, never dropped. One
  that was voided is of no map, and takes nothing of any.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self, TypeVar

from millpond.argument_types import need_list, need_type
from millpond.error_values import shown
from millpond.errors import Conflict, Invalid
from millpond.json_forms import JsonForm
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.log.log import Entry, entry_at
from millpond.maps.model.keyspaces import LOADS, STREAMS

__all__ = (
    "EPOCHS_AHEAD_MAX",
    "RememberedLoad",
    "check_epoch",
    "check_load_id",
    "check_stream",
    "forget_streams",
    "last_epoch",
    "maps_of_load",
    "maps_of_stream",
    "remember",
    "remembered",
    "scoped_query",
)

_LOAD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
EPOCHS_AHEAD_MAX = 10_000_000
"""Epochs without rows are not entered. With one a second, this many take four months."""
_MAPS_NAMED = 5
"""So many maps of a load are named in an error."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedLoad:
    """The result of a load: its entry, the number of its first part, and what it brought."""

    load: str
    rejected: int
    rows: dict[str, int]
    duplicates: int
    number: int
    position: int
    parts: int

    @classmethod
    def of(cls, body: Mapping[str, Any], position: int) -> Self:
        """The result of a load with this body, entered at a position."""
        return cls(
            load=body["load"], rejected=body["rejected"], rows=dict(body["rows"]), duplicates=body["duplicates"],
            number=body["number"], position=position, parts=len(body["parts"]) + len(body.get("layers", ())),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch(RememberedLoad):
    """The result of the last epoch of a stream. `maps`: all that it brought rows to; older rows do not list them."""

    epoch: int = 0
    maps: tuple[str, ...] = ()

    @property
    def reached(self) -> tuple[str, ...]:
        """The maps that the stream is known to have brought rows to."""
        return self.maps or tuple(self.rows)


_LOAD, _EPOCH = JsonForm(RememberedLoad), JsonForm(_Epoch)


def check_load_id(load: str) -> None:
    """Refuse what is no id of a load.

    Raises: `Invalid`.
    """
    need_type("load_id", load, str)
    if not _LOAD_ID.fullmatch(load):
        raise Invalid("a load id is letters, digits, and - _ . between", kind="load_id", load=repr(load))


def check_stream(stream: tuple[str, int] | None) -> None:
    """Refuse what is no stream: a query and the number of an epoch.

    Raises: `Invalid`.
    """
    if stream is None:
        return
    need_list("stream", stream, str, Integral)
    if [isinstance(part, str) for part in stream] != [True, False]:
        raise Invalid("a stream is a query and the number of an epoch", kind="stream_epoch", stream=shown(stream),
                      hint="such as ('5f1c', 12)")  # fmt: skip


def remember(tx: Transaction, entry: Entry) -> None:
    """Remember what a load entered, and of a stream its epoch."""
    body = entry.body
    load = RememberedLoad.of(body, entry.position)
    tx.put(LOADS.pack(load.load), _LOAD.encode(load))
    if body["stream"] is not None:
        query, epoch = body["stream"]
        before = _last_epoch(tx, query)
        maps = tuple(sorted({*load.rows, *(() if before is None else before.reached)}))
        last = replace(_Epoch.of(body, entry.position), epoch=epoch, maps=maps)
        tx.put(STREAMS.pack(query), _EPOCH.encode(last))


def remembered(
    tx: ReadTransaction, load: str | None, stream: tuple[str, int] | None, maps: Collection[str] = (), branch: str = ""
) -> RememberedLoad | None:  # fmt: skip
    """The entry made under this load id, or for this epoch of a stream or a later one; None if there is none.

    `maps`: those that the load brings rows to now, on a `branch` or on `main`; none when that is not known yet.

    Raises: `Conflict`, kind `load_taken`, when the id is of a load of others; `Corrupt` when its row cannot be read.
    """
    row = None if load is None else tx.get(LOADS.pack(load))
    if row is not None:
        earlier = _read(_LOAD, row)
        _refuse_others(tx, earlier, maps, branch)
        return earlier
    last = None if stream is None else _last_epoch(tx, stream[0])
    return last if last is not None and stream is not None and last.epoch >= stream[1] else None


def _refuse_others(tx: ReadTransaction, load: RememberedLoad, maps: Collection[str], branch: str) -> None:
    if not load.rows or not maps:
        return
    entry = entry_at(tx, load.position)
    there = "" if entry is None else str(entry.body.get("branch", ""))
    if there != branch or not load.rows.keys() >= set(maps):
        raise Conflict(
            "the load id is of a load of other maps", kind="load_taken", load=load.load, maps=_named(maps, branch),
            entered=_named(load.rows, there), hint="give this load an id of its own; the same id is for the same rows",
        )  # fmt: skip


def _named(maps: Iterable[str], branch: str) -> str:
    """The maps of a load, and its branch, for a message."""
    names = sorted(maps)
    more = f" and {len(names) - _MAPS_NAMED} more" if len(names) > _MAPS_NAMED else ""
    return f"{', '.join(names[:_MAPS_NAMED])}{more} on {branch or 'main'}"


def maps_of_load(tx: ReadTransaction, load: str) -> tuple[str, ...]:
    """The maps that a load brought rows to; none when there is no such load."""
    earlier = remembered(tx, load, None)
    return () if earlier is None else tuple(earlier.rows)


def maps_of_stream(tx: ReadTransaction, query: str) -> tuple[str, ...]:
    """The maps that a stream brought rows to; none when it has brought none."""
    last = _last_epoch(tx, query)
    return () if last is None else last.reached


def scoped_query(query: str, maps: Iterable[str]) -> str:
    """The name of a stream to these maps. No two pairs of maps and query have one name: a map's name has no space.

    >>> scoped_query("5f1c", {"weather", "people"})
    'people,weather 5f1c'
    """
    return f"{','.join(sorted(maps))} {query}"


def last_epoch(tx: ReadTransaction, query: str) -> int:
    """The last epoch of a stream that was entered on `main`; 0 when none was."""
    last = _last_epoch(tx, query)
    return 0 if last is None else last.epoch


def check_epoch(epoch: int, last: int) -> None:
    """Refuse an epoch that no stream comes to: every epoch up to it would count as entered from then on. `last`: the
    last epoch of the stream.

    Raises: `Invalid`, kind `stream_epoch`.
    """
    if not 0 <= epoch <= last + EPOCHS_AHEAD_MAX:
        raise Invalid(
            "the epoch is too far from the last one of this stream", kind="stream_epoch", epoch=epoch, last=last,
            ahead_max=EPOCHS_AHEAD_MAX, hint="epochs count up from 0; a query with a new checkpoint is a new stream",
        )  # fmt: skip


def forget_streams(tx: Transaction, name: str) -> None:
    """Forget the streams that brought rows to a map that is dropped, and to no other that is there."""
    for key, row in tx.scan(STREAMS.range()):
        epoch = _read(_EPOCH, row)
        if name not in epoch.reached:
            continue
        if left := tuple(other for other in epoch.reached if other != name):
            tx.put(key, _EPOCH.encode(replace(epoch, maps=left)))
        else:
            tx.delete(key)


def _last_epoch(tx: ReadTransaction, query: str) -> _Epoch | None:
    row = tx.get(STREAMS.pack(query))
    return None if row is None else _read(_EPOCH, row)


def _read(form: JsonForm[T], row: bytes) -> T:
    return form.stored(
        row, "what is remembered of a load cannot be read", kind="load_damaged", hint="restore the pond from a copy"
    )
