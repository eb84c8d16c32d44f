"""Methods of the whole client, over the wire: searches by JSON, metrics, usage of quotas, migrations, bulk jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    BulkDeleteWfRun,
    BulkJobStatus,
    CountAndTiming,
    CreateBulkJobRequest,
    DeleteBulkJobRequest,
    ExternalEventDefId,
    GetBulkJobRequest,
    GetLatestWfSpecRequest,
    JsonIndex,
    LHStatus,
    ListQuotaUsageMetricsRequest,
    ListTaskMetricsRequest,
    ListWfMetricsRequest,
    MetricsWindowLength,
    MetricWindowId,
    MigrateWfSpecRequest,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    PutQuotaRequest,
    PutTaskDefRequest,
    QuotaId,
    ReportTaskRun,
    RunWfRequest,
    SearchBulkJobRequest,
    SearchVariableRequest,
    SearchWfMetricWindowRequest,
    SearchWfRunRequest,
    StopWfRunRequest,
    TaskDefId,
    TaskDefMetricsQueryRequest,
    TaskRunId,
    TaskStatus,
    TenantId,
    VariableType,
    VariableValue,
    WfRunId,
    WfSpecId,
    WfSpecMetricsQueryRequest,
)
from littlehorse.workflow import Workflow, WorkflowThread

from tests.harness.cluster import wait_for
from tests.rings.forked import run
from tests.workflows.conftest import SECONDS, WorkflowServer, code_of


@pytest.fixture
def stub(workflow_server: WorkflowServer) -> Iterator[Any]:
    """The client's own stub."""
    with workflow_server.stub() as found:
        yield found


def start(stub: Any, workflow: str, name: str, **inputs: VariableValue) -> None:
    stub.RunWf(RunWfRequest(wf_spec_name=workflow, id=name, variables=inputs))


def test_variables_are_found_by_the_items_of_a_list_and_by_json_paths(stub: Any) -> None:
    def body(wf: WorkflowThread) -> None:
        wf.declare_json_arr("list").searchable()
        wf.declare_json_obj("object")
        wf.declare_json_obj("hidden")

    request = Workflow("found", body).compile()
    indexes = request.thread_specs["entrypoint"].variable_defs[1].json_indexes
    indexes.append(JsonIndex(field_path="$.user.name", field_type=VariableType.STR))
    stub.PutWfSpec(request)
    for name, items, user in (("a", '["x","y","x"]', "anna"), ("b", '["y",1]', "ben"), ("c", "[]", None)):
        of_user = '{"user":{"name":"%s","age":7}}' % user if user else '{"user":null}'  # noqa: UP031
        start(stub, "found", name, list=VariableValue(json_arr=items), object=VariableValue(json_obj=of_user),
              hidden=VariableValue(json_obj=of_user))  # fmt: skip

    def found(variable: str, value: VariableValue) -> list[str]:
        request = SearchVariableRequest(wf_spec_name="found", var_name=variable, value=value)
        return [one.wf_run_id.id for one in stub.SearchVariable(request).results]

    assert found("list", VariableValue(str="x")) == ["a"]
    assert found("list", VariableValue(str="y")) == ["a", "b"]
    assert found("list", VariableValue(int=1)) == ["b"]
    assert found("list", VariableValue(str="z")) == []
    assert found("object_$.user.name", VariableValue(str="anna")) == ["a"]
    assert (
        found("object_$.user.age", VariableValue(int=7)) == found("hidden_$.user.name", VariableValue(str="anna")) == []
    )


