"""Tickets of loads: of all attempts at a step at most one load is entered, whatever is killed where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millpond
from millpond.client.pond import RemotePond
from millpond.maps.parts.part import PartFile
from millpond.pipelines.tickets import earlier_load, ticket_of, void
from millpond.pond import Pond
from tests.harness.rows import canonical_of
from tests.workflows.conftest import WorkflowServer


@pytest.fixture(params=["folder", "node"])
def pond(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pond | RemotePond]:
    if request.param == "folder":
        with millpond.open(tmp_path / "pond") as opened:
            yield opened
        return
    server = WorkflowServer(tmp_path / "pond")
    server.start()
    try:
        with millpond.open(f"http://127.0.0.1:{server.port}") as remote:
            yield remote
    finally:
        server.end()


def sealed(pond: Pond | RemotePond, value: int) -> list[PartFile]:
    writer = pond.part_writer("heights", source=str(value))
    writer.write(canonical_of(pond.map("heights").definition, [(("JFK",), value)]))
    return writer.finish()


def test_nothing_is_entered_under_a_void_ticket(pond: Pond | RemotePond) -> None:
    pond.create_map("heights", kind="state", value="long")
    key = "run_guid_id"
    late = sealed(pond, 1)
    assert void(pond, ticket_of(key, 0)) is None
    assert pond.commit_load(late, load_id=ticket_of(key, 0)).parts == 0
    assert pond.map("heights").get("JFK") is None
    # The next attempt has a ticket of its own, and one after that gets its load.
    assert earlier_load(pond, key, 1) is None
    pond.commit_load(sealed(pond, 2), load_id=ticket_of(key, 1), wait=True)
    load = earlier_load(pond, key, 2)
    assert load is not None and (load["load"], load["rows"]) == (ticket_of(key, 1), 1)
    assert void(pond, ticket_of(key, 1)) == load
    assert pond.map("heights").get("JFK") == 2
