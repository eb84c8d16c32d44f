"""Work on the runs of all partitions: each does its own part, and bulk jobs say where definitions are what is done."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

pytest.importorskip("littlehorse")
if find_spec("rocksdict") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from littlehorse.model import BulkJob, BulkJobId, BulkJobStatus, DeleteBulkJobRequest, LHStatus, RunWfRequest, WfRun
from littlehorse.workflow import Workflow

from millpond.errors import Conflict
from millpond.workflows.partitions import METADATA
from tests.harness.cluster import wait_for
from tests.models.workflows.test_bulk_jobs import job
from tests.unit.test_partitions import FLOWS, PARTITIONS, TENANT, Cluster

RUNNING, DONE = BulkJobStatus.BULK_JOB_RUNNING, BulkJobStatus.BULK_JOB_COMPLETED
RUNS = [f"run-{number}" for number in range(12)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.define()
    for name in ("ends", "kept"):
        made.do(Workflow(name, lambda wf: None).compile())
    yield made
    made.stop()


def rows_of(cluster: Cluster, name: str) -> list[BulkJob | None]:
    """The rows of a job on all partitions."""
    found = []
    for follower in cluster.followers:
        with follower.space.read() as tx:
            found.append(follower.partition.reads(tx, TENANT).get(BulkJob, (name,)))
    return found


def parts(cluster: Cluster) -> list[int]:
    """The status of the job `gone`, and of its parts."""
    row = rows_of(cluster, "gone")[METADATA]
    return [] if row is None else [row.status, *(part.status for part in row.subprocesses)]


def test_a_bulk_job_ends_when_its_parts_on_all_partitions_have(cluster: Cluster) -> None:
    for run in RUNS:
        cluster.do(RunWfRequest(wf_spec_name="kept" if run == "run-0" else "ends", id=run))
    made = cluster.do(job("gone"))
    assert isinstance(made, BulkJob)
    assert [part.id for part in made.subprocesses] == [1, 2, 3] and made.total_subprocesses == 3
    wait_for(lambda: parts(cluster) == [DONE] * 4, "the end of the job")
    cluster.settle()
    assert [run for run in RUNS if cluster.row(WfRun, run) is not None] == ["run-0"]
    ended = rows_of(cluster, "gone")[METADATA]
    assert ended is not None and all(part.HasField("last_seen_key") for part in ended.subprocesses)
    assert cluster.do(job("gone")) == ended
    cluster.do(DeleteBulkJobRequest(id=BulkJobId(id="gone")))
    cluster.settle()
    assert rows_of(cluster, "gone") == [None] * PARTITIONS


def test_a_bulk_job_waits_for_the_part_of_a_partition_that_nobody_owns(cluster: Cluster) -> None:
    cluster.followers[2].own(False)
    cluster.do(job("gone", LHStatus.ERROR))
    wait_for(lambda: parts(cluster) == [RUNNING, DONE, RUNNING, DONE], "the parts of others")
    with pytest.raises(Conflict):
        cluster.do(DeleteBulkJobRequest(id=BulkJobId(id="gone")))
    cluster.followers[2].own(True)
    wait_for(lambda: parts(cluster) == [DONE] * 4, "the end of the job")


def test_a_migration_of_a_specification_moves_the_runs_of_all_partitions(cluster: Cluster) -> None:
    first, second, onward = FLOWS
    cluster.do(first)
    for run in RUNS:
        cluster.do(RunWfRequest(wf_spec_name="flow", id=run))
    cluster.do(second)
    cluster.do(onward)

    def revisions() -> set[int]:
        rows = [cluster.row(WfRun, run) for run in RUNS]
        return {row.wf_spec_id.revision for row in rows if isinstance(row, WfRun)}

    wait_for(lambda: revisions() == {1}, "the runs")
