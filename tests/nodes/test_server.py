"""The server itself: errors on the wire, maps, health, metrics, the page of routes, limits, and its end."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
import pytest
from prometheus_client.parser import text_string_to_metric_families

import millpond
from millpond import errors
from millpond.client.wire_errors import from_wire, to_wire
from millpond.errors import Conflict, Invalid, MillpondError, Unavailable
from millpond.json_forms import parse_object, to_json
from millpond.server.app import make_app
from millpond.server.description import described
from millpond.server.lakefs.api import ROUTES
from millpond.server.routes.table import JSON_BYTES_MAX
from millpond.server.wire import classify_error, error_answer
from millpond.statuses import http_status, row_of
from tests.nodes.conftest import ClusterHere, Served
from tests.ports import free_ports

pytestmark = pytest.mark.sample(10, of="file")

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MillpondError)]

# -- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_arrives_as_it_was_raised(cls: type[MillpondError]) -> None:
    error = cls("it happened", kind="some_kind", hint="do this", count=3, path=Path("a/b"), none=None)
    status = http_status(error)
    assert 400 <= status < 600
    arrived = from_wire("http://n", status, error_answer(error).body)
    assert arrived is not None
    assert (type(arrived), arrived.kind, arrived.message, arrived.hint) == (cls, "some_kind", "it happened", "do this")
    assert arrived.values == {"count": 3, "path": "a/b", "none": None}


@pytest.mark.parametrize(
    ("kind", "cls", "status"),
    [
        ("map_name", errors.Invalid, 400), ("upload_too_large", errors.Invalid, 413), ("x", errors.Denied, 403),
        ("token_unknown", errors.Denied, 401), ("x", errors.NotFound, 404), ("x", errors.AlreadyExists, 409),
        ("x", errors.Conflict, 409), ("not_primary", errors.Conflict, 421), ("x", errors.Unavailable, 503),
        ("disk_full", errors.Unavailable, 507), ("x", errors.Corrupt, 500), ("x", errors.Closed, 503),
        ("x", errors.Internal, 500),
    ],
)  # fmt: skip
def test_every_class_has_its_status(kind: str, cls: type[MillpondError], status: int) -> None:
    assert http_status(cls("it happened", kind=kind)) == status


def test_only_transient_errors_are_retried() -> None:
    assert error_answer(Unavailable("busy", kind="pond_busy")).headers["Retry-After"] == "1"
    for kind in ("merge_slow", "node_behind", "disk_full"):
        assert row_of(kind).retry_seconds is None
        assert "Retry-After" not in error_answer(Unavailable("x", kind=kind)).headers


def test_mistakes_of_ours_are_reported_without_their_insides(caplog: pytest.LogCaptureFixture) -> None:
    error = classify_error(RuntimeError("the password is 123"))
    assert (type(error).__name__, error.kind) == ("Internal", "unexpected")
    assert "123" not in json.dumps(to_wire(error))
    assert "123" in caplog.text, "the log of the node has it"
    assert classify_error(OSError(28, "No space left on device")).kind == "disk_full"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/v1/nothing", None, 404, "route_not_found"),
        ("PUT", "/v1/maps", {}, 405, "method_not_allowed"),
        ("POST", "/v1/maps", {}, 400, "request_invalid"),
        ("POST", "/v1/maps", b"{", 400, "request_invalid"),
        ("POST", "/v1/maps", {"name": "m", "kind": "state", "colour": "red"}, 400, "request_invalid"),
        ("POST", "/v1/maps", {"name": "1m", "kind": "state"}, 400, "map_name"),
        ("POST", "/v1/maps", {"name": "m", "kind": "nothing"}, 400, "kind_unknown"),
        ("POST", "/v1/maps", {"name": "m", "kind": "state", "retain": "soon"}, 400, "duration"),
        ("GET", "/v1/maps/m", None, 404, "map_not_found"),
        ("PATCH", "/v1/maps/m", {"retain": "1d"}, 404, "map_not_found"),
        ("DELETE", "/v1/maps/m", None, 404, "map_not_found"),
        ("GET", "/v1/log?after=-1", None, 400, "request_invalid"),
    ],
)
def test_every_error_has_one_form(node: Served, method: str, path: str, body: Any, status: int, kind: str) -> None:
    answer = node.request(method, path, body=body, headers={"Content-Type": "application/json"})
    error = answer.json()
    assert (answer.status, error["kind"]) == (status, kind)
    assert set(error) == {"error", "kind", "message", "hint", "values"}


# -- maps ---------------------------------------------------------------------------------------------


def test_maps_are_made_altered_and_dropped(node: Served) -> None:
    made = node.post("/v1/maps", {"name": "Weather", "kind": "temporal_state", "value": "double", "retain": "10d"})
    assert (made.status, made.json()["name"], made.json()["retain_ms"]) == (200, "weather", 864_000_000)
    assert made.json()["position"] == 1
    again = {"name": "weather", "kind": "temporal_state", "value": "double"}
    assert node.post("/v1/maps", again).json()["kind"] == "map_exists"
    assert node.post("/v1/maps", {**again, "exist_ok": True}).json()["position"] == 1
    changed = node.request("PATCH", "/v1/maps/weather", body={"retain": None, "overwrite": False}).json()
    assert (changed["retain_ms"], changed["overwrite"], changed["position"]) == (None, False, 2)
    assert node.request("PATCH", "/v1/maps/weather", body={"kind": "state"}).json()["kind"] == "setting_fixed"
    assert [entry["name"] for entry in node.get("/v1/maps").json()["maps"]] == ["weather"]
    assert node.delete("/v1/maps/weather").json() == {"position": 3}
    assert node.get("/v1/maps").json() == {"maps": []}


def test_a_map_says_by_which_time_it_condenses_and_an_order_does(node: Served) -> None:
    body = {"name": "m", "kind": "temporal_state", "value": "long", "condense_by": "update_time", "store": "shard"}
    assert node.post("/v1/maps", body).json()["condense_by"] == "update_time"
    rows = [{"key": "a", "effective_time": number, "value": 1} for number in range(3)]
    node.pond.map("m").load(rows)
    orders = []
    for by, left in (("update_time", 3), ("effective_time", 2)):
        node.request("PATCH", "/v1/maps/m", body={"condense_by": by})
        order = node.post("/v1/maps/m/maintenance", {"what": "condense", "before": 2})
        assert (order.status, order.json()["report"]["rows_after"]) == (200, left)
        [*_, entry] = node.pond.log.entries(0)
        orders.append(entry.body["settings"].get("condense_by"))
    assert orders == ["update_time", None], "an entry without it means the effective time, as before"
    assert "condense_by" not in node.get("/v1/maps/m").json()


def test_only_the_primary_changes_maps(cluster: ClusterHere) -> None:
    for method, path, body in (
        ("POST", "/v1/maps", {"name": "m", "kind": "state"}), ("PATCH", "/v1/maps/m", {"retain": "1d"}),
        ("DELETE", "/v1/maps/m", None),
    ):  # fmt: skip
        refused = cluster[2].request(method, path, body=body)
        assert (refused.status, refused.json()["kind"]) == (421, "not_primary")
        assert refused.json()["values"]["primary"] == cluster[0].url


# -- health -------------------------------------------------------------------------------------------


def test_a_node_says_what_it_is(cluster: ClusterHere) -> None:
    statuses = [node.get("/v1/node").json() for node in cluster.nodes]
    assert [status["role"] for status in statuses] == ["primary", "replica", "replica"]
    assert {status["primary"] for status in statuses} == {cluster[0].url}
    assert [status["url"] for status in statuses] == cluster.urls
    assert statuses[0]["nodes"] == cluster.urls
    cluster[0].pond.create_map("m", kind="state")
    assert cluster[0].get("/v1/node").json()["position"] == 1


def test_readiness_has_reasons(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (node.get("/readyz").status, node.get("/readyz").json()) == (200, {"ready": True, "reasons": []})
    monkeypatch.setattr(node.node, "disk_free", lambda: 1 << 20)
    assert (node.get("/readyz").status, node.get("/readyz").json()["reasons"]) == (
        503,
        ["the disk is full: 1 MiB are free"],
    )
    monkeypatch.undo()
    node.node.merger.stop()
    assert node.get("/readyz").json()["reasons"] == ["the merger has ended"]
    monkeypatch.setattr(node.node, "started", False)
    assert "it is starting" in node.get("/readyz").json()["reasons"]
    refused = node.post("/v1/maps", {"name": "m", "kind": "state"})
    assert (refused.status, refused.json()["kind"], refused.headers["Retry-After"]) == (503, "node_starting", "1")


def metrics(node: Served) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(node.get("/metrics").body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_what_a_node_does_is_measured(node: Served) -> None:
    with millpond.open(node.url) as pond:
        pond.create_map("m", kind="state", value="long")
        pond.map("m").load(
            [{"key": "a", "value": 1}, {"key": "b", "value": 2}],
        )
        pond.merge()
        pond.map("m").freeze()
    node.get("/v1/maps/nowhere")
    node.get("/wp-admin.php")
    found = metrics(node)
    assert found["millpond_rows_merged_total"] == {("m",): 2}
    assert found["millpond_parts_merged_total"] == {("m",): 1}
    assert found["millpond_parts_queued"] == {("m",): 0}
    assert found["millpond_log_position"] == {(): 2}
    assert found["millpond_applied_position"] == {("m",): 2}
    assert found["millpond_ready"] == {(): 1}
    assert found["millpond_log_behind"] == {(): 0}
    assert found["millpond_disk_free_bytes"][()] > 0
    assert found["millpond_upload_bytes_total"][()] > 1000
    assert 0 <= found["millpond_snapshot_age_seconds"][("m",)] < 60
    assert found["millpond_job_failures_total"][("merge",)] == 0
    requests = found["millpond_requests_total"]
    assert requests[("GET", "/v1/maps/{name}", "404")] >= 1, "templates, not names"
    assert requests[("GET", "none", "404")] == 1
    assert requests[("PUT", "/v1/loads/{load_id}", "200")] == 1
    assert found["millpond_request_seconds_count"][("PUT", "/v1/loads/{load_id}")] == 1
    assert not any("nowhere" in label for labels in requests for label in labels)


# -- the page of routes -------------------------------------------------------------------------------


def test_every_route_is_described(node: Served) -> None:
    document = parse_object(to_json(described(make_app(node.node).state.routes)))
    assert document["openapi"] == "3.1.0"
    assert "Authorization: Bearer" in document["info"]["description"]
    assert document == node.get("/openapi.json").json()
    routes = [
        (path, method, document["paths"][path][method])
        for path in document["paths"]
        for method in document["paths"][path]
    ]
    assert len(routes) > 25
    plain = [f"{method} {path}" for path, method, route in routes if not route.get("tags")]
    assert plain == [], "tagged"
    assert all(route["summary"] for _, _, route in routes), "a summary that somebody wrote"
    assert len({route["operationId"] for _, _, route in routes}) == len(routes)
    schemas = document["components"]["schemas"]
    assert set(schemas["ErrorResponse"]["properties"]) == {"error", "kind", "message", "hint", "values"}
    for schema in schemas.values():
        jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
    references = {place["$ref"] for place in _within(document) if isinstance(place.get("$ref"), str)}
    assert references == {f"#/components/schemas/{name}" for name in schemas}, "each is there, and of use"


def test_every_route_of_versions_is_described(node: Served) -> None:
    document = node.get("/openapi-versions.json").json()
    described = {(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs}
    assert described == {(route.method, route.path) for route in ROUTES}
    operations = [operation for verbs in document["paths"].values() for operation in verbs.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] and "Needs" in operation["description"] for operation in operations)
    assert "/openapi-versions.json" in node.get("/docs/versions").body.decode()
    assert "/docs/versions" in node.get("/openapi.json").json()["info"]["description"]


def _within(document: Any) -> list[dict[str, Any]]:
    if isinstance(document, dict):
        return [document, *(found for value in document.values() for found in _within(value))]
    return [found for value in document for found in _within(value)] if isinstance(document, list) else []


def test_what_routes_answer_is_what_they_say(node: Served) -> None:
    """Every field of the models of maps and nodes is there, but those that only some maps have; and no other."""
    schemas = node.get("/openapi.json").json()["components"]["schemas"]

    def check(answer: dict[str, Any], model: str) -> None:
        assert set(schemas[model]["required"]) <= set(answer) <= set(schemas[model]["properties"])

    check(node.post("/v1/maps", {"name": "m", "kind": "state"}).json(), "MapChanged")
    check(node.get("/v1/maps/m").json(), "MapResponse")
    pond_map = node.pond.map("m")
    check(pond_map.definition.to_dict() | pond_map.info(), "MapResponse")
    of_main = {"parts_queued", "position", "rows_queued", "snapshot_current"}
    assert set(schemas["MapResponse"]["properties"]) - set(schemas["MapResponse"]["required"]) == {
        "aggregation", "condense_by", "fields", "query", "ref", "roll_up", *of_main,
    }  # fmt: skip
    assert of_main <= pond_map.info().keys()
    check(node.get("/v1/node").json(), "NodeResponse")


def test_the_page_needs_nothing_from_elsewhere(node: Served) -> None:
    for path, document in (("/docs", "/openapi.json"), ("/docs/versions", "/openapi-versions.json")):
        answer = node.get(path)
        page = answer.body.decode()
        assert answer.headers["Content-Type"].startswith("text/html")
        assert not re.search(r"<script|<link|<img|url\(|(src|href)=\"(?!/docs|/openapi)", page)
        for template, verbs in node.get(document).json()["paths"].items():
            for verb in verbs:
                assert f"{verb.upper()} {template}<" in page
    assert node.get("/docs/assets/x.js").status == 404


# -- limits and threads -------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_not_read(node: Served) -> None:
    line = http.client.HTTPConnection(urlsplit(node.url).netloc)
    line.putrequest("POST", "/v1/maps")
    line.putheader("Content-Length", str(JSON_BYTES_MAX + 1))
    line.endheaders()
    answer = line.getresponse()
    assert (answer.status, json.loads(answer.read())["kind"]) == (413, "body_too_large")
    line.close()


def test_a_body_that_does_not_say_how_large_it_is_is_cut(node: Served) -> None:
    chunks = (b" " * (1 << 20) for _ in range(2 + (JSON_BYTES_MAX >> 20)))
    answer = node.pool.request("POST", node.url + "/v1/maps", body=chunks, chunked=True)
    assert answer.status == 413


@pytest.mark.settings(limits={"threads": 2})
def test_who_waits_keeps_nobody_from_working(node: Served) -> None:
    node.pond.create_map("m", kind="state", value="long")
    position = node.pond.log.position()[0]
    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(node.get, f"/v1/log?after={position}&wait=5") for _ in range(8)]
        answered = threading.Event()
        pool_two = ThreadPoolExecutor(1)
        working = pool_two.submit(lambda: (node.get("/v1/maps"), answered.set()))
        assert answered.wait(3), "a question is answered while eight wait"
        working.result()
        node.pond.create_map("n", kind="state", value="long")
        assert all(future.result().json()["entries"] for future in pending)


# -- its beginning and its end ------------------------------------------------------------------------


def test_one_node_serves_a_folder(node: Served, serve: Callable[..., Served]) -> None:
    with pytest.raises(Conflict) as refused:
        serve(server_data=str(node.pond.folder))
    assert refused.value.kind == "pond_served"
    with millpond.open(node.pond.folder) as here, pytest.raises(Conflict) as refused:
        here.create_map("m", kind="state")
    assert refused.value.kind == "pond_served"


def test_a_port_in_use_is_an_error(node: Served, serve: Callable[..., Served]) -> None:
    with pytest.raises(Unavailable) as refused:
        serve(server_port=node.node.settings.server.port)
    assert refused.value.kind == "port_in_use"
    with pytest.raises(Invalid) as unknown:
        serve(server_host="192.0.2.1", server_tokens=[{"name": "a", "sha256": "0" * 64, "rights": {"read": ["*"]}}])
    assert unknown.value.kind == "host_refused"


def test_a_node_must_stand_in_its_own_list(serve: Callable[..., Served]) -> None:
    with pytest.raises(Invalid) as refused:
        serve(nodes_urls=["http://a:1", "http://b:1"])
    assert refused.value.kind == "node_not_listed"


def test_open_requests_are_answered_before_the_end(serve: Callable[..., Served]) -> None:
    node = serve()
    node.pond.create_map("m", kind="state", value="long")
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(node.get, "/v1/log?after=1&wait=20")
        until_running(node)
        node.close()
        assert pending.result(5).status == 200, "a waiter gets an empty page, rather than cut off"
    with (
        pytest.raises(OSError, match="refused"),
        socket.create_connection(("127.0.0.1", node.node.settings.server.port), 1),
    ):
        pass


def until_running(node: Served) -> None:
    running = node.service.metrics.running
    node.until(lambda: running._value.get() >= 1)


def test_a_folder_is_served_again_with_all_it_had(serve: Callable[..., Served], tmp_path: Path) -> None:
    for round in range(3):
        node = serve(server_data=str(tmp_path / "retained"))
        with millpond.open(node.url) as pond:
            made = pond.create_map("m", kind="state", value="long", exist_ok=True)
            made.load([{"key": f"k{round}", "value": round}])
            pond.merge()
            assert [made.get(f"k{number}") for number in range(round + 1)] == list(range(round + 1))
        node.close()


def test_clusters_begin_in_any_order(serve: Callable[..., Served]) -> None:
    ports = free_ports(2)
    nodes = [f"http://127.0.0.1:{port}" for port in ports]
    replica = serve(server_port=ports[1], nodes_urls=nodes)
    assert replica.get("/readyz").status == 503, "it cannot know whether the pond is new"
    primary = serve(server_port=ports[0], nodes_urls=nodes)
    for node in (replica, primary):
        node.wait_ready()
    primary.pond.create_map("m", kind="state")
    replica.until(lambda: replica.pond.log.position()[0] == 1)
