"""Writes the golden pond of all parts of the present format: `python -m tests.data.make_parts`.

    tests/data/parts-<format>.zip    a map, a repository, a stream of events, a run that sleeps and one that waits

As `make_pond`, it writes no format twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from littlehorse.model import LHStatus, PutTaskDefRequest, RunWfRequest, WfRun
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.clock import ManualClock
from millpond.events.event import NewEvent
from millpond.maps.loads.pond_folder import POND_FORMAT
from millpond.pond import Pond, open_pond
from millpond.workflows.processor import Processor
from tests.data.make_pond import FOLDER, NOW_MS, pack
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

TENANT = "default"


def sleeps(wf: WorkflowThread) -> None:
    """A run of it sleeps for an hour."""
    wf.sleep(3600)


def works(wf: WorkflowThread) -> None:
    """A run of it waits for a worker."""
    wf.execute("work")


@contextmanager
def processing(pond: Pond, clock: ManualClock) -> Iterator[Processor]:
    """A processor of the pond's runs, whose turns are taken by hand."""
    processor = Processor(pond.space, clock, lambda _: None)
    yield processor
    processor.stop()


def do(processor: Processor, request: Message) -> Message | None:
    """The reply to a request."""
    reply = processor.submit(TENANT, request)
    while not reply.done():
        processor.turn()
    return reply.result()


def status(pond: Pond, processor: Processor, run: str) -> str:
    """The status of a run."""
    with pond.space.read() as tx:
        found = processor.partition.reads(tx, TENANT).get(WfRun, (run,))
    return "" if found is None else LHStatus.Name(found.status)


def fill(pond: Pond, clock: ManualClock) -> None:
    """Put something into every part."""
    pond.create_map("m", kind="state", value="long").load({"key": ["a"], "value": [1]})
    branch = pond.repositories.create("flights").branch("main")
    branch.put("day/1", b"committed")
    branch.commit("one day", committer="nobody")
    branch.put("day/2", b"staged")
    pond.events.append("etl", "nightly", [NewEvent(clock.now_ms(), b"payload", "started")])
    with processing(pond, clock) as processor:
        do(processor, PutTaskDefRequest(name="work"))
        for name, body in (("sleeps", sleeps), ("works", works)):
            do(processor, Workflow(name, body).compile())
            do(processor, RunWfRequest(wf_spec_name=name, id=name))


def build(folder: Path) -> None:
    """Make the pond."""
    clock = ManualClock(now=NOW_MS)
    with open_pond(folder, clock=clock, events_reports=False, maps_store="shard") as pond:
        fill(pond, clock)


def main() -> None:
    """Write the archive, unless the number is taken."""
    archive = FOLDER / f"parts-{POND_FORMAT}.zip"
    if archive.exists():
        sys.exit(f"{archive.name} is there: a pond that is stored is not written again")
    with scratch_folder() as scratch:
        build(scratch / "pond")
        pack(scratch / "pond", archive)


if __name__ == "__main__":
    main()
