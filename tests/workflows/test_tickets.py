"""Tickets of loads: of all attempts at a step at most one load is entered, whatever is killed where."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import millpond
from millpond.client.pond import RemotePond
from millpond.errors import Closed
from millpond.maps.parts.part import PartFile
from millpond.pipelines.tickets import earlier_load, refuse_void, ticket_of, void
from millpond.pond import Pond, open_pond
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.harness.rows import canonical_of
from tests.rings.forked import run
from tests.rings.sampling import drawn
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


KEY = "run_guid_id"
CHILD = """
import sys
import millpond
from millpond.pipelines.tickets import void
from millpond.testing import faults

folder, branch, act, file = sys.argv[1:]
with millpond.open(folder, events_reports=False) as pond:
    armed = faults.arm()
    if act == "load":
        place = pond.branch(branch) if branch else pond
        place.load_files([file], "heights", source="run_guid_id", load_id="run_guid_id")
    else:
        void(pond, "run_guid_id")
"""


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("act", ["load", "void"])
@pytest.mark.parametrize(("store", "branch"), [("shard", ""), ("layers", ""), ("layers", "own")])
def test_a_ticket_is_void_whenever_the_process_is_killed_that_loads_or_voids(
    tmp_path: Path, store: str, branch: str, act: str
) -> None:
    file, late = tmp_path / "rows.csv", tmp_path / "late.csv"
    file.write_text("key,value\nJFK,1\n")
    late.write_text("key,value\nJFK,2\nLGA,2\n")

    def left(name: str, variable: str, value: str) -> tuple[Path, int]:
        with millpond.open(tmp_path / name, create=True, events_reports=False) as pond:
            pond.create_map("heights", kind="state", value="long", store=store)
            if branch:
                pond.refs.create_branch(branch)
        words = ["python", "-c", CHILD, str(tmp_path / name), branch, act, str(file)]
        return tmp_path / name, run(words, env=os.environ | {variable: value}).returncode

    assert left("whole", STEPS_LOG, str(tmp_path / "log"))[1] == 0
    moments = occurrences(tmp_path / "log")
    assert any(moment.startswith(("load.committed:", "refs.committed:")) for moment in moments)
    for number, moment in drawn(list(enumerate(moments)), 1, name=f"tickets {store} {branch} {act}"):
        folder, code = left(str(number), KILL_AT, moment)
        assert code == -signal.SIGKILL, moment
        with open_pond(folder, events_reports=False) as pond:
            assert_void_or_entered(pond, branch, late, moment)


def assert_void_or_entered(pond: Pond, branch: str, late: Path, moment: str) -> None:
    """The next attempt voids the ticket, or gets its load; one that was thought to be gone enters nothing any more."""
    place = pond.branch(branch) if branch else pond
    entered = earlier_load(pond, KEY, 1)
    for _ in range(2):
        pond.merge()
        rows = place.map("heights").lookup(["JFK", "LGA"]).to_pylist()
        assert rows == ([None, None] if entered is None else [1, None]), moment
        with suppress(Closed):
            refuse_void(pond, KEY, place.load_files([late], "heights", source=KEY, load_id=KEY))
            assert entered is not None, moment
        assert void(pond, KEY) == entered, moment
    if entered is None:
        place.load_files([late], "heights", source=KEY, load_id=ticket_of(KEY, 1))
        pond.merge()
        assert place.map("heights").lookup(["JFK", "LGA"]).to_pylist() == [2, 2], moment
    assert pond.verify(full=True).ok, moment
