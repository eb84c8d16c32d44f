"""Requests that the OpenAPI description of a node allows, drawn by Schemathesis: none fails the node.

The node is a process of its own, with the machine's clock. What is drawn waits for nothing, and does not drain the
node: after that it rightly answers 503 to all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import urllib3
from hypothesis import HealthCheck, given, settings

from tests.rings.forked import Command
from tests.rings.sampling import examples

EXAMPLES = examples(2, 30)
OPERATIONS_MIN = 40
BUSY = {
    "disk_full", "map_busy", "merge_failed", "merge_slow", "node_behind", "node_not_heard", "node_not_ready",
    "pond_busy", "request_memory_full", "upload_busy",
}  # fmt: skip
"""Errors of status 503 that a request may bring about, or meet."""
NO_JSON = (
    "application/x-ndjson",
    "application/vnd.apache.arrow.stream",
    "application/vnd.millpond.part",
    "application/octet-stream",
)
THERE = {"repository": "described", "branch": "main", "ref": "main", "leftRef": "main", "destinationBranch": "main"}
"""Names in paths of the API of versions that are there; the others are drawn."""
WAITS = ("wait", "timeout", "follow", "watch")
PATIENT = ("/digest", "/shard", "/log/replication")
"""Routes that wait when they are not told for how long."""


@schemathesis.serializer(*NO_JSON)
def as_it_is(_context: Any, value: Any) -> bytes:
    """Bodies that are no JSON are sent as they are drawn."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with a map."""
    folder = tmp_path_factory.mktemp("described") / "pond"
    words = ["serve", "--data", str(folder), "--port", "0", "--json"]
    process = Command(words, env={**os.environ, "MILLPOND_SERVER_ACCESS": "open"})
    try:
        address = json.loads(process.stdout.readline())["url"]
        for name in ("0", "m"):
            made = {"name": name, "kind": "state", "value": "long"}
            urllib3.request("POST", f"{address}/v1/maps", json=made, timeout=30)
        yield address
        assert process.poll() is None, "it is alive"
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def described_versions(url: str) -> Any:
    """The description of the API of versions, on a repository with a branch, a tag and an object."""
    made = {"name": "described", "storage_namespace": "local://described"}
    api = f"{url}/api/v1"
    assert urllib3.request("POST", f"{api}/repositories", json=made, timeout=60).status == 201
    branch = f"{api}/repositories/described/branches/main"
    assert urllib3.request("POST", f"{branch}/objects?path=a/1", body=b"1", timeout=60).status == 201
    assert urllib3.request("POST", f"{branch}/commits", json={"message": "first"}, timeout=60).status == 201
    schema = schemathesis.openapi.from_url(f"{url}/openapi-versions.json")
    schema.config.update(base_url=url)

    @schema.hook("map_path_parameters")
    def map_path_parameters(_context: Any, names: dict[str, Any] | None) -> dict[str, Any]:
        return {name: THERE.get(name, value) for name, value in (names or {}).items()}

    return schema.exclude(path="/api/v1/repositories/{repository}", method="DELETE")


@pytest.fixture(scope="module")
def described(url: str) -> Any:
    """The description of the node."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    schema.config.update(base_url=url)

    @schema.hook("map_query")
    def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
        given = {name: value for name, value in (query or {}).items() if name not in WAITS}
        return given | {"timeout": 0} if context.operation.path.endswith(PATIENT) else given

    @schema.hook("map_body")
    def map_body(context: Any, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        given = {name: value for name, value in body.items() if name not in WAITS}
        return given | {"timeout": 0} if context.operation.path.endswith(PATIENT) else given

    return schema.exclude(path="/v1/nodes/drain", method="POST")


def test_no_request_that_is_described_fails_the_node(described: Any) -> None:
    seen = 0
    for operation in described.get_all_operations():
        _try_out(operation.ok())
        seen += 1
    assert seen > OPERATIONS_MIN


def test_no_request_that_is_described_fails_the_api_of_versions(described_versions: Any) -> None:
    seen = bodies = 0
    for operation in described_versions.get_all_operations():
        _try_out(operation.ok())
        seen, bodies = seen + 1, bodies + bool(operation.ok().body)
    assert seen > OPERATIONS_MIN
    assert bodies > OPERATIONS_MIN // 2


def _try_out(operation: Any) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy())
    def no_failure(case: schemathesis.Case) -> None:
        response = case.call(timeout=60)
        kind = response.json().get("kind") if response.status_code == 503 else None
        assert response.status_code < 500 or response.status_code == 501 or kind in BUSY, (
            case.method,
            case.path,
            response.status_code,
            response.text,
        )

    no_failure()
