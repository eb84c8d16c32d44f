"""Three processes share workflows by one broker; one is killed, and comes back. The client is as installed."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc
import pytest

pytest.importorskip("littlehorse")
if find_spec("confluent_kafka") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from confluent_kafka.admin import AdminClient
from google.protobuf.message import Message
from littlehorse.model import (
    CorrelatedEventConfig,
    CountNodeRunRequest,
    CountTaskRunRequest,
    ExternalEventDefId,
    GetLatestWfSpecRequest,
    LHStatus,
    ListTaskRunsRequest,
    ListVariablesRequest,
    PutCorrelatedEventRequest,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    RegisterTaskWorkerRequest,
    RunWfRequest,
    SearchCorrelatedEventRequest,
    SearchWfRunRequest,
    TaskDefId,
    TaskStatus,
    VariableValue,
    WfRunId,
)

import millpond
from millpond.clock import SystemClock
from millpond.server.workflows.shared.rows import SharedRows
from millpond.workflows.processor import ReadRows
from tests.workflows.conftest import SECONDS, code_of
from tests.workflows.shared_servers import SharedServer, shared_servers

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sample(1, of="processes that share workflows")

RUNS = 30


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SharedServer]]:
    with shared_servers(tmp_path_factory.mktemp("shared"), 3, saving_often=True) as made:
        with made[0].stub() as first:
            until_all_are_known(first)
        program = made[0].program("all")
        assert program.wait(SECONDS) == 0
        yield made


def test_a_run_tells_its_story_to_the_streams_of_its_owner(servers: list[SharedServer]) -> None:
    clock = SystemClock()
    until, found = clock.monotonic() + SECONDS, list[tuple[str, str, str]]()
    while clock.monotonic() < until and ("all", "succeeded", "") not in found:
        found = []
        for server in servers:
            with millpond.open(f"http://127.0.0.1:{server.port}") as pond:
                events = list(pond.events.read("default", "all"))
            found += [(event.headers["job_id"], event.kind, event.headers.get("attempt", "")) for event in events]
    assert found[0] == ("all", "running", "")
    assert max(Counter(found).values()) == 1


def until_all_are_known(stub: Any, number: int = 3) -> None:
    """Wait until a worker would hear of all processes: it looks again a minute later only."""
    clock = SystemClock()
    until = clock.monotonic() + SECONDS
    request = RegisterTaskWorkerRequest(task_worker_id="w", task_def_id=TaskDefId(name="greet"))
    while len(stub.RegisterTaskWorker(request).your_hosts) < number:
        assert clock.monotonic() < until, "the group is not whole"
        threading.Event().wait(0.1)


def tried(call: Any, request: Message) -> Any:
    """The response, from a server that may not have it yet: a partition moves, or its owner was just killed."""
    clock = SystemClock()
    until = clock.monotonic() + SECONDS
    while True:
        try:
            return call(request, timeout=SECONDS)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.ALREADY_EXISTS:  # the try before was made after all
                return None
            if error.code() != grpc.StatusCode.UNAVAILABLE or clock.monotonic() > until:
                raise
            threading.Event().wait(0.1)


def begun(stub: Any, run: str) -> None:
    tried(stub.RunWf, RunWfRequest(wf_spec_name="greeting", id=run, variables={"name": VariableValue(str=run)}))


def completed(stub: Any, runs: list[str]) -> None:
    """Wait until runs are completed."""
    clock = SystemClock()
    until = clock.monotonic() + SECONDS
    left = list(runs)
    while left:
        found = tried(stub.GetWfRun, WfRunId(id=left[0]))
        if found.status == LHStatus.COMPLETED:
            left.pop(0)
            continue
        assert found.status == LHStatus.RUNNING, found
        assert clock.monotonic() < until, f"{len(left)} runs are not completed: {found}"
        threading.Event().wait(0.1)


def test_any_process_answers_for_every_run(servers: list[SharedServer]) -> None:
    with servers[0].stub() as first, servers[1].stub() as second, servers[2].stub() as third:
        for number, stub in enumerate([first, second, third] * 4):
            begun(stub, f"any-{number}")
        for stub in (first, second, third):
            assert {stub.GetWfRun(WfRunId(id=f"any-{n}")).id.id for n in range(12)} == {f"any-{n}" for n in range(12)}
            variables = stub.ListVariables(ListVariablesRequest(wf_run_id=WfRunId(id="any-3"))).results
            assert {row.id.name: row.value.str for row in variables}["name"] == "any-3"
        assert code_of(third.GetWfRun, WfRunId(id="nobody"))[0] == grpc.StatusCode.NOT_FOUND
        assert code_of(second.RunWf, RunWfRequest(wf_spec_name="greeting", id="any-1"))[0] in (
            grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT,
        )  # fmt: skip
        again = RunWfRequest(wf_spec_name="greeting", id="any-1", variables={"name": VariableValue(str="x")})
        assert {code_of(stub.RunWf, again)[0] for stub in (first, second, third)} == {grpc.StatusCode.ALREADY_EXISTS}


def test_definitions_are_seen_everywhere_at_once(servers: list[SharedServer]) -> None:
    with servers[1].stub() as second, servers[2].stub() as third:
        second.PutExternalEventDef(PutExternalEventDefRequest(name="everywhere"))
        assert third.GetExternalEventDef(ExternalEventDefId(name="everywhere")).id.name == "everywhere"
        for number in range(8):  # on every partition
            event = PutExternalEventRequest(
                wf_run_id=WfRunId(id=f"none-{number}"), external_event_def_id=ExternalEventDefId(name="everywhere")
            )
            assert third.PutExternalEvent(event).id.wf_run_id.id == f"none-{number}"
        assert third.GetLatestWfSpec(GetLatestWfSpecRequest(name="greeting")).id.name == "greeting"


def test_a_search_is_one_order_over_all_partitions(servers: list[SharedServer]) -> None:
    with servers[0].stub() as first, servers[1].stub() as second:
        for number in range(10):
            begun(first, f"search-{number}")
        search = SearchWfRunRequest(wf_spec_name="greeting", limit=1000)
        whole = [run.id for run in second.SearchWfRun(search).results]
        assert [run for run in whole if run.startswith("search-")] == [f"search-{number}" for number in range(10)]
        paged: list[str] = []
        search.limit = 3
        while True:
            page = (first if len(paged) % 2 else second).SearchWfRun(search)
            paged += [run.id for run in page.results]
            if not page.bookmark:
                break
            search.bookmark = page.bookmark
        assert paged == whole


def test_correlated_events_are_found_wherever_their_key_is(servers: list[SharedServer]) -> None:
    with servers[0].stub() as first, servers[2].stub() as third:
        first.PutExternalEventDef(
            PutExternalEventDefRequest(name="parcel", correlated_event_config=CorrelatedEventConfig())
        )
        parcel = ExternalEventDefId(name="parcel")
        for number in range(6):
            sent = PutCorrelatedEventRequest(key=f"parcel-{number}", external_event_def_id=parcel)
            assert first.PutCorrelatedEvent(sent).id.key == f"parcel-{number}"
        assert code_of(third.PutCorrelatedEvent, sent)[0] == grpc.StatusCode.ALREADY_EXISTS
        found = third.SearchCorrelatedEvent(SearchCorrelatedEventRequest(external_event_def_id=parcel)).results
        assert [event.key for event in found] == [f"parcel-{number}" for number in range(6)]


@pytest.mark.sample(1)
def test_rows_of_all_partitions_answer_as_those_of_one() -> None:
    one, many = ({name for name in dir(cls) if not name.startswith("_")} for cls in (ReadRows, SharedRows))
    assert one - {"runs", "share"} <= many  # a bulk job asks for runs of its own partition


def test_counts_are_of_all_partitions(servers: list[SharedServer]) -> None:
    with servers[0].stub() as first, servers[1].stub() as second, servers[2].stub() as third:
        for number in range(5):
            begun(first, f"count-{number}")
        count = CountTaskRunRequest(task_def_name="greet", status=TaskStatus.TASK_SCHEDULED)
        found = [stub.CountTaskRun(count).value for stub in (first, second, third)]
        nodes = [stub.CountNodeRun(CountNodeRunRequest()).value for stub in (first, second, third)]
    assert found[0] >= 5  # nobody works on them
    assert nodes[0] >= 2 * found[0]
    assert (len(set(found)), len(set(nodes))) == (1, 1)


def test_workers_learn_of_all_processes(servers: list[SharedServer]) -> None:
    with servers[0].stub() as first:
        request = RegisterTaskWorkerRequest(task_worker_id="w", task_def_id=TaskDefId(name="greet"))
        hosts = {host.port for host in first.RegisterTaskWorker(request).your_hosts}
    assert hosts == {server.grpc_port for server in servers}
    with servers[1].stub() as second:
        second.RegisterTaskWorker(RegisterTaskWorkerRequest(task_worker_id="v", task_def_id=TaskDefId(name="greet")))
    with servers[2].stub() as third:
        group = third.GetTaskWorkerGroup(TaskDefId(name="greet"))
    assert {"v", "w"} <= group.task_workers.keys()
    assert {host.port for host in group.task_workers["w"].hosts} == hosts


def test_a_stopped_process_gives_its_partitions_back(servers: list[SharedServer], tmp_path: Path) -> None:
    done = tmp_path / "done"
    worker: subprocess.Popen[str] = servers[0].program("work", str(done))
    begin = [f"stop-{number}" for number in range(3 * RUNS)]
    stopped = threading.Thread(target=servers[2].end)
    try:
        with servers[0].stub() as first:
            for number, run in enumerate(begin):
                if number == RUNS:
                    stopped.start()
                # Not tried again: who calls another process gets no error, and waits less than a session.
                inputs = {"name": VariableValue(str=run)}
                first.RunWf(RunWfRequest(wf_spec_name="greeting", id=run, variables=inputs), timeout=SECONDS)
                threading.Event().wait(0.05)
            stopped.join()
            assert members(servers[0]) == {server.address for server in servers[:2]}, (
                "no member before its session is over"
            )
            completed(first, begin)
    finally:
        worker.terminate()
        worker.wait(SECONDS)
        servers[2].start()
    attempts = Counter(line for line in done.read_text().splitlines() if line.startswith("stop-"))
    assert {line.split()[0] for line in attempts} == set(begin)
    assert set(attempts.values()) == {1}, "no attempt was executed twice"
    with servers[0].stub() as first:
        until_all_are_known(first)


def members(server: SharedServer) -> set[str]:
    """The addresses of the processes, as the brokers know them."""
    where = urlsplit(server.settings["MILLPOND_WORKFLOWS_LOG"])
    group = where.path.strip("/")
    admin = AdminClient({"bootstrap.servers": where.netloc})  # answers come as long as it is there
    found = admin.describe_consumer_groups([group])[group].result(SECONDS)
    return {member.client_id for member in found.members}


def test_a_killed_process_loses_nothing_and_comes_back(servers: list[SharedServer], tmp_path: Path) -> None:
    done = tmp_path / "done"
    worker: subprocess.Popen[str] = servers[0].program("work", str(done))
    runs = [f"kill-{number}" for number in range(RUNS)]
    try:
        with servers[0].stub() as first, servers[1].stub() as second:
            for run in runs[: RUNS // 3]:
                begun(first, run)
            servers[2].end(signal.SIGKILL)
            for run in runs[RUNS // 3 : 2 * RUNS // 3]:
                begun(second, run)
            completed(first, runs[: 2 * RUNS // 3])
            servers[2].start()
            with servers[2].stub() as third:
                for run in runs[2 * RUNS // 3 :]:
                    begun(third, run)
                completed(third, runs)
                for run in runs:
                    task = third.ListTaskRuns(ListTaskRunsRequest(wf_run_id=WfRunId(id=run))).results[0]
                    assert task.attempts[-1].output.str == f"hello {run}"
    finally:
        worker.terminate()
        worker.wait(SECONDS)
    attempts = Counter(line for line in done.read_text().splitlines() if line.startswith("kill-"))
    assert {run for line in attempts for run in [line.split()[0]]} == set(runs)
    assert set(attempts.values()) == {1}, "no attempt was executed twice"
