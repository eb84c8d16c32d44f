"""A real `millpond serve` process with gRPC, called by our own messages, and by the client of Armada as installed.

    def test_it(server):
        server.append("etl", "night", event("running", "job-1"))     # as another process of the pond
        server.stored("etl", "night")                                # what `api.Event` answers

The client of Armada pins another gRPC than ours. So it runs in an environment of its own, which `tools/setup armada`
makes once: `run_program("submits")` runs a function of `program.py` there.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
import urllib3
from filelock import FileLock

import millpond
from millpond.events.event import NewEvent
from millpond.server.armada.wire import armada_pb2 as pb
from tests.rings.forked import Command
from tests.rings.servers import shared

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "program.py"
SECONDS = 30
_NUMBERS = itertools.count(1)
LOWERED = """
import json, sys
from millpond.cli.main import main
from millpond.nodes.limits import NodeLimits
from millpond.server.run import Service
Service.__init__.__kwdefaults__["limits"] = NodeLimits(**json.loads(sys.argv.pop(1)))
main()
"""


def event(kind: str, job_id: str = "job", payload: bytes = b"", time_ms: int = 1_700_000_000_123) -> NewEvent:
    """An event of a job."""
    return NewEvent(time_ms, payload, kind, {"job_id": job_id})


@dataclass(frozen=True)
class ArmadaServer:
    """A server process, and the folder that it serves, opened by this process as well."""

    url: str
    grpc_port: int
    folder: Path
    pond: millpond.Pond
    channel: grpc.Channel
    pid: int
    process: Command | subprocess.Popen[str] | None
    metadata: tuple[tuple[str, str], ...] = field(default=())

    def name(self, word: str = "set") -> str:
        """A name that no other test uses."""
        return f"{word}-{os.getpid()}-{next(_NUMBERS)}"

    def queue(self) -> str:
        """A new queue."""
        name = self.name("queue")
        self.call("api.QueueService/CreateQueue", pb.Queue(name=name, priority_factor=1), pb.Queue)
        return name

    def append(self, queue: str, job_set: str, *events: NewEvent) -> list[str]:
        """Append events behind the server's back; their ids."""
        made = self.pond.events.append(queue, job_set, events)
        return [f"{number:016x}" for number in range(made.first_id, made.last_id + 1)]

    def call(self, method: str, request: Any, response: Any, **options: Any) -> Any:
        """Call a method with one response."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answer = self.channel.unary_unary(f"/{method}")(data, **{"timeout": SECONDS, **self._with(options)})
        return response.FromString(answer)

    def stream(self, method: str, request: Any, **options: Any) -> Any:
        """Call a method with many responses: the call, which yields bytes."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        return self.channel.unary_stream(f"/{method}")(data, **{"timeout": SECONDS, **self._with(options)})

    def _with(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": self.metadata, **options}

    def events(self, queue: str, job_set: str, after: str = "", **options: Any) -> Iterator[pb.EventStreamMessage]:
        """The events of a job set over gRPC."""
        fields = {name: options.pop(name) for name in ("watch", "errorIfMissing") if name in options}
        request = pb.JobSetRequest(queue=queue, id=job_set, from_message_id=after, **fields)
        return map(pb.EventStreamMessage.FromString, self.stream("api.Event/GetJobSetEvents", request, **options))

    def stored(self, queue: str, job_set: str, after: str = "", **options: Any) -> list[tuple[str, str]]:
        """The ids and kinds of the events that are stored."""
        found = self.events(queue, job_set, after, **options)
        return [(message.id, str(message.message.WhichOneof("events"))) for message in found]

    def submit(self, queue: str, job_set: str, *items: pb.JobSubmitRequestItem) -> list[str]:
        """Submit jobs; their ids."""
        request = pb.JobSubmitRequest(queue=queue, job_set_id=job_set, job_request_items=items or [item()])
        response = self.call("api.Submit/SubmitJobs", request, pb.JobSubmitResponse)
        return [answer.job_id for answer in response.job_response_items]

    def lines(self, queue: str, job_set: str, headers: dict[str, str] | None = None, **body: Any) -> list[Any]:
        """The events of a job set over HTTP."""
        found = urllib3.request(
            "POST", f"{self.url}/v1/job-set/{queue}/{job_set}", json=body, headers=headers, timeout=SECONDS
        )
        return [json.loads(line) for line in found.data.splitlines()]

    def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]


def item(**fields: Any) -> pb.JobSubmitRequestItem:
    """A job to submit."""
    return pb.JobSubmitRequestItem(**{"namespace": "default", "pod_specs": [b"\x0a\x00"], "priority": 1, **fields})


def status(call: Any, *arguments: Any, **options: Any) -> grpc.StatusCode:
    """The status with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call(*arguments, **options))
    code: grpc.StatusCode = caught.value.code()
    return code


@contextmanager
def serving(
    folder: Path, *arguments: str, token: str = "", limits: Mapping[str, int] | None = None
) -> Iterator[ArmadaServer]:
    """A process that serves a folder, while the block runs, with lower `limits`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
    words = ["serve", "--data", str(folder), "--port", "0", "--json", *arguments]
    if limits is None:
        process: Command | subprocess.Popen[str] = Command(words, env=environment, cwd=folder.parent)
    else:
        alone = [sys.executable, "-c", LOWERED, json.dumps(limits), *words]
        process = subprocess.Popen(alone, env=environment, cwd=folder.parent, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with connected(ready["url"], ready["grpc_port"], folder, process.pid, process, token) as server:
            yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextmanager
def connected(
    url: str, grpc_port: int, folder: Path, pid: int = 0, process: Command | subprocess.Popen[str] | None = None,
    token: str = "",
) -> Iterator[ArmadaServer]:  # fmt: skip
    """A connection to a process that serves a folder."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with millpond.open(str(folder)) as pond, grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        yield ArmadaServer(url, grpc_port, folder, pond, channel, pid, process, metadata)


def start_server(stack: ExitStack) -> tuple[str, int, Path, int]:
    """Start a server that all workers share: its address, its port of gRPC, its folder and its number."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-armada-"))) / "pond"
    server = stack.enter_context(serving(folder))
    assert server.pid
    return server.url, server.grpc_port, folder, server.pid


@pytest.fixture(scope="session")
def server() -> Iterator[ArmadaServer]:
    """A server that wants no tokens."""
    with connected(*shared("armada")) as found:
        yield found


@pytest.fixture(scope="session")
def armada_python() -> Path:
    """The Python of the environment that has the client of Armada."""
    with FileLock(str(ROOT / ".venv" / "armada.lock")):
        subprocess.run([ROOT / "tools" / "setup", "armada"], check=True)
    return ROOT / ".venv" / "armada" / "bin" / "python"


def run_program(python: Path, scenario: str, *arguments: str) -> Sequence[str]:
    """Run a function of `program.py` with the client of Armada; what it printed."""
    done = subprocess.run(
        [python, PROGRAM, scenario, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


@pytest.fixture(autouse=True)
def _process(process: None) -> None:
    """Tests of this folder may start processes and open sockets."""
