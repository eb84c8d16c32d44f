"""Tenants, principals and quotas, through the unmodified client: who may call what, and how often.

Each method is called by callers of every kind; the table of `access.need_of` says what they get.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

pytest.importorskip("littlehorse")

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from littlehorse.model import (
    ACLAction,
    ACLResource,
    DeletePrincipalRequest,
    DeleteQuotaRequest,
    PrincipalId,
    PutPrincipalRequest,
    PutQuotaRequest,
    PutStructDefRequest,
    PutTaskDefRequest,
    PutTenantRequest,
    QuotaId,
    RegisterTaskWorkerRequest,
    RunWfRequest,
    SearchPrincipalRequest,
    SearchQuotaRequest,
    SearchStructDefRequest,
    SearchTaskDefRequest,
    SearchTenantRequest,
    SearchWfSpecRequest,
    ServerACL,
    ServerACLs,
    TaskDefId,
    TenantId,
    WfRunId,
    service_pb2,
    service_pb2_grpc,
)
from littlehorse.workflow import Workflow

import millpond
from millpond.clock import SystemClock
from millpond.nodes.tokens import TokenFile, draw_token
from millpond.server.workflows.access import need_of
from tests.rings.forked import run
from tests.workflows.conftest import SECONDS, WorkflowServer

pytestmark = pytest.mark.sample(62, of="file")

METHODS = {method.name: method for method in service_pb2.DESCRIPTOR.services_by_name["LittleHorse"].methods}
RIGHTS = {
    "none": {"read": ("tenant:other",)}, "read": {"read": ("tenant:default",)}, "write": {"write": ("tenant:default",)},
    "admin": {"admin": ("tenant:default",)}, "all": {"admin": ("*",)}, "keeper": {"admin": ("*",)},
}  # fmt: skip
SERVED = sorted(service_pb2.DESCRIPTOR.services_by_name["LittleHorse"].methods_by_name)


def acls(resource: str, *actions: str) -> ServerACLs:
    acl = ServerACL(resources=[ACLResource.Value(resource)], allowed_actions=[ACLAction.Value(a) for a in actions])
    return ServerACLs(acls=[acl])


class Callers:
    """A server, and stubs of callers with tokens."""

    def __init__(self, server: WorkflowServer, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        self.stub: Any = service_pb2_grpc.LittleHorseStub(self.channel)  # type: ignore[no-untyped-call]

    def metadata(self, caller: str, tenant: str = "default") -> tuple[tuple[str, str], ...]:
        token = self.tokens.get(caller)
        return (("tenantid", tenant), *((("authorization", f"Bearer {token}"),) if token else ()))

    def call(self, caller: str, method: str, request: Any, tenant: str = "default") -> Any:
        return getattr(self.stub, method)(request, timeout=SECONDS, metadata=self.metadata(caller, tenant))

    def status(self, caller: str, method: str, request: Any = None, tenant: str = "default") -> str:
        """The status of a call; OK when it went well."""
        if request is None:
            request = GetMessageClass(METHODS[method].input_type)()
        try:
            if method == "PollTask":
                next(iter(self.call(caller, method, iter([request]), tenant)))
            else:
                self.call(caller, method, request, tenant)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    folder = tmp_path_factory.mktemp("tenancy")
    millpond.open(folder / "pond").close()
    file, tokens = TokenFile(folder / "pond"), {}
    for name, rights in RIGHTS.items():
        tokens[name] = draw_token(SystemClock())
        file.add(name, tokens[name], rights)
    server = WorkflowServer(folder / "pond")
    server.start()
    found = Callers(server, tokens)
    yield found
    found.channel.close()
    server.end()


def wanted_right(method: str) -> str:
    """The token that a method needs at least: its line of the table in docs/workflows.md."""
    need = need_of(method)
    if need.resource is None:
        return "none"
    if need.of_cluster:
        return "all"
    if method.startswith(("Get", "List", "Search", "Count", "Await", "Validate")):
        return "read"
    runs = {"PutExternalEvent", "PutCheckpoint", "DeleteWfRun", "PutCorrelatedEvent", "DeleteCorrelatedEvent",
            "DeleteScheduledWfRun", "PutUserTaskRunComment", "DeleteUserTaskRunComment"}  # fmt: skip
    return "admin" if method.startswith(("Put", "Delete", "Migrate")) and method not in runs else "write"


@pytest.mark.parametrize("method", SERVED)
def test_each_method_needs_its_right(callers: Callers, method: str) -> None:
    assert callers.status("nobody", method) == "UNAUTHENTICATED"
    order = ["none", "read", "write", "admin", "all"]
    enough = order.index(wanted_right(method))
    for at, caller in enumerate(order):
        if method == "AwaitWorkflowEvent" and at >= enough:
            continue  # it would wait for a minute
        found = callers.status(caller, method)
        assert (found == "PERMISSION_DENIED") == (at < enough), (caller, found)


@pytest.mark.parametrize("method", SERVED)
def test_each_method_needs_its_access_list(callers: Callers, method: str) -> None:
    need = need_of(method)
    if need.resource is None or method == "AwaitWorkflowEvent":
        return
    others = [resource for resource in ACLResource.values() if resource != need.resource]
    others.remove(ACLResource.ACL_ALL_RESOURCES)
    every = [ACLAction.READ, ACLAction.RUN, ACLAction.WRITE_METADATA]
    refused = [
        ServerACL(resources=others, allowed_actions=[ACLAction.ALL_ACTIONS]),
        ServerACL(resources=[need.resource], allowed_actions=[action for action in every if action != need.action]),
    ]
    allowed = [ServerACL(resources=[need.resource], allowed_actions=[need.action])]
    try:
        for lists, wanted in ((refused, True), (refused + allowed, False)):
            request = PutPrincipalRequest(id="all", overwrite=True, global_acls=ServerACLs(acls=[*lists]))
            callers.call("keeper", "PutPrincipal", request)
            assert (callers.status("all", method) == "PERMISSION_DENIED") is wanted
    finally:
        callers.call("keeper", "DeletePrincipal", DeletePrincipalRequest(id=PrincipalId(id="all")))


# -- tenants ----------------------------------------------------------------------------------------------


def test_tenants_see_nothing_of_each_other(callers: Callers) -> None:
    task = PutTaskDefRequest(name="shared-name")
    assert callers.status("all", "PutTaskDef", task, "etl") == "PERMISSION_DENIED"
    assert callers.call("all", "PutTenant", PutTenantRequest(id="etl")).id.id == "etl"
    since = callers.call("all", "GetTenant", TenantId(id="etl")).created_at
    assert callers.call("all", "PutTenant", PutTenantRequest(id="etl")).created_at == since
    callers.call("all", "PutTaskDef", task, "etl")
    listed = callers.call("all", "SearchTaskDef", SearchTaskDefRequest(prefix="shared-name"))
    assert not listed.results
    for tenant in ("default", "etl"):
        callers.call("all", "PutWfSpec", Workflow("empty", lambda wf: None).compile(), tenant)
        callers.call("all", "RunWf", RunWfRequest(wf_spec_name="empty", id="same"), tenant)
    callers.call("all", "DeleteWfRun", deletion("same"), "etl")
    assert callers.call("all", "GetWfRun", WfRunId(id="same")).id.id == "same"
    assert callers.status("all", "GetWfRun", WfRunId(id="same"), "etl") == "NOT_FOUND"


def deletion(run: str) -> Any:
    return GetMessageClass(METHODS["DeleteWfRun"].input_type)(id=WfRunId(id=run))


def test_tenants_are_listed_by_pages(callers: Callers) -> None:
    for name in ("zeta", "alpha"):
        callers.call("all", "PutTenant", PutTenantRequest(id=name))
    found, request = [], SearchTenantRequest(limit=1)
    while True:
        page = callers.call("all", "SearchTenant", request)
        found += [name.id for name in page.results]
        if not page.HasField("bookmark"):
            break
        request.bookmark = page.bookmark
    assert found == sorted(found)
    assert {"alpha", "default", "zeta"} <= set(found)


@pytest.mark.parametrize("name", ["", "1st", "a b", "a_b", "x" * 101])
def test_a_tenant_has_a_name(callers: Callers, name: str) -> None:
    assert callers.status("all", "PutTenant", PutTenantRequest(id=name)) == "INVALID_ARGUMENT"


# -- principals -------------------------------------------------------------------------------------------


def test_access_lists_of_a_tenant_stand_instead_of_the_global_ones(callers: Callers) -> None:
    callers.call("keeper", "PutTenant", PutTenantRequest(id="own"))
    request = PutPrincipalRequest(id="all", global_acls=acls("ACL_ALL_RESOURCES", "READ"))
    request.per_tenant_acls["own"].CopyFrom(acls("ACL_ALL_RESOURCES", "ALL_ACTIONS"))
    callers.call("keeper", "PutPrincipal", request)
    try:
        task = PutTaskDefRequest(name="mine")
        assert callers.status("all", "PutTaskDef", task) == "PERMISSION_DENIED"
        assert callers.status("all", "PutTaskDef", task, "own") == "OK"
        assert callers.status("all", "SearchTenant") == "OK"
        assert callers.status("all", "SearchTenant", tenant="own") == "PERMISSION_DENIED"
        me = callers.call("all", "Whoami", Empty())
        assert me.id.id == "all"
        assert set(me.per_tenant_acls) == {"own"}
        assert callers.status("keeper", "PutPrincipal", request) == "ALREADY_EXISTS"
        search = SearchPrincipalRequest(tenant_id="own")
        assert [name.id for name in callers.call("keeper", "SearchPrincipal", search).results] == ["all"]
    finally:
        callers.call("keeper", "DeletePrincipal", DeletePrincipalRequest(id=PrincipalId(id="all")))
    assert callers.status("all", "PutTaskDef", PutTaskDefRequest(name="mine")) == "OK"


def test_somebody_may_always_do_everything(callers: Callers) -> None:
    weak = PutPrincipalRequest(id="anonymous", overwrite=True, global_acls=acls("ACL_WORKFLOW", "READ"))
    assert callers.status("keeper", "PutPrincipal", weak) == "FAILED_PRECONDITION"
    admin = PutPrincipalRequest(id="keeper", global_acls=acls("ACL_ALL_RESOURCES", "ALL_ACTIONS"))
    callers.call("keeper", "PutPrincipal", admin)
    callers.call("keeper", "PutPrincipal", weak)
    try:
        assert callers.status("all", "PutTaskDef", PutTaskDefRequest(name="never")) == "PERMISSION_DENIED"
        assert callers.status("keeper", "DeletePrincipal", gone("keeper")) == "PERMISSION_DENIED"
        admin.global_acls.CopyFrom(acls("ACL_PRINCIPAL", "ALL_ACTIONS"))
        admin.overwrite = True
        assert callers.status("keeper", "PutPrincipal", admin) == "FAILED_PRECONDITION"
        names = callers.call("keeper", "SearchPrincipal", SearchPrincipalRequest(is_admin=True)).results
        assert [name.id for name in names] == ["keeper"]
    finally:
        weak.global_acls.CopyFrom(acls("ACL_ALL_RESOURCES", "ALL_ACTIONS"))
        callers.call("keeper", "PutPrincipal", weak)
    assert callers.status("all", "DeletePrincipal", gone("keeper")) == "OK"
    assert callers.status("all", "DeletePrincipal", gone("anonymous")) == "INVALID_ARGUMENT"


def gone(name: str) -> DeletePrincipalRequest:
    return DeletePrincipalRequest(id=PrincipalId(id=name))


def test_what_would_not_be_heeded_is_refused(callers: Callers) -> None:
    named = ServerACL(resources=[ACLResource.ACL_TASK], allowed_actions=[ACLAction.RUN], prefix="etl-")
    beyond = PutPrincipalRequest(id="x")
    beyond.per_tenant_acls["default"].CopyFrom(acls("ACL_TENANT", "READ"))
    unknown = PutPrincipalRequest(id="x")
    unknown.per_tenant_acls["nowhere"].CopyFrom(acls("ACL_TASK", "READ"))
    for request in (PutPrincipalRequest(id="x", global_acls=ServerACLs(acls=[named])), beyond, unknown,
                    PutPrincipalRequest(id="")):  # fmt: skip
        assert callers.status("keeper", "PutPrincipal", request) == "INVALID_ARGUMENT"


# -- quotas -----------------------------------------------------------------------------------------------


def test_a_quota_says_when_to_come_again(callers: Callers) -> None:
    callers.call("keeper", "PutTenant", PutTenantRequest(id="slow"))
    callers.call("keeper", "PutWfSpec", Workflow("empty", lambda wf: None).compile(), "slow")
    quota = PutQuotaRequest(tenant=TenantId(id="slow"), write_requests_per_second=10)
    assert callers.call("keeper", "PutQuota", quota).write_requests_per_second == 10
    delays = []
    for _ in range(30):
        try:
            callers.call("all", "RunWf", RunWfRequest(wf_spec_name="empty"), "slow")
        except grpc.RpcError as error:
            delays.append(delay_of(error))
    assert 30 - len(delays) <= 20  # half a second's worth, and what came in meanwhile
    assert all(delay % 0.5 == 0 and 0 < delay <= 30 for delay in delays)
    search = callers.call("keeper", "SearchQuota", SearchQuotaRequest(tenant_id="slow"))
    assert [name.tenant.id for name in search.results] == ["slow"]
    callers.call("keeper", "DeleteQuota", DeleteQuotaRequest(id=QuotaId(tenant=TenantId(id="slow"))))
    assert callers.status("all", "RunWf", RunWfRequest(wf_spec_name="empty"), "slow") == "OK"


def delay_of(error: Any) -> float:
    """The delay that a status names, where clients of gRPC look for it."""
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    packed = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status, info = Status.FromString(packed), RetryInfo()
    assert status.details[0].Unpack(info)
    return float(info.retry_delay.ToMilliseconds() / 1000)


def test_a_quota_of_a_principal_is_its_own(callers: Callers) -> None:
    callers.call("keeper", "PutTenant", PutTenantRequest(id="two"))
    callers.call("keeper", "PutWfSpec", Workflow("empty", lambda wf: None).compile(), "two")
    mine = PutQuotaRequest(tenant=TenantId(id="two"), principal=PrincipalId(id="all"), write_requests_per_second=1)
    assert callers.status("keeper", "PutQuota", mine) == "INVALID_ARGUMENT"  # there is no such principal
    everything = PutPrincipalRequest(id="all", global_acls=acls("ACL_ALL_RESOURCES", "ALL_ACTIONS"))
    callers.call("keeper", "PutPrincipal", everything)
    callers.call("keeper", "PutQuota", mine)
    try:
        of = {who: [callers.status(who, "RunWf", RunWfRequest(wf_spec_name="empty"), "two") for _ in range(5)]
              for who in ("all", "keeper")}  # fmt: skip
    finally:
        callers.call("keeper", "DeletePrincipal", gone("all"))
    assert "RESOURCE_EXHAUSTED" in of["all"]
    assert set(of["keeper"]) == {"OK"}


@pytest.mark.parametrize("rate", [0, -1])
def test_a_quota_has_a_rate(callers: Callers, rate: int) -> None:
    request = PutQuotaRequest(tenant=TenantId(id="default"), write_requests_per_second=rate)
    assert callers.status("keeper", "PutQuota", request) == "INVALID_ARGUMENT"


# -- the public client, and the terminal ------------------------------------------------------------------

CLIENT = """
from littlehorse.config import LHConfig
from littlehorse.model import RunWfRequest
stub = LHConfig().stub()
for _ in range(12):
    stub.RunWf(RunWfRequest(wf_spec_name="empty"))
