"""Nodes on a bucket: any of them takes reads and writes, and holds nothing; what they have not is refused by name."""

from __future__ import annotations

import json
import os
import threading
from contextlib import ExitStack
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import urllib3
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.client.moments import MOMENT_HEADER
from millpond.client.upload import enter_load, upload_parts
from millpond.errors import Denied, Invalid, NotFound
from millpond.kernel.lease import LeaseRow, LeaseWatch
from millpond.maps.loads.bucket_location import UNSUPPORTED, StorageBucket
from millpond.maps.model.keyspaces import JOB
from millpond.nodes.jobs.job_leases import LEASE_SECONDS
from millpond.nodes.node import token_list
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.stores.objects import open_objects
from tests.harness.faulty_proxy import FaultyProxy
from tests.harness.rows import canonical_of
from tests.nodes.conftest import Served
from tests.rings.forked import Command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.postgres_server import PostgresServer
    from tests.s3_server import S3Server

pytestmark = pytest.mark.sample(8, of="file")

_NUMBERS = count(1)
SECRET = "of-no-use-elsewhere"
SETTINGS = {"nodes_lag_limit": "9000d", "maps_store": "auto", "client_read_timeout": "20s"}
"""The clock of tests stands still, and that of the bucket does not."""


@pytest.fixture
def url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{s3_server.make_bucket(f'nodes-{os.getpid()}-{next(_NUMBERS)}')}/pond"


@pytest.fixture
def serve_it(url: str, serve: Callable[..., Served], tmp_path: Path) -> Callable[..., Served]:
    """Serve one more node on the bucket; all share a folder for copies."""

    def start(**settings: Any) -> Served:
        return serve(server_data=url, client_cache=str(tmp_path / "cache"), **{**SETTINGS, **settings})

    return start


@pytest.fixture
def pair(serve_it: Callable[..., Served]) -> tuple[Served, Served]:
    return serve_it(), serve_it()


def opened(*nodes: Served, **settings: Any) -> Any:
    return millpond.open(",".join(node.url for node in nodes), **settings)


def test_a_write_through_one_node_is_read_through_another_by_whoever_wrote(pair: tuple[Served, Served]) -> None:
    one, other = pair
    with opened(one) as here, opened(other) as there:
        made = here.create_map("m", kind="state", value="long")
        made.load([{"key": "a", "value": 1}])
        assert made.get("a") == 1
        # The clock stands still, so that the copy of the other node is as new as it may be, and has none of it.
        with pytest.raises(NotFound):
            there.map("m")
        moment = one.get("/v1/maps/m").headers[MOMENT_HEADER]
        assert other.get("/v1/maps/m", headers={MOMENT_HEADER: moment}).status == 200
        assert there.map("m").get("a") == 1
        there.map("m").load([{"key": "a", "value": 2}])
        wrong = other.get("/v1/maps/m", headers={MOMENT_HEADER: "soon"})
        assert (wrong.status, wrong.json()["kind"]) == (400, "request_invalid")
    one.clock.advance(2_000)
    with opened(one, other) as both:
        assert both.map("m").get("a") == 2
        one.close()
        both.map("m").load([{"key": "b", "value": 3}])
        assert both.map("m").lookup(["a", "b"]).to_pylist() == [2, 3]