def test_metrics_count_what_began_in_each_minute(stub: Any) -> None:
    stub.PutTaskDef(PutTaskDefRequest(name="work"))
    stub.PutWfSpec(Workflow("empty", lambda wf: None).compile())
    stub.PutWfSpec(Workflow("fails", lambda wf: wf.fail("lost", "lost") and None).compile())
    stub.PutWfSpec(Workflow("waits", lambda wf: wf.execute("work") and None).compile())
    for workflow, number in (("empty", 3), ("fails", 2), ("waits", 1)):
        for at in range(number):
            start(stub, workflow, f"{workflow}-{at}")

    def windows(name: str) -> list[Any]:
        spec = WfSpecId(name=name, major_version=0, revision=0)
        return list(stub.ListWfMetrics(ListWfMetricsRequest(wf_spec=spec)).windows)

    def total(name: str, field: str) -> CountAndTiming:
        found = [getattr(window.workflow, field) for window in windows(name)]
        return CountAndTiming(count=sum(one.count for one in found))

    assert total("empty", "started") == total("empty", "running_to_completed") == CountAndTiming(count=3)
    assert total("fails", "running_to_exception").count == 2
    assert (total("waits", "started").count, total("waits", "running_to_completed").count) == (1, 0)
    first = windows("empty")[0]
    assert stub.GetMetricWindow(first.id) == first and first.id.window_start.seconds % 60 == 0
    search = SearchWfMetricWindowRequest(wf_spec_name="empty")
    assert [one.window_start for one in stub.SearchWfMetricWindow(search).results] == [
        window.id.window_start for window in windows("empty")
    ]
    tasks = stub.ListTaskMetrics(ListTaskMetricsRequest(task_def=TaskDefId(name="work"))).windows
    assert len(tasks) == 1 and not tasks[0].task.HasField("taskrun_created_to_completed")
    day = WfSpecMetricsQueryRequest(wf_spec_id=first.id.wf_spec_id, window_start=first.id.window_start,
                                    window_length=MetricsWindowLength.DAYS_1)  # fmt: skip
    assert stub.GetWfSpecMetricsWindow(day).total_started in (1, 2, 3)  # midnight may be between
    query = TaskDefMetricsQueryRequest(window_start=first.id.window_start, window_type=MetricsWindowLength.DAYS_1,
                                       task_def_name="work")  # fmt: skip
    assert stub.GetTaskDefMetricsWindow(query).total_started == 0
    never = MetricWindowId(wf_spec_id=first.id.wf_spec_id, window_start={"seconds": 60})
    assert code_of(stub.GetMetricWindow, never)[0] is grpc.StatusCode.NOT_FOUND


def test_a_worker_is_counted_by_the_quota_and_its_usage_is_shown(stub: Any) -> None:
    stub.PutQuota(PutQuotaRequest(tenant=TenantId(id="default"), write_requests_per_second=1))
    task = TaskRunId(wf_run_id=WfRunId(id="a"), task_guid="0-1")
    report = ReportTaskRun(task_run_id=task, status=TaskStatus.TASK_SUCCESS, time={"seconds": 1})
    calls = [stub.ReportTask.future(report) for _ in range(5)]
    codes = [call.code() for call in calls]
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    usage = stub.ListQuotaUsageMetrics(ListQuotaUsageMetricsRequest(quota_id=QuotaId(tenant=TenantId(id="default"))))
    observed = sum(window.quota_usage.requests_observed for window in usage.windows)
    throttled = sum(window.quota_usage.requests_throttled for window in usage.windows)
    assert (observed, throttled) == (5, codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED))
    assert sum(window.quota_usage.total_throttle_time_ms for window in usage.windows) >= 500 * throttled


def test_runs_are_migrated_from_the_terminal_and_tried_first(stub: Any, workflow_server: WorkflowServer) -> None:
    def millpond(*words: str) -> str:
        server = ("--server", f"127.0.0.1:{workflow_server.grpc_port}")
        found = run([*words, *server], timeout=SECONDS, cwd=workflow_server.folder.parent)
        assert found.returncode == 0, found.stderr
        return found.stdout

    def old(wf: WorkflowThread) -> None:
        kind = wf.declare_str("kind").required()
        wf.do_if(kind.is_equal_to("sleeps"), lambda inner: inner.sleep(3600)).do_else(
            lambda inner: inner.execute("work")
        )

    def new(wf: WorkflowThread) -> None:
        wf.declare_str("kind").required()
        wf.sleep(7200)

    stub.PutTaskDef(PutTaskDefRequest(name="work"))
    spec = stub.PutWfSpec(Workflow("flow", old).compile())
    for name, kind in (("a", "sleeps"), ("b", "sleeps"), ("c", "works")):
        start(stub, "flow", name, kind=VariableValue(str=kind))
    stub.PutWfSpec(Workflow("flow", new).compile())
    assert stub.GetLatestWfSpec(GetLatestWfSpecRequest(name="flow")).id.revision == 1
    nodes = spec.thread_specs["entrypoint"].nodes
    sleeps = next(name for name in nodes if name.endswith("-SLEEP"))
    put = ("migration", "put", "fix", "--workflow", "flow", "--from", "0.0", "--to", "0.1")
    millpond(*put, "--node", f"entrypoint/{sleeps}=1-sleep-SLEEP")
    assert "fix" in millpond("migration", "list")
    tried = millpond("migration", "apply", "fix", "--dry-run")
    assert "2 runs would go on" in tried and "1 stays: the new version has no such node" in tried
    assert [stub.GetWfRun(WfRunId(id=name)).wf_spec_id.revision for name in "abc"] == [0, 0, 0]
    assert "2 runs go on" in millpond("migration", "apply", "fix")
    assert [stub.GetWfRun(WfRunId(id=name)).wf_spec_id.revision for name in "abc"] == [1, 1, 0]
    stub.StopWfRun(StopWfRunRequest(wf_run_id=WfRunId(id="a")))
    assert stub.GetWfRun(WfRunId(id="a")).status == LHStatus.HALTED
    millpond("migration", "delete", "fix")
    assert "fix" not in millpond("migration", "list")


