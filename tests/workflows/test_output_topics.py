"""Topics of output by a real broker: servers are killed, and each record is there once, in its order."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("littlehorse")
if find_spec("confluent_kafka") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from confluent_kafka import KafkaException
from google.protobuf.message import Message
from littlehorse.model import (
    ExternalEventDefId,
    LHStatus,
    MetadataOutputTopicRecord,
    OutputTopicConfig,
    OutputTopicRecord,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    PutTaskDefRequest,
    PutTenantRequest,
    RunWfRequest,
    TenantId,
    WfRunId,
)
from littlehorse.workflow import Workflow, WorkflowThread

import millpond
from millpond.clock import SystemClock
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import open_objects
from millpond.workflows.logs import CommandLog, Entry
from millpond.workflows.logs.kafka import KafkaLog
from millpond.workflows.outputs import outputs_after
from millpond.workflows.partitions.bucket import BucketRuns
from millpond.workflows.partitions.entries import OutputEntry, decode_entry
from millpond.workflows.partitions.followed import FollowedPartition
from millpond.workflows.processor import Partition
from millpond.workflows.store import initialize
from tests.s3_server import S3Server
from tests.topic_records import committed
from tests.workflows.conftest import SECONDS, WorkflowServer, code_of
from tests.workflows.shared_servers import SharedServer, shared_servers

pytestmark = pytest.mark.sample(1, of="processes that share workflows")

TENANT = "default"
CONFIG = OutputTopicConfig()
Topic = dict[str, list[tuple[str, bytes]]]
"""The keys and records of a topic, by the root of their run or by themselves, in their order."""


def published(wf: WorkflowThread) -> None:
    seen = wf.declare_str("seen").as_public()
    seen.assign(wf.wait_for_event("ready"))


def define(stub: Any) -> None:
    stub.PutTenant(PutTenantRequest(id=TENANT, output_topic_config=CONFIG))
    stub.PutTaskDef(PutTaskDefRequest(name="work"))
    stub.PutExternalEventDef(PutExternalEventDefRequest(name="ready"))
    stub.PutWfSpec(Workflow("published", published).compile())


def run_through(stub: Any, run: str) -> None:
    """Begin a run and let it end, where a part of it may be done already."""
    for call, request in (
        (stub.RunWf, RunWfRequest(wf_spec_name="published", id=run)),
        (
            stub.PutExternalEvent,
            PutExternalEventRequest(
                wf_run_id=WfRunId(id=run), guid="g", external_event_def_id=ExternalEventDefId(name="ready")
            ),
        ),
    ):
        until_taken(call, request)


def until_taken(call: Callable[..., Any], request: Message) -> None:
    clock = SystemClock()
    until = clock.monotonic() + SECONDS
    while True:
        try:
            call(request, timeout=SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.ALREADY_EXISTS:
                return
            # NOT_FOUND: a partition may not have heard of the spec yet
            again = (
                grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED,
                grpc.StatusCode.NOT_FOUND,
            )  # fmt: skip
            if error.code() not in again or clock.monotonic() > until:
                raise
            threading.Event().wait(0.1)
        else:
            return


def by_key(records: Iterator[tuple[str, str, bytes]]) -> dict[str, Topic]:
    topics: dict[str, Topic] = {"execution": defaultdict(list), "metadata": defaultdict(list)}
    for topic, key, record in records:
        topics[topic][key].append((key, record))
    return {topic: dict(keys) for topic, keys in topics.items()}


def read(broker: str, cluster: str) -> dict[str, Topic]:
    """All that consumers see of the tenant."""
    topics = ("execution", "metadata")
    return by_key(
        (topic, key, data) for topic in topics for _, key, data in committed(broker, f"{cluster}_{TENANT}_{topic}")
    )  # fmt: skip


def noted(spaces: Sequence[MemorySpace]) -> dict[str, Topic]:
    """All that commands noted, that were applied once more."""
    records = []
    for space in spaces:
        with space.read() as tx:
            records += [output for _, output in outputs_after(tx, (0, 0), count=1_000_000, size=1 << 40)]
    return by_key((output.topic, output.key, output.record) for output in records if output.topic)


def until_equal(broker: str, cluster: str, expected: dict[str, Topic]) -> None:
    clock, found = SystemClock(), dict[str, Topic]()
    until = clock.monotonic() + SECONDS
    while clock.monotonic() < until and found != expected:
        with suppress(KafkaException, KeyError):
            found = read(broker, cluster)
        threading.Event().wait(0.3)
    assert found == expected


def of_own_log(folder: Path) -> dict[str, Topic]:
    """The records that the command log of a folder tells."""
    space = MemorySpace()
    partition = Partition(space.write(lambda tx: initialize(tx, 0)), outputs=True)
    with millpond.open(folder) as pond, pond.space.read() as tx:
        for record in partition.log.records(tx):
            space.write(lambda to, record=record: partition.apply(to, [record.entry], record.stamp_ms))  # type: ignore[misc]
    return noted([space])


def of_shared_log(log: CommandLog) -> dict[str, Topic]:
    """The records that the partitions of a log tell."""
    spaces = [replayed(log, number) for number in range(log.partitions)]
    log.close()
    return noted(spaces)


def replayed(log: CommandLog, number: int) -> MemorySpace:
    """A store to which all entries of a partition were applied, but for those that only delete what is compared."""
    space, entries, end = MemorySpace(), list[Entry](), log.end(number)
    partition = FollowedPartition(space.write(lambda tx: initialize(tx, 0)), number, log.partitions)
    following = log.follow(number, 0)
    while not entries or entries[-1].position < end:
        entries += following.next(1_000, 1)
    following.close()
    others = [entry for entry in entries if not isinstance(decode_entry(entry.data), OutputEntry)]
    space.write(lambda tx: partition.apply_entries(tx, others))
    return space


NUMBERS = itertools.count()


@pytest.fixture
def server(tmp_path: Path, kafka_server: str) -> Iterator[tuple[WorkflowServer, str]]:
    cluster = f"own-{tmp_path.name}-{next(NUMBERS)}"
    server = WorkflowServer(tmp_path / "pond")
    server.settings = {"MILLPOND_WORKFLOWS_OUTPUT": f"kafka://{kafka_server}/{cluster}"}
    server.start()
    yield server, cluster
    server.end(signal.SIGKILL)


def test_a_killed_server_loses_no_record_and_doubles_none(
    server: tuple[WorkflowServer, str], kafka_server: str
) -> None:
    served, cluster = server
    with served.stub() as stub:
        define(stub)
        assert stub.GetTenant(TenantId(id=TENANT)).output_topic_config == CONFIG

        def work(name: str) -> None:
            for number in range(40):
                run_through(stub, f"{name}-{number}")

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for pause in (0.4, 0.9, 1.3):
            threading.Event().wait(pause)
            served.end(signal.SIGKILL)
            served.start()
        for thread in threads:
            thread.join()
    served.end()
    expected = of_own_log(served.folder)
    assert len(expected["execution"]) == 80
    served.start()
    until_equal(kafka_server, cluster, expected)
    check_records(expected)


def check_records(topics: dict[str, Topic]) -> None:
    """Read the records as a client does."""
    for run, rows in topics["execution"].items():
        records = [OutputTopicRecord.FromString(data) for _, data in rows]
        statuses = [record.wf_run.status for record in records if record.HasField("wf_run")]
        assert statuses == [LHStatus.RUNNING, LHStatus.COMPLETED]
        assert (records[0].WhichOneof("payload"), records[-1].WhichOneof("payload")) == ("wf_run", "wf_run")
        assert {record.WhichOneof("payload") for record in records} == {"wf_run", "variable", "external_event"}
        assert records[-1].wf_run.id.id == run
    names = {key: MetadataOutputTopicRecord.FromString(rows[0][1]) for key, rows in topics["metadata"].items()}
    assert {key: record.WhichOneof("metadata_record") for key, record in names.items()} == {
        "TASK_DEF/work": "task_def", "EXTERNAL_EVENT_DEF/ready": "external_event_def",
        "WF_SPEC/published/00000/00000": "wf_spec",
    }  # fmt: skip


def test_without_brokers_the_settings_are_refused(workflow_server: WorkflowServer) -> None:
    with workflow_server.stub() as stub:
        code, words = code_of(stub.PutTenant, PutTenantRequest(id="acme", output_topic_config=CONFIG))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "set workflows.output" in words
        assert stub.PutTenant(PutTenantRequest(id="acme")).id.id == "acme"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[SharedServer]]:
    with shared_servers(tmp_path, 2) as made:
        yield made


def test_a_killed_owner_loses_no_record_and_doubles_none(servers: list[SharedServer]) -> None:
    broker = servers[0].settings["MILLPOND_WORKFLOWS_LOG"].split("/")[2]
    with servers[0].stub() as stub:
        define(stub)
        killed = threading.Timer(1.5, servers[1].end, args=(signal.SIGKILL,))
        killed.start()
        for number in range(60):
            run_through(stub, f"r-{number}")
        killed.join()
    expected = of_shared_log(KafkaLog(broker, "runs"))
    assert len(expected["execution"]) == 60
    until_equal(broker, "runs", expected)
    check_records(expected)


@pytest.fixture
def nodes(tmp_path: Path, kafka_server: str, s3_server: S3Server) -> Iterator[tuple[list[WorkflowServer], str]]:
    """Two nodes on one bucket, and the name before their topics."""
    cluster = f"bucket-{tmp_path.name}-{next(NUMBERS)}"
    servers = [WorkflowServer(tmp_path / f"node-{number}") for number in range(2)]
    url = f"{s3_server.make_bucket(f'{os.getpid()}-{cluster}'.lower().replace('_', '-')[:63])}/pond"
    for server in servers:
        server.data = url
        server.settings = {
            **s3_server.environment, "MILLPOND_CLIENT_CACHE": str(server.folder),
            "MILLPOND_WORKFLOWS_OUTPUT": f"kafka://{kafka_server}/{cluster}",
        }  # fmt: skip
        server.start()
    yield servers, cluster
    for server in servers:
        server.end(signal.SIGKILL)


def test_the_next_owner_in_a_bucket_loses_no_record_and_doubles_none(
    nodes: tuple[list[WorkflowServer], str], kafka_server: str, s3_server: S3Server
) -> None:
    [owner, other], cluster = nodes
    with owner.stub() as stub:
        define(stub)
    with other.stub() as stub:
        for number in range(40):
            run_through(stub, f"r-{number}")
            if number == 25:
                owner.end(signal.SIGKILL)
    runs = BucketRuns.below(open_objects(f"{other.data}/workflows", **s3_server.config()), SystemClock())
    expected = of_shared_log(runs.log)
    assert len(expected["execution"]) == 40
    until_equal(kafka_server, cluster, expected)
    check_records(expected)
