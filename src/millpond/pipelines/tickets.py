"""Tickets of loads: the id under which an attempt enters its load, and that a later one voids.

    attempt 0 ─ ticket KEY ─────── lost, stopped, timed out
    attempt 1 ─ voids KEY; had it been entered, that is its result ─ ticket KEY.1

Invariants:
* of all attempts at a step at most one load is entered: an attempt voids the tickets of those before it first, and a
  void ticket is the id of a load that was entered as void, without rows, so that nothing is entered under it any more;
* a ticket whose load was entered stays as it is: who voids it gets that load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.errors import Closed

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.maps.loads.load import LoadResult
    from millpond.pond import Pond

__all__ = ("earlier_load", "refuse_void", "ticket_of", "void")


def ticket_of(key: str, attempt: int) -> str:
    """The ticket of an attempt at a step.

    >>> ticket_of("nightly_4f_a1", 0), ticket_of("nightly_4f_a1", 2)
    ('nightly_4f_a1', 'nightly_4f_a1.2')
    """
    return f"{key}.{attempt}" if attempt else key


def earlier_load(pond: Pond | RemotePond, key: str, attempt: int) -> dict[str, Any] | None:
    """The load that an attempt before this one entered; None when none did, and then none will.

    Raises: as `Pond.commit_load`.
    """
    for number in range(attempt):
        load = void(pond, ticket_of(key, number))
        if load is not None:
            return load
    return None


def void(pond: Pond | RemotePond, ticket: str) -> dict[str, Any] | None:
    """Void a ticket, so that no load is entered under it from now on; the load that was entered under it already.

    Raises: as `Pond.commit_load`.
    """
    result = pond.loading.void(ticket)
    body = _entered(pond, ticket, result.position)
    rows = sum(body["rows"].values()) if body else 0
    if not rows:
        return None
    on: dict[str, Any] = {name: body[name] for name in ("branch", "commit") if name in body}
    return {"load": ticket, "rows": rows, "rejected": body["rejected"], "position": result.position, **on}


def refuse_void(pond: Pond | RemotePond, ticket: str, result: LoadResult) -> None:
    """Refuse the result of a load whose ticket was void.

    Raises: `Closed`: the step was stopped, or another worker took it over, and this one is too late.
    """
    body = {} if result.rows else _entered(pond, ticket, result.position)
    if body and not body["parts"]:
        raise Closed("the step was stopped", kind="step_stopped")


def _entered(pond: Pond | RemotePond, ticket: str, position: int) -> dict[str, Any]:
    """The entry of a ticket at a position of the log; nothing when another one is there."""
    entry = next(iter(pond.log.entries(position - 1)), None) if position else None
    return entry.body if entry is not None and entry.kind == "load" and entry.body["load"] == ticket else {}
