"""The needs of routes against the node: every route × every right, on maps that the token may and may not touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from millpond.nodes.tokens import RIGHTS, hash_token
from millpond.server.dialect import OWN
from millpond.server.dispatch import Route
from millpond.server.routes.table import On, RouteNeeds, Work
from tests.nodes.conftest import Answer, Served
from tests.nodes.test_limits import Sender

pytestmark = pytest.mark.sample(2, of="file")

OURS, THEIRS = "ours", "theirs"
NO_PART = "0" * 32


@dataclass(frozen=True)
class Bearer:
    """A token: a right on one map, or on all."""

    right: str | None
    where: str = "*"

    @property
    def secret(self) -> str:
        return f"{self.right}-{'all' if self.where == '*' else self.where}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.right is None else {"Authorization": f"Bearer {self.secret}"}

    def may(self, right: str, map: str | None) -> bool:
        """The model of a right: on a map, or, without one, on everything."""
        if self.right is None or RIGHTS.index(self.right) < RIGHTS.index(right):
            return False
        return self.where in ("*", map)


BEARERS = [Bearer(None), *(Bearer(right, where) for right in RIGHTS for where in (OURS, "*"))]
TOKENS = [
    {"name": bearer.secret, "sha256": hash_token(bearer.secret), "rights": {bearer.right: [bearer.where]}}
    for bearer in BEARERS
    if bearer.right is not None
]


@pytest.fixture
def guarded(serve: Callable[..., Served]) -> Served:
    node = serve(server_tokens=TOKENS)
    for name in (OURS, THEIRS):
        node.pond.create_map(name, kind="state", value="long").load([{"key": "a", "value": 1}])
    return node


def path_of(template: str, map: str) -> str:
    name = "merge" if template.startswith("/v1/jobs") else map
    fields = {"{name}": name, "{part_id}": NO_PART, "{load_id}": "load", "{file:path}": "a/b.range"}
    for field, value in {**fields, "{queue}/{id:path}": "queue/set"}.items():
        template = template.replace(field, value)
    return f"{template}?queue={map}&job_set=nightly" if template.startswith("/v1/events") else template


def variants(method: str, template: str, needs: RouteNeeds, map: str) -> Iterator[tuple[str, dict[str, str], Any]]:
    """Path, headers and body of requests that are about a map."""
    path = path_of(template, map)
    body: Any = None
    if needs.on is On.BODY_MAPS:
        body = {
            "/v1/maps": {"name": map, "kind": "state", "value": "long", "exist_ok": True},
            "/v1/loads/{load_id}": b"",
            "/v1/loads": {"load_id": f"load-{map}", "parts": [NO_PART]},
            "/v1/log/replication": {"position": 0, "maps": [map]},
            "/v1/refs/restore": {"ref": "main~1", "maps": [map]},
        }[template]
    elif template.endswith("/maintenance"):
        body = {"what": "compact"}
    elif method == "PATCH":
        body = {"retain": "1d"}
    elif template == "/v1/repair" and method == "POST":
        body = {"source": "nowhere"}
    elif template.endswith("retry"):
        body = {"parts": []}
    elif template == "/v1/verify":
        body = {"full": False}
    headers = {"Upload-Map": map, "Upload-Checksum": NO_PART} if needs.on is On.HEADER_MAP else {}
    yield path, headers, body
    if needs.on in (On.QUERY_MAP, On.QUERY_MAP_OR_POND):
        yield f"{path}?map={map}", headers, body


def allowed(bearer: Bearer, needs: RouteNeeds, map: str, path: str) -> bool:
    """The table, read once more."""
    if needs.right is None:
        return True
    on_map = bearer.may(needs.right, map)
    somewhere = bearer.may(needs.right, bearer.where)
    if path.startswith(("/v1/refs/restore", "/v1/refs/history?map=")):
        return on_map and bearer.may(needs.right, None)  # they are about the repository `pond`, too
    match needs.on:
        case On.POND:
            return bearer.may(needs.right, None)
        case On.BODY_MAPS if path.startswith("/v1/loads"):
            return somewhere  # of other maps' parts it says that they are absent
        case On.STREAM | On.JOB_SET | On.ANY_STREAM | On.TENANT | On.ANY_TENANT:
            return bearer.may(needs.right, None)  # a pattern of maps opens no stream and no tenant
        case On.MAP | On.HEADER_MAP | On.BODY_MAPS:
            return on_map
        case On.QUERY_MAP | On.QUERY_MAP_OR_POND if "?map=" in path:
            return on_map
        case On.QUERY_MAP_OR_POND:
            return bearer.may("admin", None)
    return somewhere


def rows_of(node: Served) -> list[tuple[str, str, RouteNeeds]]:
    """Method, template and needs of every route of Millpond itself; that which drops the map comes last."""
    routes: tuple[Route, ...] = node.service.app.state.routes
    rows = [(route.method, route.path, route.needs) for route in routes if route.dialect is OWN]
    return sorted(rows, key=lambda row: row[:2] == ("DELETE", "/v1/maps/{name}"))


@pytest.mark.parametrize("bearer", BEARERS, ids=lambda bearer: bearer.secret)
def test_every_route_answers_as_it_states(guarded: Served, bearer: Bearer) -> None:
    for method, template, needs in rows_of(guarded):
        for map in (THEIRS, OURS):
            for path, headers, body in variants(method, template, needs, map):
                answer = guarded.request(method, path, body=body, headers={**headers, **bearer.headers})
                wrong = 401 if bearer.right is None else 403
                if allowed(bearer, needs, map, path):
                    assert answer.status not in (401, 403, 405, 500), (method, path, answer.status, answer.body)
                else:
                    assert answer.status == wrong, (method, path, answer.status, answer.body)


@pytest.mark.parametrize("bearer", BEARERS, ids=lambda bearer: bearer.secret)
def test_access_and_size_are_decided_before_a_body_is_read(guarded: Served, bearer: Bearer) -> None:
    """Each request announces a body and sends none of it: an answer shows that none was waited for."""
    for method, template, needs in rows_of(guarded):
        refused = not allowed(bearer, needs, THEIRS, "")
        if needs.on is On.BODY_MAPS:
            refused = needs.right is not None and not bearer.may(needs.right, bearer.where)
        if not refused and needs.body_bytes_max is None:
            continue
        announced = 1 + (needs.body_bytes_max or 0)
        headers = {"Content_Type": "application/json", "Upload_Map": THEIRS, "Upload_Checksum": NO_PART}
        sender = Sender(guarded, method, path_of(template, THEIRS), announced, **headers, **bearer.headers)
        answer = sender.answer()
        expected = (401 if bearer.right is None else 403) if refused else 413
        assert answer.status == expected, (method, template, answer.body)
        if expected == 413 and method != "HEAD":
            assert answer.json()["values"]["bytes_max"] == needs.body_bytes_max, (method, template)
        sender.close()


def test_maps_that_a_token_may_not_touch_are_as_if_absent(guarded: Served) -> None:
    """The same answer, but for the name that was asked for."""

    def answers(bearer: Bearer, map: str) -> list[tuple[str, int, bytes]]:
        found: list[tuple[str, int, bytes]] = []
        for method, template, needs in rows_of(guarded):
            if (
                method == "DELETE"
                or needs.right is None
                or template in ("/metrics", "/v1/maps", "/v1/parts", "/v1/log")
            ):
                continue
            for path, headers, body in variants(method, template, needs, map):
                answer: Answer = guarded.request(method, path, body=body, headers={**headers, **bearer.headers})
                found.append((f"{method} {template}", answer.status, answer.body.replace(map.encode(), b"MAP")))
        return found

    bearer = Bearer("admin", OURS)
    for present, absent in zip(answers(bearer, THEIRS), answers(bearer, "nothin"), strict=True):
        assert present == absent
    misspelt = guarded.get("/v1/maps/our", headers=Bearer("admin", OURS).headers)
    assert THEIRS.encode() not in misspelt.body


def test_every_route_is_declared_once_and_described_as_declared(node: Served) -> None:
    rows = rows_of(node)
    assert len({(method, template) for method, template, _ in rows}) == len(rows)
    documented = {
        (verb.upper(), path): operation
        for path, verbs in node.get("/openapi.json").json()["paths"].items()
        for verb, operation in verbs.items()
    }
    for method, template, needs in rows:
        operation = documented.get((method, template.replace(":path}", "}")))
        if operation is None:
            assert not template.startswith("/v1/") or method == "HEAD", f"{template} is not described"
            continue
        assert ("security" in operation) == (needs.right is not None), template
        assert ("requestBody" in operation) <= (needs.body_bytes_max != 0), f"{template} takes a body, and states none"
    assert {needs.work for _, _, needs in rows} == set(Work)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_monitors_may_ask_for_the_head_alone(node: Served, path: str) -> None:
    whole, head = node.get(path), node.request("HEAD", path)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(whole.body)))


def test_a_method_that_a_path_does_not_take_names_those_it_takes(node: Served) -> None:
    for method, path, allow in (
        ("PUT", "/v1/maps/m", "DELETE, GET, PATCH"),
        ("POST", "/healthz", "GET, HEAD"),
        ("GET", "/v1/loads", "POST"),
        ("PATCH", f"/v1/parts/{NO_PART}/upload", "DELETE, GET, POST, PUT"),
    ):
        answer = node.request(method, path)
        assert (answer.status, answer.json()["kind"], answer.headers["Allow"]) == (405, "method_not_allowed", allow)
