"""Timers as rows: a request, and the instant at which it becomes a command.

    TIMER · ms · tenant · name         the request
    TIMER_TIME · tenant · name         ms, and the ms at which it was set

Invariants:
* a clock that was ahead takes no timer with it: those that were set by it are set anew when it is known, see
  `pull_back`;
* a name has at most one timer; setting it again replaces it;
* a timer is taken in the transaction that applies its command, so each fires once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import islice
from typing import cast

from millpond.errors import Corrupt
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.workflows.engine import Key, Request, ScheduleDue, TimerSet
from millpond.workflows.keyspaces import TIMER, TIMER_TIME
from millpond.workflows.processor.codec import decode_request, encode_request

__all__ = (
    "TIMERS_PULLED_PER_WRITE",
    "DueTimer",
    "cancel_timer",
    "cancel_timers_of",
    "due_timers",
    "next_due",
    "pull_back",
    "set_timer",
    "take_timer",
)

TIMERS_PULLED_PER_WRITE = 5_000
_TIME = struct.Struct(">q")
_TIMES = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class DueTimer:
    """A timer whose instant has come; its name begins with its run."""

    tenant: str
    name: Key
    at: int


def set_timer(tx: Transaction, tenant: str, timer: TimerSet, now: int) -> None:
    """Set a timer in place of the one with its name."""
    key = cancel_timer(tx, tenant, timer.name)
    tx.put(TIMER.pack(timer.at, tenant, *timer.name), encode_request(timer.request))
    tx.put(key, _TIMES.pack(timer.at, now))


def cancel_timer(tx: Transaction, tenant: str, name: Key) -> bytes:
    """Cancel a timer; one that is not set is no error. The key of its instant."""
    key = TIMER_TIME.pack(tenant, *name)
    row = tx.get(key)
    if row is not None:
        delete_rows(tx, [key, TIMER.pack(_TIME.unpack_from(row)[0], tenant, *name)])
    return key


def cancel_timers_of(tx: Transaction, tenant: str, run: str) -> None:
    """Cancel all timers of a run."""
    here = TIMER_TIME[tenant][run]
    for key, row in list(tx.scan(here.range())):
        name = (run, *here.unpack(key))
        delete_rows(tx, [key, TIMER.pack(_TIME.unpack_from(row)[0], tenant, *name)])


def pull_back(tx: Transaction, now: int, limit: int) -> int:
    """Set timers anew that were set at instants that are still to come; the number of them, at most `limit`.

    Each is due as long after now as it was due after it was set; a schedule finds its next instant itself, now.

    Raises:
        Corrupt: a row is damaged.
    """
    ahead = ((key, row) for key, row in tx.scan(TIMER_TIME.range()) if _set_at(row) > now)
    rows = list(islice(ahead, limit))
    for key, row in rows:
        at, since = _TIMES.unpack(row)
        tenant, *name = cast("tuple[str, ...]", TIMER_TIME.unpack(key))
        request = take_timer(tx, DueTimer(tenant, tuple(name), at))
        if request is None:
            raise Corrupt("a timer has no request", kind="run_row_damaged", of=repr(name))
        due = now if isinstance(request, ScheduleDue) else max(now, now + at - since)
        set_timer(tx, tenant, TimerSet(tuple(name), due, request), now)
    return len(rows)


def _set_at(row: bytes) -> int:
    """The instant at which a timer was set; one of an earlier release does not say it."""
    return int(_TIMES.unpack(row)[1]) if len(row) == _TIMES.size else 0


def next_due(tx: ReadTransaction) -> int | None:
    """The instant of the earliest timer."""
    key = next(tx.keys(TIMER.range()), None)
    return None if key is None else _at(TIMER.unpack(key))


def due_timers(tx: ReadTransaction, now: int, limit: int) -> list[DueTimer]:
    """The timers whose instant has come, the earliest first, at most `limit`."""
    timers = []
    for key in islice(tx.keys(TIMER.range((), (now + 1,))), limit):
        at, tenant, *name = TIMER.unpack(key)
        timers.append(DueTimer(str(tenant), tuple(name), _at((at,))))  # type: ignore[arg-type]
    return timers


def take_timer(tx: Transaction, timer: DueTimer) -> Request | None:
    """Take one timer, as it was set for an instant; None when it was taken, cancelled or set anew since.

    Raises:
        Corrupt: the row is damaged.
    """
    key = TIMER.pack(timer.at, timer.tenant, *timer.name)
    request = tx.get(key)
    if request is None:
        return None
    delete_rows(tx, [key, TIMER_TIME.pack(timer.tenant, *timer.name)])
    return decode_request(request)


def _at(parts: tuple[object, ...]) -> int:
    if not parts or not isinstance(parts[0], int):
        raise Corrupt("a timer has no instant", kind="run_row_damaged", of=repr(parts))
    return parts[0]
