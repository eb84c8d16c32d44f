"""Metrics of streams, of the newest backup and of refusals, as a node shows them."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from millpond.clock import ManualClock
from millpond.events.ages import Ages
from millpond.events.census import Census, Count
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.index import State
from millpond.events.names import StreamName
from millpond.events.protocol import Work
from millpond.nodes.backups.create import create_backup
from millpond.nodes.backups.source import FolderSource
from millpond.nodes.tokens import hash_token
from millpond.pond import open_pond
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import FolderObjects

if TYPE_CHECKING:
    from tests.nodes.conftest import Served

DAY = 86_400_000
LAG = "millpond_events_maintenance_lag_seconds"


def shown(node: Served, name: str, **labels: str) -> float | None:
    """A value on the page; None where there is none."""
    page = node.get("/metrics").body.decode()
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    found = [one.value for one in samples if one.name == name and labels.items() <= one.labels.items()]
    assert len(found) <= 1, (name, labels, found)
    return found[0] if found else None


def test_what_is_appended_is_counted_by_surface(node: Served) -> None:
    line = b'{"payload": "12345", "position": %d}\n'
    for positions in ((1, 2), (1, 2), (2, 3)):  # what comes again is stored once, and counts once
        node.post("/v1/events?queue=q&job_set=j&source=s", b"".join(line % position for position in positions))
    node.post("/v1/events?queue=q&job_set=j", b'{"payload": "x", "headers": {"long": "header"}}')
    node.post("/v1/events?queue=&job_set=j", line)  # refused
    assert shown(node, "millpond_events_appended_total", surface="http") == 4
    assert shown(node, "millpond_events_appended_bytes_total", surface="http") == 16
    assert shown(node, "millpond_events_past_retention_total", surface="http") == 0
    node.post("/v1/events?queue=q&job_set=old", b'{"payload": "", "time": "2000-01-01T00:00:00Z"}\n' * 2)
    assert shown(node, "millpond_events_past_retention_total", surface="http") == 2


@pytest.mark.settings(events_retention="3d", nodes_intervals={"events": "100d"})
def test_days_by_state_and_the_lag_of_maintenance(node: Served) -> None:
    node.pond.events.settings.set("etl", "nightly", compress_after="1d")
    assert shown(node, LAG, work="compress") is None  # the job has not run yet
    for _ in range(5):
        node.pond.events.append("etl", "nightly", [b"x" * 300])
        node.clock.now += DAY
    node.post("/v1/jobs/events/run?wait=30")
    days = {state: shown(node, "millpond_events_days", state=state.value) for state in State}
    assert days == {State.OPEN: 1, State.CLOSED: 0, State.COMPRESSED: 2, State.EXPIRED: 0}
    assert (shown(node, "millpond_events_stored_bytes", state="open") or 0) >= 300
    assert shown(node, "millpond_events_streams") == 1
    assert (shown(node, LAG, work="compress"), shown(node, LAG, work="expire")) == (0, 0)
    node.clock.advance(2 * DAY)  # and the job does not run
    found = {work: shown(node, LAG, work=work) for work in ("compress", "expire")}
    behind = node.clock.now % DAY / 1000
    assert found == {"compress": 86_400 + behind, "expire": 86_400 + behind}
    node.post("/v1/jobs/events/run?wait=30")
    assert (shown(node, LAG, work="compress"), shown(node, LAG, work="expire")) == (0, 0)


@pytest.mark.settings(events_retention="off", nodes_intervals={"events": "100d"})
def test_work_that_is_off_has_no_lag(node: Served) -> None:
    node.pond.events.append("etl", "nightly", [b"x"])
    node.post("/v1/jobs/events/run?wait=30")
    assert shown(node, LAG, work="expire") is None
    assert shown(node, "millpond_events_days", state="open") == 1


def test_a_census_goes_on_where_it_stopped_and_shows_whole_counts_alone() -> None:
    clock = ManualClock(DAY)
    store = EmbeddedStore(MemorySpace(), clock)
    streams = [StreamName("q", f"{number:03}") for number in range(7)]
    for number, stream in enumerate(streams):
        clock.now = (1 + number) * DAY
        store.append([EventBatch(stream, [NewEvent(clock.now, b"x")])])
    store.close_day(streams[0], 1)
    census, stopping, ages = Census(store), threading.Event(), Ages(2 * DAY, 3 * DAY)
    seen: list[Count | None] = []
    for _ in range(4):
        census.turn(stopping, ages, streams_max=3)
        seen.append(census.count)
    assert seen[:2] == [None, None]
    assert seen[2] is not None and seen[2] == seen[3]
    assert (seen[2].streams, dict(seen[2].days)) == (7, {State.OPEN: 6, State.CLOSED: 1})
    assert census.due_ms == {Work.COMPRESS: 4 * DAY, Work.EXPIRE: 5 * DAY}
    stopping.set()
    census.turn(stopping, ages)
    assert census.count == seen[3]


def test_the_newest_backup_is_looked_for_in_its_place(serve: Callable[..., Served], tmp_path: Path) -> None:
    node = serve(objects_backups=str(tmp_path / "backups"))
    assert shown(node, "millpond_backup_age_seconds") is None

    def looked() -> float | None:
        run = node.post("/v1/jobs/backups/run?wait=30").json()["last"]
        assert run["error"] is None
        return shown(node, "millpond_backup_age_seconds")

    assert looked() == math.inf
    place, scratch = FolderObjects(tmp_path / "backups"), tmp_path / "scratch"
    scratch.mkdir()
    with open_pond(tmp_path / "other", clock=node.clock) as other:
        for pond in (node.pond, other):  # the newest of all is of another pond, and counts for nothing
            create_backup(FolderSource(pond, node.clock), place, scratch, node.clock)
            node.clock.now += 60_000
    assert looked() == 120
    node.clock.now += DAY
    assert shown(node, "millpond_backup_age_seconds") == 86_520
    (tmp_path / "backups" / "backups" / "99991231T000000.000Z-1.json").write_bytes(b"damaged")
    assert node.post("/v1/jobs/backups/run?wait=30").json()["last"]["error"]
    assert shown(node, "millpond_backup_age_seconds") == 86_520


def test_a_node_without_a_place_for_backups_has_no_such_job(node: Served) -> None:
    assert node.post("/v1/jobs/backups/run").status == 404
    assert shown(node, "millpond_backup_age_seconds") is None


@pytest.mark.settings(
    server_grpc_port=0, server_tokens=[{"name": "one", "sha256": hash_token("one"), "rights": {"read": ["*"]}}]
)  # fmt: skip
def test_refusals_are_counted_by_surface_and_kind(node: Served) -> None:
    assert node.get("/v1/maps").status == 401
    assert node.get("/api/v1/repositories").status == 401
    with grpc.insecure_channel(f"127.0.0.1:{node.node.settings.server.grpc_port}") as channel:
        for method in ("/api.Submit/SubmitJobs", "/littlehorse.LittleHorse/Whoami"):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(method)(b"", timeout=30)
    page = {"headers": {"Authorization": "Bearer one"}}
    counted = re.findall(r'^millpond_requests_refused_total{kind="(.+)",surface="(.+)"} 1.0$',
                         node.get("/metrics", **page).body.decode(), re.MULTILINE)  # fmt: skip
    assert counted == [("token_missing", surface) for surface in ("http", "lakefs", "armada", "workflows")]


def test_a_busy_node_is_counted(node: Served) -> None:
    node.node.drain.active = True
    assert node.post("/v1/maps/m/get", {"keys": ["a"]}).status == 503
    assert shown(node, "millpond_requests_refused_total", surface="http", kind="node_not_ready") == 1