def test_a_branch_that_is_made_through_one_node_is_read_and_merged_through_another(pair: tuple[Served, Served]) -> None:
    one, other = pair
    with opened(one) as here, opened(other) as there:
        here.create_map("m", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
        fix = here.branch("fix", source="main")
        fix.map("m").load([{"key": "a", "value": 2}])
        assert fix.map("m").get("a") == 2
        moment = one.get("/v1/maps/m?branch=fix").headers[MOMENT_HEADER]
        assert other.get("/v1/maps/m?branch=fix", headers={MOMENT_HEADER: moment}).status == 200
        assert there.branch("fix").map("m").lookup(["a"]).to_pylist() == [2]
        there.branch("fix").map("m").load([{"key": "b", "value": 3}], load_id="b")
        there.branch("fix").merge()
        assert there.map("m").lookup(["a", "b"]).to_pylist() == [2, 3]
    one.clock.advance(2_000)
    with opened(one, other) as both:
        both.nodes.take_whole_loads = False
        fix = both.branch("more", source="main")
        one.close()
        fix.map("m").load([{"key": "c", "value": 4}])
        assert fix.map("m").lookup(["a", "b", "c"]).to_pylist() == [2, 3, 4]
        assert [change["key"] for change in both.refs.diff("main", "more").to_pylist()] == ["c"]
        fix.merge()
        assert both.map("m").get("c") == 4


def test_a_part_that_came_to_one_node_is_entered_on_a_branch_through_another(pair: tuple[Served, Served]) -> None:
    one, other = pair
    with opened(one) as here, opened(other) as there:
        here.create_map("m", kind="state", value="long", store="layers")
        fix = here.branch("fix", source="main")
        one.clock.advance(2_000)
        definition = there.branch("fix").map("m").definition
        writer = here.part_writer("m")
        writer.write(canonical_of(definition, [(("a",), 5)]))
        parts = writer.finish()
        at = {"branch": "fix", "commit": "true", "again": "false", "drawn": "false"}
        upload_parts(here.nodes, parts, at=at)
        result = enter_load(there.nodes, parts, load_id="l", clock=there.clock, at=at)
        assert (result.parts, result.rows, bool(result.commit)) == (1, 1, True)
        assert enter_load(there.nodes, parts, load_id="l", clock=there.clock, at=at).commit == result.commit
        one.clock.advance(2_000)
        assert fix.map("m").get("a") == 5


def test_events_come_to_any_node_and_are_read_through_any(pair: tuple[Served, Served]) -> None:
    one, other = pair
    with opened(one) as here, opened(other) as there, there.events.watch("etl", "nightly") as watch:
        assert watch.next_batch(0.0) == []
        assert here.events.append("etl", "nightly", [b"one", b"x" * 100_000], source="s", positions=[1, 2]).count == 2
        one.clock.advance(2_000)
        assert [event.payload[:3] for event in islice(watch, 2)] == [b"one", b"xxx"]
        assert there.events.append("etl", "nightly", [b"x" * 100_000], source="s", positions=[2]).repeated == 1
        assert there.events.delete("etl", "nightly") == 2
        assert other.get("/console/events", headers={"Accept": "text/html"}).status == 200
        assert one.post("/v1/jobs/events/run").status == 200


def _call(channel: grpc.Channel, method: str, message: bytes) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    return call(message, timeout=30)


def test_jobs_are_submitted_to_any_node_and_are_the_same_jobs(serve_it: Callable[..., Served]) -> None:
    with ExitStack() as stack:
        ports = [serve_it(server_grpc_port=0, objects_max_staleness=0).node.settings.server.grpc_port for _ in "ab"]
        one, other = (stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}")) for port in ports)
        queue = pb.Queue(name="etl", priority_factor=1).SerializeToString()
        _call(one, "/api.QueueService/CreateQueue", queue)
        item = pb.JobSubmitRequestItem(namespace="default", pod_specs=[b"\x0a\x00"], priority=1, client_id="load-1")
        request = pb.JobSubmitRequest(queue="etl", job_set_id="night", job_request_items=[item]).SerializeToString()
        ids = {
            pb.JobSubmitResponse.FromString(_call(channel, "/api.Submit/SubmitJobs", request))
            .job_response_items[0]
            .job_id
            for channel in (one, other)
        }
        assert len(ids) == 1
        read = pb.JobSetRequest(queue="etl", id="night").SerializeToString()
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = other.unary_stream("/api.Event/GetJobSetEvents")
        kinds = [
            pb.EventStreamMessage.FromString(event).message.WhichOneof("events") for event in stream(read, timeout=30)
        ]
        assert kinds == ["submitted", "queued"]


def test_reads_ask_the_bucket_each_time_where_that_is_set(serve_it: Callable[..., Served]) -> None:
    one, other = serve_it(objects_max_staleness=0), serve_it(objects_max_staleness=0)
    with opened(one) as here, opened(other) as there:
        here.create_map("m", kind="temporal_state", value="temp double").load(
            [{"key": "JFK", "effective_time": 1000, "temp": 39.0}]
        )
        assert there.map("m").get("JFK", at=2000) == {"temp": 39.0}
        assert there.sql("select count(*) as n from m").to_pylist() == [{"n": 1}]
        here.map("m").delete("key = 'JFK'")
        assert there.map("m").get("JFK", at=2000) is None
        here.drop_map("m")
        assert there.maps() == []


def test_nodes_share_a_pond_whose_rows_lie_in_a_database(
    serve_it: Callable[..., Served], postgres_server: PostgresServer, url: str, tmp_path: Path
) -> None:
    one = serve_it(objects_space=postgres_server.url())
    other = serve_it(objects_space=postgres_server.url())
    with opened(one, other) as pond, opened(other, one) as there:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
        one.close()
        assert pond.map("m").get("a") == 1
        there.map("m").load([{"key": "b", "value": 2}])
        assert there.map("m").lookup(["a", "b"]).to_pylist() == [1, 2]
    assert [info.name for info in open_objects(url).list("space")] == ["space/witness"]


def test_parts_of_a_large_load_may_come_to_one_node_and_its_entry_to_another(pair: tuple[Served, Served]) -> None:
    one, other = pair
    with opened(one) as here, opened(other) as there:
        here.create_map("m", kind="state", value="long")
        one.clock.advance(2_000)
        writer = here.part_writer("m")
        writer.write(canonical_of(here.map("m").definition, [((f"{n}",), n) for n in range(10)]))
        [part] = writer.finish()
        upload_parts(here.nodes, [part])
        result = enter_load(there.nodes, [part], load_id="aa11", clock=there.clock)
        assert (result.rows, result.parts) == (10, 1)
        assert enter_load(here.nodes, [part], load_id="aa11", clock=here.clock).position == result.position
        assert here.map("m").get("7") == 7
        location = one.node.pond.location
        assert isinstance(location, StorageBucket)
        assert list(location.objects.list("uploads")) == []


def test_what_a_node_on_a_bucket_does_not_have_is_refused_by_name(
    serve_it: Callable[..., Served], pair: tuple[Served, Served]
) -> None:
    node = pair[0]
    for path, part in (("/v1/log/state", "replication"), ("/v1/repair", "replication")):
        error = node.get(path, headers={"Accept": "application/json"})
        assert (error.status, error.json()["kind"]) == (400, "bucket_unsupported")
        assert error.json()["values"]["part"] == part
        assert error.json()["hint"] == UNSUPPORTED[part]
    with opened(node) as pond, pytest.raises(Invalid) as refused:
        pond.create_map("s", kind="state", store="shard")
    assert refused.value.kind == "bucket_unsupported"
    for settings, part in (
        ({"nodes_urls": ["http://127.0.0.1:1"]}, "replication"), ({"server_readers": 2}, "readers"),
        ({"events_store": "redis://localhost/0#pond"}, "a Redis for events"),
        ({"objects_backups": "/backups"}, "backups"), ({"maps_store": "shard"}, "shards"),
        ({"versions_objects": "/data"}, "another place for repositories"),
        ({"workflows_store": "rocksdb"}, "another store of runs"),
        ({"workflows_log": "kafka://localhost:9092/runs", "objects_place": "/c"}, "another log of workflows"),
    ):  # fmt: skip
        with pytest.raises(Invalid) as caught:
            serve_it(**{"server_url": "http://127.0.0.1:1", **settings})
        assert (caught.value.kind, caught.value.values["part"]) == ("bucket_unsupported", part)
    assert sorted(job["name"] for job in node.get("/v1/jobs").json()["jobs"]) == [
        "cleanup", "compact", "condense", "events", "garbage", "retain", "verify",
    ]  # fmt: skip


def test_runs_begin_at_one_node_and_are_shown_by_the_console_of_another(serve_it: Callable[..., Served]) -> None:
    pytest.importorskip("littlehorse")
    from littlehorse.model import PutTaskDefRequest, RunWfRequest

    from tests.models.workflows.specs import request

    one, other = serve_it(server_grpc_port=0), serve_it(server_grpc_port=0)
    with grpc.insecure_channel(f"127.0.0.1:{one.node.settings.server.grpc_port}") as channel:
        for name, message in (
            ("PutTaskDef", PutTaskDefRequest(name="work")), ("PutWfSpec", request("retried")),
            ("RunWf", RunWfRequest(wf_spec_name="retried", id="r-1")),
        ):  # fmt: skip
            _call(channel, f"/littlehorse.LittleHorse/{name}", message.SerializeToString())
    for node in (one, other):
        path = "/console/runs/run?tenant=default&id=r-1"
        page = node.while_time_passes(partial(node.get, path, headers={"Accept": "text/html"}))
        assert (page.status, b"r-1" in page.body) == (200, True)


def test_parts_go_to_the_next_node_when_the_one_in_use_dies(pair: tuple[Served, Served]) -> None:
    one, other = pair
    with opened(one, other) as pond:
        pond.create_map("m", kind="state", value="long")
        writer = pond.part_writer("m")
        writer.write(canonical_of(pond.map("m").definition, [((f"{n}",), n) for n in range(10)]))
        [part] = writer.finish()
        one.close()
        upload_parts(pond.nodes, [part])
        assert enter_load(pond.nodes, [part], load_id="aa11", clock=pond.clock).rows == 10
        assert other.pond.map("m").get("7") == 7


# -- tokens -------------------------------------------------------------------------------------------


def _is_refused(node: Served) -> bool:
    return node.get("/v1/maps").status == 401


def test_tokens_are_those_of_the_pond_on_all_nodes_within_a_second(
    url: str, pair: tuple[Served, Served], tmp_path: Path
) -> None:
    one, other = pair
    assert other.get("/v1/maps").status == 200
    (tmp_path / "settings.toml").write_text(f'[client]\ncache = "{tmp_path / "cache"}"\n')

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--data", url, "--config", str(tmp_path / "settings.toml")])
        assert done.exit_code == 0, done.output
        return done.stdout

    token = json.loads(run("token", "add", "loader", "--write", "m", "--json"))["token"]
    for node in pair:
        node.until(partial(_is_refused, node))
        assert node.get("/v1/maps", headers={"Authorization": f"Bearer {token}"}).status == 200
    stored = token_list(one.pond)
    assert [made.name for made in stored.read()] == ["loader"]
    assert "s3://" in run("token", "list")
    run("token", "revoke", "loader")
    other.until(lambda: other.get("/v1/maps", headers={"Authorization": f"Bearer {token}"}).status == 401)
    assert stored.exists(), "nobody is let in, now"


# -- repositories -------------------------------------------------------------------------------------


def test_repositories_are_those_of_the_bucket(serve_it: Callable[..., Served]) -> None:
    one, other = serve_it(objects_max_staleness=0), serve_it(objects_max_staleness=0)
    made = {"name": "flights", "storage_namespace": "local://flights", "default_branch": "main"}
    assert one.post("/api/v1/repositories", made).status == 201
    path = "/api/v1/repositories/flights/branches/main/objects?path=a/b"
    assert other.post(path, b"content", headers={"Content-Type": "application/octet-stream"}).status == 201
    read = "/api/v1/repositories/flights/refs/{}/objects?path=a/b"
    assert one.get(read.format("main")).body == b"content"
    commit = one.post("/api/v1/repositories/flights/branches/main/commits", {"message": "first"})
    assert commit.status == 201
    assert other.get(read.format(commit.json()["id"])).body == b"content"
    branch = {"name": "fix", "source": "main"}
    assert other.post("/api/v1/repositories/flights/branches", branch).status == 201
    assert one.delete("/api/v1/repositories/flights/branches/fix/objects?path=a/b").status == 204
    assert other.post("/api/v1/repositories/flights/branches/fix/commits", {"message": "less"}).status == 201
    diff = one.get("/api/v1/repositories/flights/refs/main/diff/fix").json()["results"]
    assert [(entry["path"], entry["type"]) for entry in diff] == [("a/b", "removed")]
    assert other.post("/api/v1/repositories/flights/refs/fix/merge/main", {}).status == 200
    assert one.get(read.format("main")).status == 404
    assert "flights" in one.get("/console/versions", headers={"Accept": "text/html"}).body.decode()


# -- jobs ---------------------------------------------------------------------------------------------


def test_a_node_does_what_one_that_died_was_at(pair: tuple[Served, Served]) -> None:
    one, other = pair
    row = LeaseRow(JOB.pack("garbage"), LEASE_SECONDS, LeaseWatch(one.clock))
    one.pond.space.write(lambda tx: row.take(tx, "a node that died"))
    other.wait_ready()
    with other.node.turns("garbage", threading.Event()) as turn:
        assert turn is None
    other.until(lambda: other.node.scheduler.status("garbage")[0].runs == 1)
    assert "another node" not in str(other.node.scheduler.status("garbage")[0].last)


# -- health -------------------------------------------------------------------------------------------


def test_a_node_whose_clock_is_off_says_so(serve_it: Callable[..., Served]) -> None:
    node = serve_it(nodes_lag_limit="15s")
    node.until(lambda: "clock is off" in str(node.node.reasons()))
    assert node.get("/readyz").status == 503
    assert node.get("/v1/node").json()["role"] == "equal"
    refused = node.post("/v1/maps", {"name": "m", "kind": "state"})
    assert (refused.status, refused.json()["kind"]) == (503, "node_not_ready")


def test_readiness_tells_of_a_bucket_that_is_away(
    s3_server: S3Server, serve_it: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultyProxy(int(s3_server.url.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        node = serve_it()
        node.wait_ready()
        node.post("/v1/maps", {"name": "m", "kind": "state"})
        proxy.cut()
        node.until(lambda: "cannot be read" in str(node.node.reasons()) or "not answered" in str(node.node.reasons()))
        assert node.get("/readyz").status == 503
        assert node.get("/v1/maps").json()["kind"] == "node_not_ready"
        assert b"millpond_ready 0.0" in node.get("/metrics").body
        proxy.mend()
        node.wait_ready()
        assert [made["name"] for made in node.get("/v1/maps").json()["maps"]] == ["m"]


class _Unwritable:
    """The objects of a bucket that takes none."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("put", "swap"):
            raise Denied("the bucket refuses us", kind="objects_denied", where="here", hint="get the right")
        return getattr(self._inner, name)


def test_readiness_tells_of_a_bucket_that_takes_no_writes(serve_it: Callable[..., Served]) -> None:
    node = serve_it()
    node.post("/v1/maps", {"name": "m", "kind": "state"})
    location: Any = node.pond.location
    object.__setattr__(location, "objects", _Unwritable(location.objects))
    node.until(lambda: "takes no writes" in str(node.node.reasons()))
    assert node.get("/v1/maps/m").status == 200


def test_metrics_and_the_audit_log_are_those_of_the_node(pair: tuple[Served, Served]) -> None:
    one, other = pair
    assert one.post("/v1/maps", {"name": "m", "kind": "state"}).status == 200
    lines = (one.pond.own_folder / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["map"] for line in lines] == ["m"]
    assert not (other.pond.own_folder / "audit.jsonl").exists()
    assert {one.pond.own_folder.name, other.pond.own_folder.name} == {"0", "1"}
    assert b"millpond_ready" in other.get("/metrics").body
    with opened(one) as pond:
        pond.map("m").load([{"key": "a", "value": 1}], source="a source")
    one.wait_ready()
    page = one.get("/", headers={"Accept": "application/json"}).json()
    assert [(load["map"], load["rows"], load["source"]) for load in page["loads"]] == [("m", 1, "a source")]


def test_the_console_of_a_bucket_needs_no_node(
    url: str, process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLPOND_MAPS_STORE", "auto")
    missing = CliRunner().invoke(app, ["console", url, "--no-browser"])
    assert missing.exit_code == 3 and "there is no pond here" in missing.output
    refused = CliRunner().invoke(app, ["console", "http://localhost:7433"])
    assert "open http://localhost:7433 in a browser" in refused.output
    with millpond.open(url) as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
        pond.branch("fix", source="main").create_map("made", kind="state")
    command = Command(["console", url, "--no-browser", "--json"], cwd=tmp_path)
    try:
        address = json.loads(command.stdout.readline())["url"]
        pool = urllib3.PoolManager(retries=False)
        signed_in = pool.request("GET", address, redirect=False)
        headers = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0], "Accept": "application/json"}
        base = address.partition("/console")[0]
        for path, names in (("", ["m"]), ("?ref=fix", ["m", "made"])):
            shown = pool.request("GET", f"{base}/console/maps{path}", headers=headers).json()
            assert [own["name"] for own in shown["maps"]] == names
        assert pool.request("GET", f"{base}/console/maps/m?key=a", headers=headers).json()["answer"]["shown"] == 1
        for page in ("/", "/console/versions/pond", "/console/events", "/console/runs", "/console/workflows",
                     "/console/jobs", "/console/sql?q=select+*+from+m"):  # fmt: skip
            assert pool.request("GET", base + page, headers=headers).status == 200, page
    finally:
        command.terminate()
        command.communicate()
