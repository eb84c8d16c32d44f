"""A node with reading processes: `docs/decisions/0022-reading-processes.md` says what holds."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.types import Message

import millpond
from millpond.clock import ManualClock, SystemClock
from millpond.errors import AlreadyExists, MillpondError, Unavailable, Uncertain
from millpond.nodes.limits import LIMITS
from millpond.nodes.rate_limits import BUCKETS_BYTES, SharedRateLimits
from millpond.nodes.tokens import TokenFile, hash_token
from millpond.server.dialect import OWN
from millpond.server.forward import Forward
from millpond.server.readers import Readers
from millpond.server.run import Service
from millpond.settings import load_settings
from tests.nodes.conftest import Served
from tests.nodes.test_limits import Sender
from tests.nodes.test_route_table import NO_PART, path_of

pytestmark = pytest.mark.sample(2, of="file")
CLOCK = SystemClock()
CONNECTIONS = 24
"""So many reach each of two readers, but for one time in millions."""


def readers_of(node: Served) -> Readers:
    readers = node.service._readers  # tests kill them
    assert readers is not None
    return readers


def connections(stack: ExitStack, url: str, count: int = CONNECTIONS) -> list[http.client.HTTPConnection]:
    """Connections that stay open, so that each belongs to one reader."""
    host = url.removeprefix("http://")
    made = [http.client.HTTPConnection(host, timeout=30) for _ in range(count)]
    for connection in made:
        stack.callback(connection.close)
        connection.connect()
    return made


def ask(connection: http.client.HTTPConnection, path: str, **headers: str) -> tuple[int, Any]:
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def counted(node: Served, name: str) -> dict[str, float]:
    """A metric of each process, added up; of the process that writes it is that of `""`."""
    accept = {"Accept": "application/openmetrics-text"}
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(node.get("/metrics", headers=accept).body.decode()):
        for sample in family.samples:
            if sample.name == name:
                process = sample.labels.get("process", "")
                counts[process] = counts.get(process, 0) + sample.value
    return counts


def wait_until(true: Callable[[], object], seconds: float = 60.0) -> None:
    due = CLOCK.monotonic() + seconds
    while not true():
        assert CLOCK.monotonic() < due, "it did not come true"
        threading.Event().wait(0.02)


def kill(node: Served, number: int) -> None:
    """Kill a reader, and wait until another process has its place."""
    readers = readers_of(node)
    before = readers.replaced
    wait_until(lambda: len(readers.processes()) == len(readers))
    os.kill(readers.processes()[number], signal.SIGKILL)
    wait_until(lambda: readers.replaced > before and len(readers.processes()) == len(readers))


# -- questions and changes ----------------------------------------------------------------------------


def test_every_reader_sees_what_was_written_before(serve: Callable[..., Served]) -> None:
    node = serve(server_readers=2)
    with ExitStack() as stack, millpond.open(node.url, client_synchronise=True) as pond:
        reached = connections(stack, node.url)
        weather = pond.create_map("weather", kind="state", value="long")
        for number in range(8):
            weather.load([{"key": "a", "value": number}])
            answers = [ask(connection, "/v1/maps/weather/get?key=a")[1]["value"] for connection in reached]
            assert answers == [number] * CONNECTIONS
        assert weather.lookup(["a", "b"]).to_pylist() == [7, None]
        assert weather.scan().read_all().num_rows == 1
        assert {row["rows"] for connection in reached for row in ask(connection, "/v1/maps")[1]["maps"]} == {1}
        pond.drop_map("weather")
        assert {ask(connection, "/v1/maps/weather/get?key=a")[0] for connection in reached} == {404}
        pond.create_map("weather", kind="state", value="string").load([{"key": "a", "value": "b"}])
        assert {ask(connection, "/v1/maps/weather/get?key=a")[1]["value"] for connection in reached} == {"b"}
        pond.create_map("layered", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
        pond.branch("fix", source="main").map("layered").load([{"key": "a", "value": 2}])
        for query, value in (("", 1), ("&branch=fix", 2), ("&%62ranch=fix", 2), ("&ref=fix", 2), ("&ref=main", 1)):
            found = {ask(connection, f"/v1/maps/layered/get?key=a{query}")[1]["value"] for connection in reached}
            assert found == {value}, query

    requests = counted(node, "millpond_requests_total")
    assert min(requests["reader-1"], requests["reader-2"]) > 10, "both answered"
    assert counted(node, "millpond_readers") == {"": 2.0}
    assert set(counted(node, "process_resident_memory_bytes")) >= {"reader-1", "reader-2"}


def test_what_readers_hand_on_is_answered_as_it_was(serve: Callable[..., Served]) -> None:
    node = serve(server_readers=2)
    assert node.get("/healthz").json()["status"] == "ok"

    def workers() -> list[str]:
        return [worker["name"] for worker in node.get("/healthz").json()["workers"]]

    node.until(lambda: "the clock of jobs" in workers())  # which runs in the process that writes
    assert node.get("/readyz").status == 200
    assert node.request("HEAD", "/healthz").status == 200
    assert node.get("/nothing").json()["kind"] == "route_not_found"
    refused = node.post("/v1/maps/weather/get", b"{" * 9)
    assert (refused.status, refused.headers["Content-Type"]) == (404, "application/json") or refused.status == 400
    assert node.delete("/v1/maps/weather/get").headers["Allow"] == "GET, POST"
    assert node.post("/v1/maps", {"name": "x", "kind": "state", "wrong": 1}).status == 400
    foreign = node.get("/v1/maps", headers={"Origin": "http://evil.example"})
    assert (foreign.status, foreign.json()["kind"]) == (403, "origin_foreign")
    foreign = node.post("/v1/maps", {"name": "x", "kind": "state"}, headers={"Origin": "http://evil.example"})
    assert (foreign.status, foreign.json()["kind"]) == (403, "origin_foreign")
    own = {"Origin": node.url, "X-Millpond-Sender": "https 1 10.0.0.1"}
    assert node.post("/v1/maps", {"name": "x", "kind": "state"}, headers=own).status == 200, (
        "its scheme is the reader's"
    )
    with socket.create_connection(
        (node.url.split("/")[2].split(":")[0], node.service.node.settings.server.port)
    ) as raw:
        raw.sendall(
            b"POST /v1/maps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 100 ")
        raw.sendall(b'10\r\n{"name":"y","kin\r\n')
        raw.sendall(b'0b\r\nd":"state"}\r\n0\r\n\r\n')
        answer = b"".join(iter(lambda: raw.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert {opened.name for opened in node.pond.maps()} == {"x", "y"}


def test_a_node_of_several_hands_everything_on(serve: Callable[..., Served]) -> None:
    from tests.ports import free_ports

    [port] = free_ports(1)
    node = serve(
        server_readers=2,
        server_port=port,
        nodes_urls=[f"http://127.0.0.1:{port}", "http://127.0.0.1:9"],
        without_peers=True,
    )
    node.wait_ready()
    assert node.get("/v1/maps").json() == {"maps": []}
    assert set(counted(node, "millpond_requests_total")) == {""}


# -- readers that die ---------------------------------------------------------------------------------


def test_killed_readers_lose_no_answer_and_double_no_change(serve: Callable[..., Served]) -> None:
    node = serve(server_readers=2)
    done = threading.Event()
    failures: list[BaseException] = []
    made: list[str] = []
    with millpond.open(node.url, client_attempts=50, client_synchronise=True) as pond:
        pond.create_map("weather", kind="state", value="long").load([{"key": "a", "value": 1}])

        def reading() -> None:
            weather = pond.map("weather")
            while not done.is_set():
                try:
                    assert weather.get("a") == 1
                except BaseException as error:
                    failures.append(error)
                    return

        def changing(thread: int) -> None:
            number = 0
            while not done.is_set():
                number += 1
                try:
                    made.append(pond.create_map(f"m{thread}_{number}", kind="state").name)
                except AlreadyExists as error:
                    failures.append(error)  # it was made twice
                except Uncertain:
                    made.append(f"m{thread}_{number}") if f"m{thread}_{number}" in names(node) else None
                except Unavailable:
                    pass

        threads = [threading.Thread(target=reading) for _ in range(3)]
        threads += [threading.Thread(target=changing, args=(thread,)) for thread in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in (0, 1, 0):
                kill(node, number)
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert not failures
    assert set(made) | {"weather"} == names(node)
    assert counted(node, "millpond_readers_replaced_total") == {"": 3.0}


def names(node: Served) -> set[str]:
    return {opened.name for opened in node.pond.maps()}


def test_a_dead_reader_keeps_no_old_pages(serve: Callable[..., Served]) -> None:
    node = serve(server_readers=2)
    with millpond.open(node.url, client_synchronise=True) as pond:
        weather = pond.create_map("weather", kind="state", value="long")
        weather.load([{"key": "a", "value": 1}])
        assert weather.get("a") == 1
    generation = node.pond.map("weather").shard.cached
    assert generation is not None and generation.env is not None
    with ExitStack() as stack:
        for connection in connections(stack, node.url):
            assert ask(connection, "/v1/maps/weather/get?key=a")[0] == 200
        killed = readers_of(node).processes()
        assert all(f"{pid}" in generation.env.handle.readers() for pid in killed)
        kill(node, 0)
        kill(node, 1)
        assert not any(f"{pid}" in generation.env.handle.readers() for pid in killed)


# -- who may, and how much ----------------------------------------------------------------------------


def test_a_revoked_token_opens_nothing_at_any_reader(serve: Callable[..., Served], tmp_path: Path) -> None:
    node = serve(server_readers=2)
    file = TokenFile(node.pond.folder)
    node.post("/v1/maps", {"name": "weather", "kind": "state"})
    with ExitStack() as stack:
        reached = connections(stack, node.url)
        path = "/v1/maps/weather/get?key=a"
        assert {ask(connection, path)[0] for connection in reached} == {200}
        token = "secret"
        file.add("reader", token, {"read": ["*"]})
        assert {ask(connection, path)[0] for connection in reached} == {401}
        assert {ask(connection, path, Authorization=f"Bearer {token}")[0] for connection in reached} == {200}
        file.revoke("reader")
        assert {ask(connection, path, Authorization=f"Bearer {token}")[0] for connection in reached} == {401}
        file.path.unlink()
        kill(node, 0)
        kill(node, 1)
    with ExitStack() as stack:
        refused = {ask(connection, path)[0] for connection in connections(stack, node.url)}
    assert refused == {401}, "that the file went away opens nothing, to a process that begins after it neither"


def test_the_rate_of_a_token_is_one_for_all_processes(serve: Callable[..., Served]) -> None:
    rate = CONNECTIONS // 6
    node = serve(server_readers=2, server_token_requests_per_second=rate)
    TokenFile(node.pond.folder).add("reader", "secret", {"read": ["*"]})
    with ExitStack() as stack:
        reached = connections(stack, node.url)
        began = CLOCK.monotonic()
        statuses = [ask(connection, "/v1/maps", Authorization="Bearer secret")[0] for connection in reached]
        through = statuses.count(200)
        assert 3 * rate <= through <= rate * (3 + CLOCK.monotonic() - began)


def test_shared_buckets_are_as_those_of_one_process() -> None:
    table, clock = bytearray(BUCKETS_BYTES), ManualClock(0)

    @contextmanager
    def shared() -> Iterator[memoryview]:
        yield memoryview(table)

    one, two = (SharedRateLimits(10, 3, clock, shared) for _ in range(2))
    assert [limits.take("a") for limits in (one, two, one)] == [0, 0, 0]
    assert two.take("a") == pytest.approx(0.1)
    assert one.take("b") == 0
    clock.advance(150)
    assert (two.take("a"), one.take("a")) == (0, pytest.approx(0.05))
    assert SharedRateLimits(0, 3, clock, shared).take("a") == 0


def test_the_limits_of_bodies_hold_at_a_reader_and_beyond_it(serve: Callable[..., Served]) -> None:
    """Each request announces a body and sends none of it, or sends one in pieces that does not say how long it is."""
    node = serve(server_readers=2)
    routes = [route for route in node.service.app.state.routes if route.needs.body_bytes_max is not None]
    for route in routes:
        bytes_max = route.needs.body_bytes_max
        headers = {"Content_Type": "application/json", "Upload_Map": "weather", "Upload_Checksum": NO_PART}
        sender = Sender(node, route.method, path_of(route.path, "weather"), 1 + bytes_max, **headers)
        answer = sender.answer()
        assert answer.status == 413, (route.method, route.path, answer.body)
        if route.method != "HEAD" and route.dialect is OWN:
            assert answer.json()["values"]["bytes_max"] == bytes_max, (route.method, route.path)
    for path, kind in (("/v1/maps/weather/get", "at the reader"), ("/v1/maps", "beyond it")):
        sender = Sender(node, "POST", path, None, Content_Type="application/json")
        piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        with suppress(OSError):  # it was refused before all of it was sent
            for _ in range(64):
                sender.send(piece)
        assert sender.answer().json()["kind"] == "body_too_large", kind
    assert node.pond.maps() == []


def audit_of(node: Served) -> list[dict[str, Any]]:
    """The lines of the audit log after changes, and what is no change, by several tokens; without their times."""
    made = {"name": "weather", "kind": "state", "value": "long"}
    large = b" " * ((1 << 20) + 1)
    for name, method, path, body in (
        ("keeper", "POST", "/v1/maps", made), ("keeper", "POST", "/v1/maps", made),
        ("reader", "GET", "/v1/maps/weather/get?key=a", None), ("reader", "GET", "/v1/maps", None),
        ("reader", "DELETE", "/v1/maps/weather", None), ("nobody", "DELETE", "/v1/maps/weather", None),
        ("keeper", "PATCH", "/v1/maps/weather", {"wrong": 1}), ("keeper", "PATCH", "/v1/maps/weather", large),
        ("keeper", "POST", "/v1/maps/weather/maintenance", {"what": "compact"}),
        ("keeper", "POST", "/v1/events?queue=etl&job_set=night", b'{"kind": "a"}\n'),
        ("keeper", "DELETE", "/v1/maps/weather", None), ("reader", "DELETE", "/v1/maps/weather/get", None),
    ):  # fmt: skip
        node.request(method, path, body=body, headers={"Authorization": f"Bearer {name}"})
    lines = (node.pond.folder / "audit.jsonl").read_text().splitlines()
    return [{**json.loads(line), "at": None, "position": None} for line in lines]


def test_the_audit_log_of_a_node_with_readers_is_that_of_one_without(serve: Callable[..., Served]) -> None:
    rights = {"keeper": {"admin": ["*"]}, "reader": {"read": ["*"]}}
    tokens = [{"name": name, "sha256": hash_token(name), "rights": right} for name, right in rights.items()]
    alone, several = (audit_of(serve(server_tokens=tokens, **more)) for more in ({}, {"server_readers": 2}))
    assert several == alone
    assert [(line["token"], line["status"]) for line in several] == [
        ("keeper", 200), ("keeper", 409), ("reader", 403), (None, 401), ("keeper", 400), ("keeper", 413),
        ("keeper", 200), ("keeper", 200), ("keeper", 200),
    ]  # fmt: skip


def test_a_drained_node_answers_nothing_at_any_reader(serve: Callable[..., Served]) -> None:
    node = serve(server_readers=2)
    node.post("/v1/maps", {"name": "weather", "kind": "state"})
    with ExitStack() as stack:
        reached = connections(stack, node.url)
        for _ in range(5):
            assert node.post("/v1/nodes/drain", {"draining": True}).json()["draining"]
            assert {ask(connection, "/v1/maps/weather/get?key=a")[0] for connection in reached} == {503}
            assert node.get("/v1/nodes/drain").json()["safe"]
            node.post("/v1/nodes/drain", {"draining": False})
            assert {ask(connection, "/v1/maps/weather/get?key=a")[0] for connection in reached} == {200}
        node.post("/v1/nodes/drain", {"draining": True})

        def seen_at_work() -> bool:
            readers_of(node).board.put_running(1, 1)  # until the reader has written down that its last answer is sent
            return not node.get("/v1/nodes/drain").json()["safe"]

        wait_until(seen_at_work)
        readers_of(node).board.put_running(1, 0)


def test_a_reader_holds_little_of_what_it_hands_on(serve: Callable[..., Served]) -> None:
    node = serve(server_readers=2)
    node.get("/v1/maps")
    before = counted(node, "process_resident_memory_bytes")
    body = bytes(1 << 20)

    def pieces() -> Iterator[bytes]:
        yield from (body for _ in range(64))

    connection = http.client.HTTPConnection(node.url.removeprefix("http://"))
    with suppress(OSError):  # it was refused before all of it was sent
        connection.request(
            "PUT", f"/v1/parts/{'0' * 32}/upload", pieces(), {"Upload-Map": "weather"}, encode_chunked=True
        )
        assert connection.getresponse().status >= 400
    connection.close()
    after = counted(node, "process_resident_memory_bytes")
    assert all(after[name] - before[name] < 16 << 20 for name in ("reader-1", "reader-2"))


# -- the beginning and the end ------------------------------------------------------------------------


def test_a_port_is_one_nodes(serve: Callable[..., Served], tmp_path: Path) -> None:
    node = serve(server_readers=2)
    settings = load_settings(
        server_data=str(tmp_path / "b"),
        server_port=node.node.settings.server.port,
        server_readers=2,
        server_grpc_port="off",
    )
    with pytest.raises(MillpondError) as refused:
        Service(settings)
    assert refused.value.kind == "port_in_use"


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node with two readers as a process, and its address."""
    started = subprocess.Popen(
        [sys.executable, "-m", "millpond", "serve", "--port", "0", "--grpc-port", "off", "--set", "server.readers=2",
         "--json", *arguments], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    try:
        assert started.stdout is not None
        yield started, json.loads(started.stdout.readline())["url"]
    finally:
        started.kill()
        started.communicate()


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="it looks for processes as Linux shows them")
def test_all_processes_end_in_time(tmp_path: Path) -> None:
    with process(tmp_path) as (started, url):
        readers = threads_children(started.pid)
        assert len(readers) == 2
        with ExitStack() as stack:
            idle, polling = connections(stack, url, 2)
            assert ask(idle, "/v1/maps")[0] == 200
            polling.request("GET", "/v1/log?wait=30")
            threading.Event().wait(0.5)  # until it waits
            began = CLOCK.monotonic()
            started.send_signal(signal.SIGTERM)
            _, said = started.communicate(timeout=20)
        assert CLOCK.monotonic() - began < LIMITS.shutdown_seconds + 5
        assert started.returncode == 0 and "Traceback" not in said
        assert all(gone(pid) for pid in readers)

    with process(tmp_path) as (started, url):
        readers = threads_children(started.pid)
        started.kill()
        wait_until(lambda: all(gone(pid) for pid in readers), 20)


def threads_children(pid: int) -> list[int]:
    """The children of a process, whichever of its threads started them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_an_answer_that_comes_before_the_body_is_sent_is_passed_on(tmp_path: Path) -> None:
    """The writing process refuses by the head, and ends the connection before it has the body."""
    ended, sent = threading.Event(), list[Message]()

    def refuse(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line:
            line.recv(1 << 16)
            line.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\n{}")
        ended.set()

    async def receive() -> Message:
        if ended.is_set():
            await asyncio.Event().wait()
        ended.wait(60)  # the loop reads nothing meanwhile
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        writing = threading.Thread(target=refuse, args=(listener,))
        writing.start()
        scope = {"type": "http", "method": "POST", "raw_path": b"/v1/maps", "query_string": b"", "scheme": "http",
                 "headers": [(b"content-length", b"%d" % (1 << 30))]}  # fmt: skip
        asyncio.run(Forward(str(tmp_path / "socket"), "http://node")(scope, receive, send))
        writing.join()
    assert sent[0]["status"] == 403 and sent[1]["body"] == b"{}"
