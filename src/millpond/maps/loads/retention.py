"""Files of a pond's parts, and the retention of merged ones.

Retained parts serve a replica that was away, and what a stream reads: the log reaches back as far as
there are parts for all its loads, and no further (`cover`).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.loads.loads import Loads
from millpond.maps.log.log import TRIMMED_AT_ONCE, Entry, newest_first, trim, trim_whole
from millpond.maps.log.queue import (
    PartStatus,
    Quarantined,
    Queued,
    applied_everywhere,
    queued_part,
    queued_parts,
    waiting_maps,
)
from millpond.maps.log.retained import due, forget_retained, index_retained
from millpond.maps.model.keyspaces import QUARANTINE, RETAINED

__all__ = ("LOG_ENTRIES_MAX", "cover", "expire", "let_go", "part_file", "part_statuses", "tidy_up")

LOG_ENTRIES_MAX = 100_000
"""So many entries of its log a pond has that keeps no parts."""
TRIM_EVERY = 256
TIDY_MS = 60_000
EXPIRED_AT_ONCE = 1_000
EXPIRED_MAX = 50_000
"""The parts that one round lets go: more are held in memory by nobody, and go with the next."""
_position_of = attrgetter("position")


def part_file(loads: Loads, part: str) -> Path | None:
    """The file of a part that waits, is merged now, or is kept; None when there is none."""
    with loads.space.read() as tx:
        row = _find(tx, part)
    if row is None:
        return None
    # It may come back from quarantine while it is looked for: that place is the first.
    # It may come back from quarantine while it is looked for: that place is the first.
    return next((place for place in reversed(loads.places.of(row)) if place.exists()), None)


def _find(tx: ReadTransaction, part: str) -> Queued | None:
    retained = _retained_now(tx, part)
    if retained is not None:
        return retained
    rows = (queued_part(tx, name, part) for name in waiting_maps(tx))
    return next((part for part in rows if part is not None), None)


def part_statuses(loads: Loads, only: str | None = None) -> list[PartStatus]:
    """Every part there is (or of one map), in the order in which they were entered."""
    with loads.space.read() as tx:
        names = waiting_maps(tx) if only is None else [only]
        queue = [part for name in names for part in queued_parts(tx, name)]
        retained = [Queued.from_json(value) for _, value in tx.scan(RETAINED.range())]
        quarantine = [Quarantined.from_json(value) for _, value in tx.scan(QUARANTINE.range())]
    queued = {part.part for part in queue}
    failures = {failure.map: failure.reason for failure in loads.failures.all()}
    statuses = [
        replace(
            _status(part, "merging" if part.part in loads.merging else "queued"),
            reason=failures.get(part.map, ""),
        )
        for part in queue
    ]  # fmt: skip
    statuses += [_status(part, "retained") for part in retained if only in (None, part.map) and part.part not in queued]
    statuses += [_quarantined_status(part) for part in quarantine]
    return sorted((part for part in statuses if only in (None, part.map)), key=lambda part: part.number)


def _status(queued: Queued, state: str) -> PartStatus:
    return PartStatus(
        state=state, map=queued.map, part=queued.part, number=queued.number, position=queued.position, load=queued.load,
        rows=queued.rows, bytes=queued.bytes, source=queued.source, since_ms=queued.queued_ms,
    )  # fmt: skip


def _quarantined_status(quarantined: Quarantined) -> PartStatus:
    if quarantined.queued is not None:
        status = replace(_status(quarantined.queued, "quarantined"), since_ms=quarantined.since_ms)
        return replace(status, reason=quarantined.reason)
    return PartStatus(
        state="quarantined",
        map=quarantined.map,
        part=quarantined.part,
        number=quarantined.number,
        position=0,
        load="",
        rows=0,
        bytes=0,
        source="",
        since_ms=quarantined.since_ms,
        reason=quarantined.reason,
    )


# -- how long -----------------------------------------------------------------------------------------


def expire(loads: Loads, before_ms: int) -> int:
    """Remove parts that were merged before a time, the oldest up to `EXPIRED_MAX`, and the log that speaks of them; how
    many parts.
    """
    index_retained(loads.space)
    with loads.space.read() as tx:
        expired = due(tx, before_ms, EXPIRED_MAX)
    empty = [key for key, part in expired if part is None]
    if empty:
        loads.space.write(lambda tx: [tx.delete(key) for key in empty])
    return let_go(loads, [part for _, part in expired if part is not None])


def let_go(loads: Loads, parts: Sequence[Queued]) -> int:
    """Remove merged parts, and the log that speaks of them; how many parts."""
    # The oldest first: each write below trims the log by as many entries as it lets go of parts.
    old = sorted(parts, key=_position_of)
    gone = 0
    for some in (old[first : first + EXPIRED_AT_ONCE] for first in range(0, len(old), EXPIRED_AT_ONCE)):
        # Nobody may enter a load meanwhile that finds a part here, and relies on its file.
        with loads.alone():
            left = loads.space.write(partial(_leave, some))
            step("kept.expired")
            for part in left:
                loads.places.part(part.part).unlink(missing_ok=True)
        gone += len(left)
    return gone


def _leave(old: Sequence[Queued], tx: Transaction) -> list[Queued]:
    """Forget these parts, but for those that are merged again, and trim the log to what is left."""
    gone = [
        part for part in old
        if _retained_now(tx, part.part) == part and queued_part(tx, part.map, part.part) is None
    ]  # fmt: skip
    for part in gone:
        forget_retained(tx, part)
    trim(tx, min(max((part.position for part in gone), default=0), applied_everywhere(tx)) + 1)
    return gone


def _retained_now(tx: ReadTransaction, part: str) -> Queued | None:
    row = tx.get(RETAINED.pack(part))
    return None if row is None else Queued.from_json(row)


def tidy_up(loads: Loads, position: int) -> None:
    """After a load into a folder that nobody serves: let go of what is older than it is kept, now and then."""
    now = loads.clock.now_ms()
    if loads.keep:
        if now - loads.expired_ms >= TIDY_MS:
            loads.expired_ms = now
            expire(loads, now - loads.keep_ms)
    elif position % TRIM_EVERY == 0:
        loads.space.write(lambda tx: trim(tx, position - LOG_ENTRIES_MAX, TRIMMED_AT_ONCE))


def cover(space: Space) -> int:
    """Trim the log to what there are parts for, never what is not applied; how many entries went."""
    with space.read() as tx:
        # From the newest on: the entries before one without its parts are not read, however many there are.
        there = {part.part for name in waiting_maps(tx) for part in queued_parts(tx, name)}
        there |= {Quarantined.from_json(value).part for _, value in tx.scan(QUARANTINE.range())}
        first = next((entry.position + 1 for entry in newest_first(tx) if not _has_parts(tx, entry, there)), 0)
        first = min(first, applied_everywhere(tx) + 1)
    return trim_whole(space, first)


def _has_parts(tx: ReadTransaction, entry: Entry, there: AbstractSet[str]) -> bool:
    """True when the parts of an entry are `there`, or retained."""
    ids = [part["id"] for part in entry.body["parts"]] if entry.kind == "load" else []
    return all(id_ in there or tx.get(RETAINED.pack(id_)) is not None for id_ in ids)
