"""Questions that nobody means: each is refused with its reason and a way out, none is a mistake of the node."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pyarrow as pa
import pytest

from millpond.maps.predicates.tree import TESTS_MAX
from millpond.server.console.pages import CONSOLE
from millpond.server.routes.table import On

HALF = "\ud800"


def stream(**columns: Any) -> bytes:
    batch, sink = pa.RecordBatch.from_pydict(columns), io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


LATE = pa.array([2**62], pa.timestamp("s", "UTC"))
QUESTIONS = [
    ("GET", "times/get?key=a&at=--5", None, "time_unknown"),
    ("GET", "times/get?key=a&at=" + "9" * 5000, None, "time_unknown"),
    ("GET", "times/get?key=a&at=%C2%B2", None, "time_unknown"),
    ("GET", "times/get?key=a&at=" + "9" * 18, None, "time_range"),
    ("GET", "times/get?key=%ff", None, "query_encoding"),
    ("GET", "times/get?key_hex=0", None, "key_missing"),
    ("GET", "ranges/get?key=1.5", None, "key_number"),
    ("POST", "times/get", {"key": HALF}, "key_encoding"),
    ("POST", "times/get", {"key": "a", "at": "--5"}, "time_unknown"),
    ("POST", "times/get", b"\xff\xfe", "request_invalid"),
    ("POST", "times/get", b"[" * 100_000, "request_invalid"),
    ("POST", "times/lookup?at=--5", stream(key=["a"]), "time_unknown"),
    ("POST", "times/lookup", stream(key=["a"], at=LATE), "time_unknown"),
    ("POST", "times/lookup", stream(key=["a"], at=[[1]]), "time_unknown"),
    ("POST", "times/lookup", stream(keys=["a"]), "column_missing"),
    ("POST", "times/lookup", stream(key=["a"])[:-40], "arrow_stream"),
    ("POST", "times/lookup", b"GARBAGE", "arrow_stream"),
    ("POST", "times/scan", {"where": [["key", "in", 5]]}, "condition"),
    ("POST", "times/scan", {"where": [["key", "in", "abc"]]}, "condition"),
    ("POST", "times/scan", {"where": [["key", "=", HALF]]}, "condition_value"),
    ("POST", "times/scan", {"where": f"key = '{HALF}'"}, "condition_value"),
    ("POST", "times/scan", {"where": "(" * 20_000}, "condition"),
    ("POST", "times/scan", {"where": "not " * 20_000 + "key = 'a'"}, "condition"),
    ("POST", "times/scan", {"where": " and ".join(["key = 'a'"] * 20_000)}, "condition_large"),
    ("POST", "times/scan", {"where": [["key", "=", "a"]] * 20_000}, "condition_large"),
    ("POST", "times/scan", {"columns": ["key", "key"]}, "column_twice"),
    ("POST", "times/scan", {"columns": "key"}, "request_invalid"),
]  # fmt: skip


def test_odd_questions_are_refused_with_a_way_out(node: Any) -> None:
    maps = {
        "times": ("temporal_state", {"key": ["a"], "effective_time": [1000], "value": [1]}),
        "ranges": ("ranged_state", {"key_start": [1], "key_end": [5], "value": [7]}),
    }
    for name, (kind, rows) in maps.items():
        loaded = node.pond.create_map(name, kind=kind, value="long").load(pa.table(rows), zone="UTC")
        node.pond.log.wait_applied(loaded.position, timeout=30)
    wrong = []
    for method, path, body, kind in QUESTIONS:
        sent = json.dumps(body).encode() if isinstance(body, dict) else body
        # A body is sent as JSON unless it is a stream: nothing else is wrong with it.
        headers = {"Content-Type": "application/json"} if sent and "lookup" not in path else {}
        response = node.request(method, f"/v1/maps/{path}", body=sent, headers=headers)
        error = response.json()
        if response.status != 400 or error["kind"] != kind or not error["hint"] or not error["message"]:
            wrong.append((path[:60], str(body)[:60], response.status, error))
    assert not wrong
    assert node.get("/v1/maps/ranges/get?key=" + "9" * 5000).json()["found"] is False
    for path, where in (("times", "value = 99999999999999999999"), ("ranges", [["key_start", ">", 1 << 64]])):
        with pa.ipc.open_stream(node.post(f"/v1/maps/{path}/scan", {"where": where}).body) as found:
            assert found.read_all().num_rows == 0, "no row has such a number"
    most = " and ".join(["key = 'a'"] * TESTS_MAX)
    assert node.post("/v1/maps/times/scan", {"where": most}).status == 200, "so many are worked through"
    assert node.post("/v1/maps/times/scan", {"where": "(" * 49 + "key = 'a'" + ")" * 49}).status == 200


@pytest.mark.parametrize("path", ["/v1/maps/%ff", "/v1/maps/a%00b", "/v1/maps/" + "a" * 3000, "/v1/maps/%F0%9F%98%80"])
def test_maps_that_cannot_be_are_not_there(node: Any, path: str) -> None:
    for method in ("GET", "DELETE"):
        assert (response := node.request(method, path)).status == 404
        assert response.json()["kind"] == "map_not_found"
    assert node.get(f"{path}/get?key=a").json()["kind"] == "map_not_found"


def test_orders_with_a_field_that_is_not_known_are_refused(node: Any) -> None:
    for path, body in {
        "verify": {"full": True}, "repair": {"over": False}, "log/replication": {"position": 0},
        "log/acknowledgement": {"position": 0, "without": []}, "nodes/drain": {"draining": False},
    }.items():  # fmt: skip
        refused = node.post(f"/v1/{path}", body | {"ful": True})
        assert (refused.status, refused.json()["kind"]) == (400, "request_invalid"), path
    assert node.post("/v1/verify", {"full": True}).json()["problems"] == []


def test_parameters_that_are_not_known_are_refused(node: Any) -> None:
    node.pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    assert node.get("/v1/maps/m/get?key=a").json()["value"] == 1, "it is answered at once from now on"
    for method, path, parameter in (
        ("GET", "/v1/maps/m/get?key=a&time=5", "time"),
        ("POST", "/v1/maps/m/lookup?fresh=1", "fresh"),
        ("GET", "/v1/events?queue=q&job_set=s&kinds=failed", "kinds"),
        ("POST", "/v1/events?queue=q&job_set=s&sourc=a", "sourc"),
        ("GET", "/v1/parts?stat=queued", "stat"),
        ("POST", "/v1/loads?id=1", "id"),
        ("GET", "/v1/node?x=%F0%9F%98%80", "x"),
    ):
        refused = node.request(method, path, body=b"{}" if method == "POST" else None)
        error = refused.json()
        assert (refused.status, error["kind"]) == (400, "parameter_unknown"), path
        assert parameter in error["values"]["parameter"] and error["hint"]
    assert (
        node.get("/v1/maps/m/get?key=a&time=5").json()["values"]["known"] == "at, branch, key, key_hex, known_at, ref"
    )
    for open_to_all in ("/healthz?probe=1", "/readyz?probe=1", "/metrics?name=x", "/docs?x"):
        assert node.get(open_to_all).status == 200


def test_each_route_of_ours_refuses_a_parameter_that_it_does_not_know(node: Any) -> None:
    node.pond.create_map("x", kind="state")
    routes = [
        route for route in node.service.app.state.routes
        if route.path.startswith("/v1/") or (route.dialect is CONSOLE and route.method == "GET")
    ]  # fmt: skip
    passed_over = []
    for route in routes:
        path, headers = re.sub(r"{.*?}", "x", route.path), {"Accept": "application/json"}
        refused = node.request(route.method, f"{path}?zzz=1", headers=headers)
        named = route.method == "HEAD" or refused.json()["kind"] == "parameter_unknown"
        if (refused.status, named) != (400, True):
            passed_over.append((route.method, path))
    assert len(routes) > 90
    assert passed_over == [("POST", "/v1/job-set/x/x")], "clients of Armada add some"
    assert node.get("/console/maps?zzz=1", headers={"Accept": "text/html"}).status == 400


def test_every_parameter_that_rights_depend_on_is_known(node: Any) -> None:
    wanted = {
        On.STREAM: {"queue", "job_set"}, On.QUERY_MAP: {"map"}, On.QUERY_MAP_OR_POND: {"map"},
    }  # fmt: skip
    for route in node.service.app.state.routes:
        assert wanted.get(route.needs.on, set()) <= route.parameters, route.path


def test_a_payload_is_sent_in_one_form(node: Any) -> None:
    lines = b'{"kind": "a", "payload": "text"}\n{"kind": "a", "payload": "text", "payload_base64": "dGV4dA=="}\n'
    refused = node.post("/v1/events?queue=q&job_set=s", lines)
    error = refused.json()
    assert (refused.status, error["kind"], error["values"]["line"]) == (400, "event_line", 2)
    assert "payload_base64" in error["values"]["reason"]
    assert node.post("/v1/events?queue=q&job_set=s", lines.splitlines()[0]).status == 200