def test_all_runs_of_a_version_go_on_with_the_next_one(stub: Any) -> None:
    def new(wf: WorkflowThread) -> None:
        wf.wait_for_event("ready")
        wf.sleep(3600)

    stub.PutExternalEventDef(PutExternalEventDefRequest(name="ready"))
    spec = stub.PutWfSpec(Workflow("flow", lambda wf: wf.wait_for_event("ready") and None).compile())
    for name in "abc":
        start(stub, "flow", name)
    event = ExternalEventDefId(name="ready")
    stub.PutExternalEvent(PutExternalEventRequest(wf_run_id=WfRunId(id="c"), external_event_def_id=event))
    stub.PutWfSpec(Workflow("flow", new).compile())
    left = stub.MigrateWfSpec(MigrateWfSpecRequest(old_wf_spec=spec.id, migration={"new_revision": 1}))
    assert (left.id, left.migration.new_revision) == (spec.id, 1)
    assert stub.GetWfSpec(spec.id) == left

    def revisions() -> list[int]:
        return [stub.GetWfRun(WfRunId(id=name)).wf_spec_id.revision for name in "abc"]

    wait_for(lambda: revisions() == [1, 1, 0], "the open runs")
    stub.PutExternalEvent(PutExternalEventRequest(wf_run_id=WfRunId(id="a"), external_event_def_id=event))
    assert stub.GetWfRun(WfRunId(id="a")).status == LHStatus.RUNNING, "it sleeps"
    older = MigrateWfSpecRequest(old_wf_spec=spec.id)
    assert code_of(stub.MigrateWfSpec, older)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_many_runs_are_deleted_from_the_terminal(stub: Any, workflow_server: WorkflowServer) -> None:
    stub.PutWfSpec(Workflow("empty", lambda wf: None).compile())
    for number in range(3):
        start(stub, "empty", f"empty-{number}")
    server = ("--server", f"127.0.0.1:{workflow_server.grpc_port}")
    for before, left in (("2020-01-01T00:00:00Z", 3), ("2200-01-01T00:00:00Z", 0)):
        words = ["run", "delete-many", "empty", "--before", before, "--json", *server]
        found = run(words, timeout=SECONDS, cwd=workflow_server.folder.parent)
        assert found.returncode == 0, found.stderr
        request = GetBulkJobRequest(id={"id": json.loads(found.stdout)["job"]})
        done = BulkJobStatus.BULK_JOB_COMPLETED
        wait_for(lambda request=request, done=done: stub.GetBulkJob(request).status == done, "the end of the job")
        assert len(stub.SearchWfRun(SearchWfRunRequest(wf_spec_name="empty")).results) == left


def test_a_bulk_job_deletes_runs_by_their_status(stub: Any) -> None:
    stub.PutWfSpec(Workflow("empty", lambda wf: None).compile())
    stub.PutWfSpec(Workflow("sleeps", lambda wf: wf.sleep(3600) and None).compile())
    for number in range(3):
        start(stub, "empty", f"empty-{number}")
        start(stub, "sleeps", f"sleeps-{number}")
    wanted = BulkDeleteWfRun(wf_spec_name="empty", wf_run_status=LHStatus.COMPLETED)
    wanted.latest_start.seconds = 9_999_999_999
    job = stub.CreateBulkJob(CreateBulkJobRequest(bulk_delete_wf_run=wanted))
    done = BulkJobStatus.BULK_JOB_COMPLETED
    wait_for(lambda: stub.GetBulkJob(GetBulkJobRequest(id=job.id)).status == done, "the end of the job")
    for workflow, left in (("empty", 0), ("sleeps", 3)):
        assert len(stub.SearchWfRun(SearchWfRunRequest(wf_spec_name=workflow)).results) == left
    search = SearchBulkJobRequest(status=BulkJobStatus.BULK_JOB_COMPLETED)
    assert list(stub.SearchBulkJob(search).results) == [job.id]
    stub.DeleteBulkJob(DeleteBulkJobRequest(id=job.id))
    assert list(stub.SearchBulkJob(search).results) == []
    assert code_of(stub.GetBulkJob, GetBulkJobRequest(id=job.id))[0] is grpc.StatusCode.NOT_FOUND
