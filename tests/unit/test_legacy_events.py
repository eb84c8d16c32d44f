"""Events that a legacy store holds for a run which has not begun: the run takes them, moved or not."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    ExternalEvent,
    ExternalEventDefId,
    ExternalEventId,
    LHStatus,
    PutExternalEventDefRequest,
    RunWfRequest,
    Variable,
    VariableValue,
    WfRun,
    WfRunId,
)

from millpond.stores.lmdb.space import LmdbSpace
from millpond.workflows.engine import Request
from millpond.workflows.processor import Partition
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.store import RunStore, initialize
from tests.harness.legacy_rows import migrate_store, write_legacy
from tests.models.workflows.specs import request

NOW = 1_700_000_000_000


def event(guid: str, ms: int, *, claimed: bool = False) -> ExternalEvent:
    name = ExternalEventId(wf_run_id=WfRunId(id="r"), external_event_def_id=ExternalEventDefId(name="ready"), guid=guid)
    found = ExternalEvent(id=name, content=VariableValue(str=guid), claimed=claimed)
    found.created_at.FromMilliseconds(ms)
    return found


@pytest.mark.parametrize("moved", [False, True])
def test_a_run_takes_the_oldest_unclaimed_event(tmp_path: Path, moved: bool) -> None:
    space = LmdbSpace(tmp_path, durable=False)
    for found in (event("taken", 1, claimed=True), event("b", 2), event("a", 3)):
        space.write(lambda tx, found=found: write_legacy(tx, "acme", found))
    log = space.write(lambda tx: initialize(tx, NOW))
    assert log.legacy
    if moved:
        assert migrate_store(space, lambda tenant: RunStore(tenant, log, lambda _: ())) == 3
        log = space.write(lambda tx: initialize(tx, NOW))
        assert not log.legacy
    partition = Partition(log)

    def do(request: Request) -> None:
        (applied,) = space.write(lambda tx: partition.apply(tx, [LoggedCommand("acme", "id", request)], NOW))
        assert applied.error is None

    do(PutExternalEventDefRequest(name="ready"))
    do(request("awaits"))
    do(RunWfRequest(wf_spec_name="awaits", id="r"))
    with space.read() as tx:
        rows = partition.reads(tx, "acme")
        run, seen = rows.get(WfRun, ("r",)), rows.get(Variable, ("r", 0, "seen"))
        left = [key[2] for key, row in rows.list(ExternalEvent, ("r", "ready")) if not row.claimed]
    assert run is not None and run.status == LHStatus.COMPLETED
    assert seen is not None and (seen.value.str, left) == ("b", ["a"])
    space.close()