print("done")
"""


def test_the_public_client_waits_for_its_quota(workflow_server: WorkflowServer) -> None:
    with workflow_server.stub() as stub:
        stub.PutWfSpec(Workflow("empty", lambda wf: None).compile())
        stub.PutQuota(PutQuotaRequest(tenant=TenantId(id="default"), write_requests_per_second=5))
        began = SystemClock().monotonic()
        found = subprocess.run([sys.executable, "-c", CLIENT], env=workflow_server.environment(), text=True,
                               capture_output=True, timeout=SECONDS, check=False)  # fmt: skip
        assert found.stdout == "done\n", found.stderr
        assert SystemClock().monotonic() - began >= 1.5  # 12 runs, of which 2 or 3 come at once


def test_tenants_from_the_terminal(workflow_server: WorkflowServer) -> None:
    def millpond(*words: str, code: int = 0) -> str:
        server = ("--server", f"127.0.0.1:{workflow_server.grpc_port}")
        found = run([*words, *server], timeout=SECONDS, cwd=workflow_server.folder.parent)
        assert found.returncode == code, found.stderr
        return found.stdout + found.stderr

    assert "tenant etl is there" in millpond("tenant", "put", "etl")
    listed = millpond("tenant", "list")
    assert "default" in listed
    assert "etl" in listed
    millpond("principal", "put", "nightly", "--allow", "etl/WORKFLOW:RUN", "--allow", "TASK:READ")
    shown = millpond("principal", "list")
    assert "etl/WORKFLOW:RUN" in shown
    assert "ALL_RESOURCES:ALL_ACTIONS" in shown
    assert "resources: ALL_RESOURCES" in millpond("principal", "put", "x", "--allow", "WORKFLOWS:RUN", code=5)
    millpond("quota", "put", "etl", "100", "--principal", "nightly")
    assert '"write_requests_per_second": 100' in millpond("quota", "list", "--json")
    millpond("quota", "delete", "etl", "--principal", "nightly")
    millpond("principal", "delete", "nightly")
    assert "nightly" not in millpond("quota", "list") + millpond("principal", "list")


def test_metrics_count_the_work(workflow_server: WorkflowServer) -> None:
    def metric(name: str) -> float:
        url = f"http://127.0.0.1:{workflow_server.port}/metrics"
        with urllib.request.urlopen(url, timeout=SECONDS) as page:
            lines = page.read().decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(f"millpond_workflows_{name} ")))

    with workflow_server.stub() as stub:
        stub.PutTaskDef(PutTaskDefRequest(name="idle"))
        stub.PutWfSpec(Workflow("waits", lambda wf: wf.execute("idle") and None).compile())
        for _ in range(2):
            stub.RunWf(RunWfRequest(wf_spec_name="waits"))
        assert metric('tasks_queued{task="idle",tenant="default"}') == 2
        assert metric('task_oldest_seconds{task="idle",tenant="default"}') >= 0
        assert (metric("timer_late_seconds"), metric("stories_queued")) == (0, 0)
        stub.PutWfSpec(Workflow("empty", lambda wf: None).compile())
        before = metric("commands_total"), metric("writes_total")
        for _ in range(3):
            stub.RunWf(RunWfRequest(wf_spec_name="empty"))
    assert metric("commands_total") == before[0] + 3
    assert before[1] < metric("writes_total") <= before[1] + 3
    assert metric("write_seconds_total") > 0
    assert (metric("commands_queued"), metric("workers_waiting"), metric("failed_total")) == (0, 0, 0)


# -- searches for definitions -----------------------------------------------------------------------------


def test_specifications_are_found_by_their_task(callers: Callers) -> None:
    callers.call("all", "PutTaskDef", PutTaskDefRequest(name="wanted-task"))
    for name, task in (("with-task", "wanted-task"), ("without-task", None)):
        spec = Workflow(name, lambda wf, task=task: wf.execute(task) if task else None).compile()  # type: ignore[misc]
        callers.call("all", "PutWfSpec", spec)
    found = callers.call("all", "SearchWfSpec", SearchWfSpecRequest(task_def_name="wanted-task"))
    assert [spec.name for spec in found.results] == ["with-task"]


def test_a_group_has_the_workers_that_registered(callers: Callers) -> None:
    task = TaskDefId(name="grouped")
    assert callers.status("all", "GetTaskWorkerGroup", task) == "NOT_FOUND"
    for worker in ("w-1", "w-2", "w-1"):
        register = RegisterTaskWorkerRequest(task_worker_id=worker, task_def_id=task)
        hosts = callers.call("all", "RegisterTaskWorker", register).your_hosts
    assert callers.status("all", "GetTaskWorkerGroup", task) == "NOT_FOUND", "there is no such task"
    callers.call("all", "PutTaskDef", PutTaskDefRequest(name="grouped"))
    group = callers.call("all", "GetTaskWorkerGroup", task)
    assert (group.id.task_def_id, sorted(group.task_workers)) == (task, ["w-1", "w-2"])
    for name, worker in group.task_workers.items():
        assert (worker.task_worker_id, list(worker.hosts)) == (name, list(hosts))
        assert worker.latest_heartbeat.ToMilliseconds() >= group.created_at.ToMilliseconds() > 0
    assert callers.status("all", "GetTaskWorkerGroup", TaskDefId(name="wanted-task")) == "NOT_FOUND"


def test_structs_are_found_by_their_prefix(callers: Callers) -> None:
    for name in ("car", "carpet", "dog"):
        callers.call("all", "PutStructDef", PutStructDefRequest(name=name))
    found = callers.call("all", "SearchStructDef", SearchStructDefRequest(prefix="car"))
    assert [struct.name for struct in found.results] == ["car", "carpet"]
