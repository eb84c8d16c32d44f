"""The events of a job set as clients of Armada read them, beside Millpond's own client: from one node.

The events are those of jobs, as a scheduler tells of them: eight kinds, with payloads in the wire format. Each way
reads the whole history of a job set, and does no more with a message than to count it. Beside gRPC stands a bare server
of the same library, which sends as many messages of that size.

    PYTHONPATH=. python bench/armada.py            400,000 events
    PYTHONPATH=. python bench/armada.py --quick    a tenth of them
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
import psutil
import urllib3

import millpond
from _measure import Contest, note_contests, print_table, rounds
from _results import Run
from _servers import bare_grpc_server
from millpond.events.event import NewEvent
from millpond.server.armada.wire import armada_pb2 as pb
from tests.harness.cluster import Cluster, free_port

QUEUE, JOB_SET = "etl", "nightly"
CALL = 5_000
NOON = 1_700_000_000_000
MESSAGE_BYTES = 170
"""About what a message has."""


def payload(kind: str, number: int) -> bytes:
    """The fields of a message that are not stored beside it."""
    cluster, pod = f"cluster-{number % 5}", f"pod-{number:016x}"
    if kind == "leased":
        return pb.Leased(cluster_id=cluster).SerializeToString()
    if kind == "pending":
        return pb.Pending(cluster_id=cluster, kubernetes_id=pod).SerializeToString()
    if kind == "running":
        node = f"gke-pool-{number % 97:03}"
        return pb.Running(cluster_id=cluster, kubernetes_id=pod, node_name=node).SerializeToString()
    return b""


KINDS = ("queued", "leased", "pending", "running", "running", "running", "running", "succeeded")


def events(count: int) -> list[NewEvent]:
    """Events of jobs, eight each."""
    return [
        NewEvent(NOON + number, payload(kind, number), kind, {"job_id": f"01hf7yat{number // len(KINDS):018}"})
        for number in range(count)
        if (kind := KINDS[number % len(KINDS)])
    ]


def by_grpc(port: int) -> int:
    """The messages of `GetJobSetEvents`, which are not decoded."""
    return received(port, "api.Event/GetJobSetEvents", pb.JobSetRequest(queue=QUEUE, id=JOB_SET).SerializeToString())


def received(port: int, method: str, request: bytes) -> int:
    """The messages of a call."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return sum(1 for _ in channel.unary_stream(f"/{method}")(request))


def by_http(url: str) -> int:
    """The lines of Armada's route over HTTP."""
    with urllib3.PoolManager() as pool:
        answer = pool.request("POST", f"{url}/v1/job-set/{QUEUE}/{JOB_SET}", json={}, preload_content=False)
        return sum(block.count(b"\n") for block in answer.stream(1 << 16))


def by_ours(url: str) -> int:
    """The events that Millpond's client gives."""
    with millpond.open(url) as pond:
        return sum(1 for _ in pond.events.read(QUEUE, JOB_SET))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    count = 40_000 if quick else 400_000
    run, port, bare_port = Run("armada"), free_port(), free_port()
    settings = {"server_grpc_port": port}
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_grpc_server(bare_port),
        Cluster(Path(folder), 1, armed=False, settings=settings) as cluster,
    ):
        node = cluster.nodes[0]
        assert node.process is not None
        process = psutil.Process(node.process.pid)
        with millpond.open(node.url) as pond:
            every = events(count)
            for start in range(0, count, CALL):
                pond.events.append(QUEUE, JOB_SET, every[start : start + CALL])
        bare = partial(received, bare_port, "bare/Many", f"{count} {MESSAGE_BYTES}".encode())
        contests = []
        for task, ways in {
            "history, Armada's API by gRPC": {"Millpond": partial(by_grpc, port), "bare gRPC": bare},
            "history, Armada's API by HTTP": {"Millpond": partial(by_http, node.url)},
            "history, Millpond's client": {"Millpond": partial(by_ours, node.url)},
        }.items():
            contests.append(contest := Contest(task, count))
            used = []
            for _ in rounds(quick):
                before = sum(process.cpu_times()[:2])
                for way, read in ways.items():
                    contest.run(way, partial(counted, read, count))
                used.append((sum(process.cpu_times()[:2]) - before) / count)
            run.note(f"{task}: processor of the node", "Millpond", used)
            print(f"{task}: {1e6 * min(used):.1f} µs of the node's processor an event")
    note_contests(run, contests)
    print_table(contests)
    run.write(whole=not quick, events=count)


def counted(read: Callable[[], int], count: int) -> None:
    """Read, and see that everything came."""
    assert read() == count


if __name__ == "__main__":
    main()
