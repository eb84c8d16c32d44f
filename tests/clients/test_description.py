"""The description of the API of versions against its handlers, and against the recorded requests and their answers."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections import defaultdict
from typing import Any

import jsonschema_rs
import pytest

from millpond.server.lakefs.api import Api, ApiRoute
from millpond.server.lakefs.bodies import body_type
from millpond.server.lakefs.operations import parameters
from millpond.server.lakefs.table import PREFIX, ROWS
from tests.clients.conftest import Server
from tests.clients.replay import Replay, lines

READERS = ("texts", "text", "needed", "flag", "number", "choice")
OWN = {"_OwnCreation"}
"""Bodies of Millpond's own client, which are described beside those of lakeFS' clients in words."""


def calls(source: str) -> list[tuple[str, str]]:
    """The methods that a source calls, each with its first argument when that is a name or a text."""
    found = []
    for node in ast.walk(ast.parse(inspect.cleandoc(source) if source.startswith(" ") else source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            first = node.args[0] if node.args else None
            said = first.id if isinstance(first, ast.Name) else getattr(first, "value", "")
            found.append((node.func.attr, str(said)))
    return found


@pytest.mark.parametrize("route", Api().routes, ids=lambda route: f"{route.method} {route.path_format}")
def test_a_handler_reads_the_body_that_it_declares(route: ApiRoute) -> None:
    read = {said for name, said in calls(inspect.getsource(route.handler)) if name in ("json", "json_items")} - OWN
    declared = body_type(route.handler)
    if read:
        [name] = read
        assert name in str(declared), "a handler declares its body with `takes`"


def test_each_parameter_that_a_module_reads_is_described() -> None:
    described: dict[str, set[str]] = defaultdict(set)
    for route in Api().routes:
        query = ROWS[route.method, route.path_format.removeprefix(PREFIX)].query
        described[route.handler.__module__] |= {found["name"] for found in parameters(query)}
    for module, names in described.items():
        found = calls(inspect.getsource(sys.modules[module]))
        read = {said for name, said in found if name in READERS and said.isidentifier()} - {"name", "None"}
        read |= {"amount"} if any(name == "amount" for name, _ in found) else set()
        assert read <= names, (module, read - names)


# -- the recorded requests, which the clients of lakeFS send --------------------------------------------


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.pool.request("GET", f"{server.url}/openapi-versions.json").json()
    return found


def strict(schema: Any) -> Any:
    """A schema of OpenAPI 3.0 in the words of JSON schema."""
    if isinstance(schema, list):
        return [strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(inner) for name, inner in schema.items() if name != "nullable"}
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") is True else found


def valid(document: dict[str, Any], schema: dict[str, Any], value: object) -> list[str]:
    """The reasons why a value is not as a schema of the document says."""
    components = strict(document["components"])
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": components})
    return [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(value)]


def test_recorded_requests_and_their_answers_are_as_described(server: Server, document: dict[str, Any]) -> None:
    api, replay, answers, bodies = Api(), Replay(server, "described-answers"), 0, 0
    wrong: list[object] = []
    for case in lines("requests.jsonl"):
        answer = replay.send(case)
        path = f"{PREFIX}{case['path'].partition('?')[0]}"
        route = api.find({"type": "http", "method": case["method"], "path": path})
        if route is None or answer.status >= 300:
            continue
        operation = document["paths"][route.path_format][route.method.lower()]
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
