"""A log of many entries: a node that starts reads the newest ones, and old ones go in many small writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millpond.clock import ManualClock
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.loads import retention
from millpond.maps.loads.retention import cover, expire, part_file
from millpond.maps.log import log
from millpond.maps.log.log import Change, first_position
from millpond.maps.log.queue import Queued
from millpond.maps.log.retained import put_retained
from millpond.maps.model.keyspaces import LOADS, RETAINED, RETAINED_INDEXED, RETAINED_SINCE
from millpond.pond import Pond, open_pond

DAY = 86_400_000


def filled(folder: Path, loads: int, part_retention: str) -> Pond:
    pond = open_pond(folder, clock=ManualClock(now=DAY), maps_part_retention=part_retention, events_reports=False)
    made = pond.create_map("m", kind="state", value="long")
    for number in range(loads):
        made.load([{"key": "a", "value": number}])
    return pond


def first_of(pond: Pond) -> int:
    with pond.space.read() as tx:
        return first_position(tx)


def remembered(pond: Pond) -> int:
    with pond.space.read() as tx:
        return sum(1 for _ in tx.keys(LOADS.range()))


def test_a_node_that_starts_reads_back_to_the_newest_load_without_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    decode = Change.decode.__func__  # type: ignore[attr-defined]
    with filled(tmp_path, 10, "7d") as pond:
        [_, *entries] = pond.log.entries(0)
        part = entries[6].body["parts"][0]["id"]
        pond.space.write(lambda tx: tx.delete(RETAINED.pack(part)))

        def counted(row: bytes) -> Change:
            read.append(1)
            found: Change = decode(Change, row)
            return found

        counting = log.Log(log.LOG, Change.encode, counted)
        with monkeypatch.context() as patch:
            patch.setattr(log, "ENTRIES", counting)
            patch.setattr(log, "trim", lambda *_: 0)
            cover(pond.space)
        assert len(read) == len(entries) - 6, "the newest ones, down to that"
        assert cover(pond.space) == entries[6].position
        assert first_of(pond) == entries[7].position
        assert cover(pond.space) == 0


def test_a_long_log_is_trimmed_in_many_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(tx: Transaction, first: int, limit: int | None = None) -> int:
        sizes.append(trim(tx, first, limit))
        return sizes[-1]

    trim = log.trim
    monkeypatch.setattr(log, "trim", counted)
    monkeypatch.setattr(log, "TRIMMED_AT_ONCE", 4)
    filled(tmp_path, 10, "off").close()
    with open_pond(tmp_path, serve=True, events_reports=False) as pond:
        assert sizes == [4, 4, 3, 0]
        assert remembered(pond) == 0
        assert pond.log.position()[0] == 11
        assert first_of(pond) == 12


def test_the_oldest_parts_go_first_and_no_more_than_memory_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "EXPIRED_MAX", 4)
    with filled(tmp_path, 10, "7d") as pond:
        entries = [entry for entry in pond.log.entries(0) if entry.kind == "load"]
        for count, gone in ((4, 4), (4, 8), (2, 10)):
            assert expire(pond.loads, 2 * DAY) == count
            left = [entry.position for entry in entries if part_file(pond.loads, entry.body["parts"][0]["id"])]
            assert left == [entry.position for entry in entries[gone:]]
            assert first_of(pond) == entries[gone - 1].position + 1
        assert expire(pond.loads, 2 * DAY) == 0


def test_what_is_not_due_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what went some other way; a pond that an earlier version wrote is put in order once."""
    with filled(tmp_path, 6, "7d") as pond:
        pond.clock.advance(DAY)
        for number in range(6, 10):
            pond.map("m").load([{"key": "a", "value": number}])
        parts = [entry.body["parts"][0]["id"] for entry in pond.log.entries(0) if entry.kind == "load"]

        def forget(tx: Transaction) -> None:
            for key in [*tx.keys(RETAINED_SINCE.range()), *tx.keys(RETAINED_INDEXED.range())]:
                tx.delete(key)

        pond.space.write(forget)
        assert expire(pond.loads, DAY) == 0
        pond.space.write(lambda tx: tx.delete(RETAINED.pack(parts[0])))
        pond.space.write(lambda tx: put_retained(tx, replace(_retained(tx, parts[1]), queued_ms=9 * DAY)))
        read: list[int] = []
        parse = Queued.from_json
        with monkeypatch.context() as patch:
            patch.setattr(Queued, "from_json", lambda row: (read.append(1), parse(row))[1])
            assert expire(pond.loads, 2 * DAY) == 4
            assert len(read) <= 2 * 5, "those that are due, and once more before they go"
            read.clear()
            assert expire(pond.loads, 2 * DAY) == 0
            assert not read
        assert expire(pond.loads, 3 * DAY) == 4
        assert part_file(pond.loads, parts[1])
        with pond.space.read() as tx:
            assert len(list(tx.keys(RETAINED_SINCE.range()))) == 1


def _retained(tx: ReadTransaction, part: str) -> Queued:
    row = tx.get(RETAINED.pack(part))
    assert row is not None
    return Queued.from_json(row)
