"""The description of the API of versions against the recorded requests and their answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from millpond.server.lakefs.api import ROUTES
from millpond.server.lakefs.needs import PREFIX
from millpond.server.paths import Paths
from tests.clients.conftest import Server
from tests.clients.replay import Replay, lines

# -- the recorded requests, which the clients of lakeFS send --------------------------------------------


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.pool.request("GET", f"{server.url}/openapi-versions.json").json()
    return found


def valid(document: dict[str, Any], schema: dict[str, Any], value: object) -> list[str]:
    """The reasons why a value is not as a schema of the document says."""
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
    return [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(value)]


def test_recorded_requests_and_their_answers_are_as_described(server: Server, document: dict[str, Any]) -> None:
    replay, answers, bodies = Replay(server, "described-answers"), 0, 0
    paths: Paths[str] = Paths()
    for route in ROUTES:
        paths.at(route.path)[route.method] = route.path
    wrong: list[object] = []
    for case in lines("requests.jsonl"):
        answer = replay.send(case)
        path = f"{PREFIX}{case['path'].partition('?')[0]}"
        template = paths.find(path)[0].get(case["method"])
        if template is None or answer.status >= 300:
            continue
        operation = document["paths"][template][case["method"].lower()]
        if "json" in case and isinstance(case["json"], dict) and "$" not in json.dumps(case["json"]):
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            wrong += valid(document, schema, replay.filled(case["json"]))
            bodies += 1
        if str(answer.status) not in operation["responses"]:
            wrong.append((case, answer.status))
            continue
        content = operation["responses"][str(answer.status)].get("content", {})
        if "application/json" in content:
            wrong += valid(document, content["application/json"]["schema"], answer.json())
            answers += 1
    assert not wrong, wrong
    assert answers > 50
    assert bodies > 20
