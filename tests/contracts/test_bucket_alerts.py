"""Alerts of a pond in a bucket: whichever process loads, and however many at once, each is told once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from millpond.errors import Denied
from millpond.maps.alerts import crossings
from millpond.pond import Pond
from millpond.stores.objects import MemoryObjects, ObjectStore
from tests.harness.buckets.processes import pond_over

if TYPE_CHECKING:
    from pathlib import Path

HOUR_MS = 3_600_000
PROCESSES, LOADS = 3, 3


class ReadOnly:
    """Objects for who may not write."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)

    def put(self, name: str, data: bytes) -> None:
        raise Denied("the bucket refuses us", kind="objects_denied", object=name)

    def swap(self, name: str, data: bytes, expected: str | None) -> str:
        raise Denied("the bucket refuses us", kind="objects_denied", object=name)


def sales_of(pond: Pond, *rules: str) -> None:
    sales = pond.create_map("sales", kind="aggregate", value="orders long count, total long sum", resolution="1 hour")
    for rule in rules:
        sales.alerts.add(rule)


def alerts_in(pond: Pond) -> list[tuple[str, str, int]]:
    return [
        (event.headers["rule"], event.headers["key"], json.loads(event.payload)["after"]["orders"])
        for event in pond.events.read("millpond", "alerts/sales")
    ]


def test_processes_that_load_at_once_tell_each_crossing_once(tmp_path: Path) -> None:
    objects = MemoryObjects()

    def process(number: int) -> None:
        with pond_over(objects, tmp_path / f"{number}") as pond:
            for load in range(LOADS):
                total = 10 * number + load
                pond.map("sales").load([{"key": key, "time": HOUR_MS**2, "total": total} for key in "ab"])

    with pond_over(objects, tmp_path / "all") as pond:
        sales_of(pond, f"orders >= {PROCESSES * LOADS}", "orders >= 4", "orders > 100")
        with ThreadPoolExecutor(PROCESSES) as threads:
            list(threads.map(process, range(PROCESSES)))
        expected = [("alert_1", key, 9) for key in "ab"] + [("alert_2", key, 4) for key in "ab"]
        assert sorted(alerts_in(pond)) == expected
        assert pond.verify().ok


def test_what_a_process_left_is_told_by_others_who_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    objects = MemoryObjects()
    with monkeypatch.context() as patched:
        patched.setattr(Pond, "_tell_alerts", lambda _: None)
        killed = pond_over(objects, tmp_path / "killed")
    with killed, pond_over(objects, tmp_path / "one") as pond:
        sales_of(pond, "orders > 0")
        killed.map("sales").load([{"key": "a", "time": HOUR_MS**2, "total": 1}])
        with pond_over(ReadOnly(objects), tmp_path / "reader") as reader:  # type: ignore[arg-type]
            assert not alerts_in(reader) and not caplog.records
        with pond_over(objects, tmp_path / "other") as other:
            assert alerts_in(other) == alerts_in(pond) == [("alert_1", "a", 1)]


def test_judging_opens_the_pieces_of_the_keys_of_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, opened = MemoryObjects(), list[object]()
    with pond_over(objects, tmp_path / "one") as pond:
        sales_of(pond)
        keys = [f"{key:0100}" for key in range(50_000)]
        pond.map("sales").load([{"key": key, "time": HOUR_MS**2, "total": 1} for key in keys])
        pond.map("sales").alerts.add("orders > 1")
    monkeypatch.setattr(crossings.Snapshot, "open", lambda *about: opened.append(about))
    with pond_over(objects, tmp_path / "two") as pond:
        pond.map("sales").load([{"key": key, "time": HOUR_MS**2, "total": 2} for key in (keys[7], "new")])
        assert alerts_in(pond) == [("alert_1", keys[7], 2)]
    assert not opened
