"""Work on the runs of all partitions over one broker, though a process is killed in its middle."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("littlehorse")
if find_spec("confluent_kafka") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from littlehorse.model import (
    BulkDeleteWfRun,
    BulkJob,
    BulkJobStatus,
    CreateBulkJobRequest,
    DeleteBulkJobRequest,
    ExternalEventDefId,
    GetBulkJobRequest,
    LHStatus,
    MigrateWfSpecRequest,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    RunWfRequest,
    SearchBulkJobRequest,
    SearchWfRunRequest,
    WfRunId,
)
from littlehorse.workflow import Workflow

from tests.harness.cluster import wait_for
from tests.workflows.conftest import SECONDS
from tests.workflows.shared_servers import SharedServer, shared_servers
from tests.workflows.test_shared import tried, until_all_are_known

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sample(1, of="processes that share workflows")

RUNS = 450
"""Each of two partitions has more of them than it takes in two steps."""
DONE = BulkJobStatus.BULK_JOB_COMPLETED


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SharedServer]]:
    with shared_servers(tmp_path_factory.mktemp("jobs"), 2, partitions=2) as made:
        with made[0].stub() as stub:
            until_all_are_known(stub, 2)
            tried(stub.PutExternalEventDef, PutExternalEventDefRequest(name="ready"))
        yield made


def begun(stub: Any, spec: str, runs: list[str]) -> None:
    calls = [stub.RunWf.future(RunWfRequest(wf_spec_name=spec, id=run), timeout=SECONDS) for run in runs]
    for call in calls:
        call.result()


def number_of(stub: Any, spec: str, **more: Any) -> int:
    """The number of runs of a specification, by a search over all partitions."""
    return len(tried(stub.SearchWfRun, SearchWfRunRequest(wf_spec_name=spec, limit=1_000, **more)).results)


def killed_and_begun_anew(server: SharedServer) -> None:
    server.end(signal.SIGKILL)
    server.start()


def test_a_bulk_job_deletes_the_runs_of_all_partitions_though_a_process_is_killed(servers: list[SharedServer]) -> None:
    with servers[0].stub() as stub:
        for name in ("ends", "kept"):
            stub.PutWfSpec(Workflow(name, lambda wf: None).compile())
        begun(stub, "ends", [f"ends-{number}" for number in range(RUNS)])
        begun(stub, "kept", ["kept-1"])
        deletion = BulkDeleteWfRun(wf_spec_name="ends", wf_run_status=LHStatus.COMPLETED)
        deletion.latest_start.seconds = 9_999_999_999
        job = stub.CreateBulkJob(CreateBulkJobRequest(id="gone", bulk_delete_wf_run=deletion))
        assert [part.id for part in job.subprocesses] == [1, 2]
        killed_and_begun_anew(servers[1])

        def seen() -> BulkJob:
            return tried(stub.GetBulkJob, GetBulkJobRequest(id=job.id))  # type: ignore[no-any-return]

        wait_for(lambda: seen().status == DONE, "the end of the job", SECONDS)
        assert all(part.status == DONE and part.HasField("last_seen_key") for part in seen().subprocesses)
        assert (number_of(stub, "ends"), number_of(stub, "kept")) == (0, 1)
        with servers[1].stub() as second:
            assert tried(second.GetBulkJob, GetBulkJobRequest(id=job.id)) == seen()
            tried(second.DeleteBulkJob, DeleteBulkJobRequest(id=job.id))
        assert not tried(stub.SearchBulkJob, SearchBulkJobRequest()).results


def test_a_migration_moves_the_runs_of_all_partitions_though_a_process_is_killed(servers: list[SharedServer]) -> None:
    newer = {"wf_spec_major_version": 0, "wf_spec_revision": 1}
    with servers[0].stub() as stub:
        spec = tried(stub.PutWfSpec, Workflow("flow", lambda wf: wf.wait_for_event("ready") and None).compile())
        begun(stub, "flow", [f"flow-{number}" for number in range(RUNS)])
        ready = ExternalEventDefId(name="ready")
        event = PutExternalEventRequest(wf_run_id=WfRunId(id="flow-0"), external_event_def_id=ready)
        stub.PutExternalEvent(event)
        stub.PutWfSpec(Workflow("flow", lambda wf: wf.wait_for_event("ready") and wf.sleep(3600) and None).compile())
        stub.MigrateWfSpec(MigrateWfSpecRequest(old_wf_spec=spec.id, migration={"new_revision": 1}))
        killed_and_begun_anew(servers[1])
        wait_for(lambda: number_of(stub, "flow", **newer) == RUNS - 1, "all open runs", SECONDS)
        event.wf_run_id.id = "flow-1"
        tried(stub.PutExternalEvent, event)
        found = [tried(stub.GetWfRun, WfRunId(id=f"flow-{number}")) for number in range(2)]
    assert [(run.wf_spec_id.revision, run.status) for run in found] == [(0, LHStatus.COMPLETED), (1, LHStatus.RUNNING)]
